"""Load an engine's own attention-backend file, as installed, without the engine, a model or a GPU.

`load_backend(site_packages)` executes `sglang/srt/layers/attention/triton_backend.py` from that folder and
returns the module. Two more files are executed as they are, because the backend's metadata depends on what they
compute: the index kernels of `sglang/srt/layers/attention/utils.py` and whatever real module is named in
REAL_MODULES. Every other `sglang.*` import gets a stand-in: an empty module whose attributes come into being when
asked for. Nothing of the engine is imported as a whole, so it takes a second and needs torch and triton alone.

Triton kernels run in Triton's interpreter, on CPU tensors. Where triton has no wheel (macOS), a stand-in for the
module is used, and the one index kernel that target-verify metadata needs is done in plain torch; `uses_triton()`
tells which.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from pathlib import Path
from typing import Any, Iterator, Sequence

BACKEND_MODULE = "sglang.srt.layers.attention.triton_backend"
BACKEND_FILE = "sglang/srt/layers/attention/triton_backend.py"

# Executed from the installed files; everything else below `sglang` is a stand-in.
REAL_MODULES = (BACKEND_MODULE, "sglang.srt.layers.attention.utils")

_triton_is_real = True


class _StandIn:
    """Answers to any use an import-time statement may make of an unknown name: base class, decorator, constant."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # A decorator that was never really imported must hand back what it decorates.
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else None


def _new_stand_in(name: str) -> Any:
    return type(name, (_StandIn,), {})


class _StandInModule(types.ModuleType):
    """A module that has every public name; each is a class of its own, made once."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _new_stand_in(name)
        setattr(self, name, value)
        return value


def _next_power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length() if n > 0 else 1


def _env_bool(name: str, default: str = "false") -> bool:
    return os.environ.get(name, default).lower() in ("true", "1")


class _AttentionArch:
    MLA = "MLA"
    MHA = "MHA"


# What the metadata builders really compute with, for the plainest case: one GPU's worth of heads, no CUDA.
_VALUES: dict[str, dict[str, Any]] = {
    "sglang.srt.utils": {
        "is_cuda": lambda: False,
        "is_hip": lambda: False,
        "is_npu": lambda: False,
        "is_xpu": lambda: False,
        "get_bool_env_var": _env_bool,
        "get_int_env_var": lambda name, default=0: int(os.environ.get(name, str(default))),
        "get_device_core_count": lambda *args, **kwargs: 0,
        "next_power_of_2": _next_power_of_2,
    },
    "sglang.srt.configs.model_config": {"AttentionArch": _AttentionArch},
    "sglang.srt.layers.dp_attention": {"get_attention_tp_size": lambda: 1},
}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Serves `sglang` and everything below it: the real file for REAL_MODULES, a stand-in for the rest."""

    def __init__(self, site_packages: Path) -> None:
        self.site_packages = site_packages

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "sglang" and not fullname.startswith("sglang."):
            return None
        if fullname in REAL_MODULES:
            file = self.site_packages.joinpath(*fullname.split(".")).with_suffix(".py")
            if file.is_file():
                return importlib.util.spec_from_file_location(fullname, file)
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _StandInModule(spec.name)
        module.__dict__.update(_VALUES.get(spec.name, {}))
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _plain_create_flashinfer_kv_indices(grid: tuple[int, ...], args: tuple[Any, ...]) -> None:
    """Plain-torch twin of SGLang's `create_flashinfer_kv_indices_triton` (see attention/utils.py).

    For each request i of the grid, copies req_to_token[req_pool_indices[i], start : start + lens[i]] to
    kv_indices[kv_indptr[i] : kv_indptr[i] + lens[i]].
    """
    req_to_token, req_pool_indices, lens, kv_indptr, kv_start_idx, kv_indices = args[:6]
    for i in range(grid[0]):
        start = int(kv_start_idx[i]) if kv_start_idx is not None else 0
        length, at = int(lens[i]), int(kv_indptr[i])
        row = req_to_token[int(req_pool_indices[i])]
        kv_indices[at : at + length] = row[start : start + length].to(kv_indices.dtype)


_PLAIN_KERNELS = {"create_flashinfer_kv_indices_triton": _plain_create_flashinfer_kv_indices}


class _PlainKernel:
    """What `@triton.jit` gives where there is no triton: launchable if we have a plain twin, else a clear refusal."""

    def __init__(self, function: Any) -> None:
        self.name = function.__name__

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*args: Any, **kwargs: Any) -> None:
            twin = _PLAIN_KERNELS.get(self.name)
            if twin is None:
                raise NotImplementedError(f"{self.name}: needs triton, which has no wheel for this platform")
            twin(grid, args)

        return launch


def _plain_triton() -> tuple[types.ModuleType, types.ModuleType]:
    triton = _StandInModule("triton")
    language = _StandInModule("triton.language")
    triton.__dict__.update(
        jit=_PlainKernel,
        language=language,
        cdiv=lambda a, b: -(-a // b),
        next_power_of_2=_next_power_of_2,
    )
    return triton, language


def uses_triton() -> bool:
    """True where index kernels of the installed files run in Triton's interpreter, False where in plain torch."""
    return _triton_is_real


@contextlib.contextmanager
def _triton_for_installed_files() -> Iterator[None]:
    """While the installed files execute, `import triton` gives them the real one or, where there is none, ours.

    Ours is taken away again at once: torch looks for triton too, and must not find half a one.
    """
    global _triton_is_real
    # Triton decides at its first import whether kernels run in the interpreter.
    if "triton" in sys.modules and not os.environ.get("TRITON_INTERPRET"):
        raise RuntimeError("triton was imported before TRITON_INTERPRET=1 was set: set it at the start of the process")
    os.environ.setdefault("TRITON_INTERPRET", "1")
    _triton_is_real = os.environ.get("DIAG_NO_TRITON") != "1" and importlib.util.find_spec("triton") is not None
    if _triton_is_real:
        yield
        return
    names = ("triton", "triton.language")
    before = {name: sys.modules.get(name) for name in names}
    sys.modules.update(zip(names, _plain_triton()))
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def load_backend(site_packages: Path) -> types.ModuleType:
    """Execute the installed backend file and return its module.

    Raises FileNotFoundError if the package is not there, and whatever the file itself raises (a SyntaxError of a
    hand edit, say): the caller reports that as the engine would.
    """
    if not (site_packages / BACKEND_FILE).is_file():
        raise FileNotFoundError(f"{BACKEND_FILE}: not in {site_packages}")
    for name in [m for m in sys.modules if m == "sglang" or m.startswith("sglang.")]:
        del sys.modules[name]
    # Stays in place: the backend imports more of the engine when it is constructed.
    sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, _Finder)]
    sys.meta_path.insert(0, _Finder(site_packages))
    with _triton_for_installed_files():
        return importlib.import_module(BACKEND_MODULE)
