"""The story on a real SGLang and a real GPU, over SSH to the machine itself. Not collected by pytest: run it.

    python tests/gpu/story.py ENGINE_PYTHON MODEL_FOLDER [--side-by-side N] [--engine vllm]

ENGINE_PYTHON has SGLang 0.4.3 to 0.5.16 installed; the model speaks ChatML. What this does to that environment are two
changes of one file, made and taken back by the tool itself: the injection `inject-pinned-count` (the backend's count
pinned to 8, as in a fork whose tree budget the backend does not know) and the fix `mask-indptr`.

--engine vllm: ENGINE_PYTHON has vLLM 0.9 to 0.25 instead, and a shorter story is told: the injection
`inject-null-block` into its prefix cache, a bisection over prefix cache and CUDA graph, and all is taken back.

--side-by-side: so many servers at once on the one GPU. The machine is entered under so many names, and each name makes
its own trials. docs/gpu-lab.md says how such a machine is set up.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from diag.lab import control, demo  # noqa: E402
from diag.lab.layout import Lab  # noqa: E402

FILES = {
    "sglang": "sglang/srt/layers/attention/triton_backend.py",
    "vllm": "vllm/v1/core/kv_cache_manager.py",
}
# What a login on a GPU host sets, and this one, which is no login, must be told.
LOGIN = ("LD_LIBRARY_PATH", "CUDA_", "NCCL_", "TORCH_SYMM_", "NVSHMEM_")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("python", help="the engine's interpreter")
    options.add_argument("model", help="the model's folder")
    options.add_argument("--side-by-side", type=int, default=1, metavar="N", help="servers at once, 1 to 3")
    options.add_argument("--engine", choices=FILES, default="sglang")
    given = options.parse_args()
    file = changed_file(given.python, given.engine)
    original = file.read_bytes()
    names = ["gpu", "gpu-b", "gpu-c"][: given.side_by_side]
    with tempfile.TemporaryDirectory(prefix="diag-gpu-") as scratch:
        lab = Lab(Path(scratch) / "lab")
        environment = {
            **os.environ,
            "DIAG_STATE_DIR": str(Path(scratch) / "state"),
            "DIAG_CONFIG_DIR": str(Path(scratch) / "config"),
        }
        ssh_host(lab, Path(environment["DIAG_CONFIG_DIR"]), names, given.python, given.model)
        try:
            return run(environment, sglang_story(names) if given.engine == "sglang" else vllm_story(names))
        finally:
            # The tool has put it back; if it has not, say so, and do it.
            if file.read_bytes() != original:
                print(f"{file} was not as before, and is put back by this script")
                file.write_bytes(original)
            control._stop(lab, print)


def sglang_story(names: Sequence[str]) -> tuple[demo.Step, ...]:
    plan = str(HERE / "ngram-width.yaml")
    pin, mend = ("fix", "{}", "gpu", "inject-pinned-count"), ("fix", "{}", "gpu", "mask-indptr")
    return (
        demo.Step("Probe", "Facts of a real GPU host; the fault is in the source.", ("probe", "host", "gpu"), 1),
        demo.Step("Kernels", "The installed kernel, and what it is told.", ("probe", "kernels", "gpu"), 1),
        demo.Step("Inject", "The backend's count no longer follows the flag.", (*act(pin, "apply"), "--yes")),
        demo.Step("Bisect", "Width, branching, CUDA graph, and two innocents.", ("bisect", *names, "--plan", plan), 1),
        demo.Step("Fix", "The verify step's own width.", (*act(mend, "apply"), "--yes")),
        demo.Step("Again", "The failing command line, mended.", ("bisect", "gpu", "--plan", plan, "--check")),
        demo.Step("Revert", "The file as it was before the fix.", act(mend, "revert")),
        demo.Step("Revert", "The file as the wheel brought it.", act(pin, "revert")),
        demo.Step("Pristine", "By the wheel's RECORD.", ("fix", "status", "gpu", "mask-indptr"), 1),
    )


def vllm_story(names: Sequence[str]) -> tuple[demo.Step, ...]:
    plan = str(HERE / "vllm-prefix.yaml")
    null = ("fix", "{}", "gpu", "inject-null-block")
    return (
        demo.Step("Probe", "Facts of a real GPU host.", ("probe", "host", "gpu"), 1),
        demo.Step("Clean", "Nothing is wrong yet.", ("bisect", "gpu", "--plan", plan, "--check")),
        demo.Step("Inject", "Hits of the prefix cache begin with the null block.", (*act(null, "apply"), "--yes")),
        demo.Step("Bisect", "Prefix cache and CUDA graph.", ("bisect", *names, "--plan", plan), 1),
        demo.Step("Revert", "The file as the wheel brought it.", act(null, "revert")),
        demo.Step("Again", "The failing command line.", ("bisect", "gpu", "--plan", plan, "--check")),
    )


def run(environment: dict[str, str], story: Sequence[demo.Step]) -> int:
    timings: list[tuple[demo.Step, float]] = []
    codes = [demo._told(step, environment, timings) for step in story]  # a broken step does not end the story
    demo._summary(timings)
    return 0 if all(codes) else 1


def act(command: Sequence[str], what: str) -> tuple[str, ...]:
    return tuple(word.format(what) for word in command)


def changed_file(python: str, engine: str) -> Path:
    """Found without importing the engine."""
    code = f"import importlib.util as u; print(u.find_spec('{engine}').submodule_search_locations[0])"
    package = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    return Path(package).parent / FILES[engine]


def ssh_host(lab: Lab, config: Path, names: Sequence[str], python: str, model: str) -> None:
    """The lab's SSH server, without the lab: this machine is the host, under each of the names."""
    for folder in (lab.ssh, lab.home):
        folder.mkdir(parents=True, mode=0o700)
    control._fresh_keys(lab)
    control._start_sshd(lab, print)
    config.mkdir(parents=True)
    login = "".join(f'{name} = "{value}"\n' for name, value in os.environ.items() if name.startswith(LOGIN))
    entry = (
        f'address = "127.0.0.1"\nport = {lab.read_state()["port"]}\nuser = "{control.build_user()}"\n'
        f'identity_file = "{lab.user_key}"\nknown_hosts = "{lab.known_hosts}"\npython = "{python}"\n'
    )
    hosts = [
        f'[hosts.{name}]\n{entry}[hosts.{name}.labels]\nmodel = "{model}"\n[hosts.{name}.env]\n{login}'
        for name in names
    ]
    (config / "hosts.toml").write_text("schema = 1\n" + "".join(hosts))


if __name__ == "__main__":
    sys.exit(main())
