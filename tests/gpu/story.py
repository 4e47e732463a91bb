"""The story on a real SGLang and a real GPU, over SSH to the machine itself. Not collected by pytest: run it.

    python tests/gpu/story.py ENGINE_PYTHON MODEL_FOLDER

ENGINE_PYTHON has SGLang 0.4.3 to 0.5.16 installed; the model speaks ChatML. What this does to that environment is
one line of one file (the backend's count pinned to 8, as in a fork whose tree budget the backend does not know),
taken back at the end whatever happens, and the fix `mask-indptr`, applied and reverted by the tool.

docs/gpu-lab.md says how such a machine is set up.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from diag.lab import control, demo  # noqa: E402
from diag.lab.layout import Lab  # noqa: E402

FILE = "sglang/srt/layers/attention/triton_backend.py"
COUNT = "self.num_draft_tokens = model_runner.server_args.speculative_num_draft_tokens"
# What a login on a GPU host sets, and this one, which is no login, must be told.
LOGIN = ("LD_LIBRARY_PATH", "CUDA_", "NCCL_", "TORCH_SYMM_", "NVSHMEM_")
PINNED = "self.num_draft_tokens = 8  # pinned by tests/gpu/story.py"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("python", help="the engine's interpreter")
    options.add_argument("model", help="the model's folder")
    given = options.parse_args()
    file = backend_file(given.python)
    original = file.read_bytes()
    if original.decode().count(COUNT) != 1:
        print(f"{file}: the line that is to be pinned is not there exactly once; is the file pristine?")
        return 2
    with tempfile.TemporaryDirectory(prefix="diag-gpu-") as scratch:
        lab = Lab(Path(scratch) / "lab")
        environment = {
            **os.environ,
            "DIAG_STATE_DIR": str(Path(scratch) / "state"),
            "DIAG_CONFIG_DIR": str(Path(scratch) / "config"),
        }
        ssh_host(lab, Path(environment["DIAG_CONFIG_DIR"]), given.python, given.model)
        file.write_bytes(original.replace(COUNT.encode(), PINNED.encode()))
        try:
            return run(environment)
        finally:
            file.write_bytes(original)
            control._stop(lab, print)


def run(environment: dict[str, str]) -> int:
    plan = str(HERE / "ngram-width.yaml")
    story = (
        demo.Step(
            "Probe", "Facts of a real GPU host; the pinned file is reported as edited.", ("probe", "host", "gpu"), 1
        ),
        demo.Step("Bisect", "Width, branching, CUDA graph, and two innocents.", ("bisect", "gpu", "--plan", plan), 1),
        demo.Step("Fix", "The verify step's own width.", ("fix", "apply", "gpu", "mask-indptr", "--yes")),
        demo.Step("Again", "The failing command line, mended.", ("bisect", "gpu", "--plan", plan, "--check")),
        demo.Step("Revert", "The file as it was before the fix.", ("fix", "revert", "gpu", "mask-indptr")),
    )
    timings: list[tuple[demo.Step, float]] = []
    codes = [demo._told(step, environment, timings) for step in story]  # a broken step does not end the story
    demo._summary(timings)
    return 0 if all(codes) else 1


def backend_file(python: str) -> Path:
    """Found without importing the engine."""
    import subprocess

    code = "import importlib.util as u; print(u.find_spec('sglang').submodule_search_locations[0])"
    package = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    return Path(package).parent / FILE


def ssh_host(lab: Lab, config: Path, python: str, model: str) -> None:
    """The lab's SSH server, without the lab: this machine is the host."""
    for folder in (lab.ssh, lab.home):
        folder.mkdir(parents=True, mode=0o700)
    control._fresh_keys(lab)
    control._start_sshd(lab, print)
    config.mkdir(parents=True)
    (config / "hosts.toml").write_text(
        "schema = 1\n[hosts.gpu]\n"
        f'address = "127.0.0.1"\nport = {lab.read_state()["port"]}\nuser = "{control.build_user()}"\n'
        f'identity_file = "{lab.user_key}"\nknown_hosts = "{lab.known_hosts}"\npython = "{python}"\n'
        f'[hosts.gpu.labels]\nmodel = "{model}"\n'
        + "[hosts.gpu.env]\n"
        + "".join(f'{name} = "{value}"\n' for name, value in os.environ.items() if name.startswith(LOGIN))
    )


if __name__ == "__main__":
    sys.exit(main())
