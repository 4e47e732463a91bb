"""Load an engine's own attention-backend file, as installed, without the engine, a model or a GPU.

`load_backend(site_packages)` executes `sglang/srt/layers/attention/triton_backend.py` from that folder and
returns the module. A few more files are executed as they are, because the backend's metadata depends on what they
compute: those of INDEX_KERNELS and BASE_CLASS, as far as a release has them. Every other `sglang.*` import gets a
stand-in: an empty module whose attributes come into being when asked for. Nothing of the engine is imported as a
whole, so it takes a second and needs torch and triton alone. One set of stand-ins serves releases 0.4.3 to 0.5.23.

`import_backend(site_packages)` is the same with the real engine, where that can be imported.

Triton kernels run in Triton's interpreter, on CPU tensors. Where triton has no wheel (macOS), or was imported
before it could be told to interpret, a stand-in for the module is used, and the one index kernel that target-verify
metadata needs is done in plain torch; `uses_triton()` tells which.
"""

from __future__ import annotations

import abc
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from pathlib import Path
from typing import Any, Dict, Iterator, Sequence, Tuple

BACKEND_MODULE = "sglang.srt.layers.attention.triton_backend"
BACKEND_FILE = "sglang/srt/layers/attention/triton_backend.py"

# Executed from the installed files; everything else below `sglang` is a stand-in.
INDEX_KERNELS = (
    "sglang.srt.layers.attention.utils",
    "sglang.srt.layers.attention.flashinfer_backend",  # 0.4.3
    "sglang.srt.layers.attention.triton_ops.kv_indices",  # from 0.5.13
    "sglang.kernels.ops.kvcache.kv_indices",  # from 0.5.16
    "sglang.kernels.ops.attention.kv_indices",  # from 0.5.23
)
BASE_CLASS = "sglang.srt.layers.attention.base_attn_backend"
REAL_MODULES = (BACKEND_MODULE, BASE_CLASS, *INDEX_KERNELS)

EXTEND_ATTENTION = (
    "sglang.srt.layers.attention.triton_ops.extend_attention",  # to 0.5.15
    "sglang.kernels.ops.attention.extend_attention",  # from 0.5.16
)
# Of these the kernel's launch uses small functions that compute.
BESIDE_EXTEND_ATTENTION = (
    "sglang.srt.layers.attention.triton_ops.decode_attention",  # 0.5.13 to 0.5.15
    "sglang.kernels.ops.attention.decode_attention",
    "sglang.kernels.ops.attention.score_mod",
)

_triton_is_real = True
_replaced: Dict[str, str] = {}


class Loose(types.SimpleNamespace):
    """A namespace in which what was not given is None: configuration that a release reads and that decides nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class Mode:
    """Stands in for SGLang's ForwardMode: `is_X()` is True for the mode's own names only."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def __getattr__(self, attribute: str) -> Any:
        if not attribute.startswith("is_"):
            raise AttributeError(attribute)
        answer = attribute[len("is_") :] in self._names
        return lambda *args, **kwargs: answer


class ForwardMode:
    """The modes that are asked for here, as members of the engine's class of that name."""

    EXTEND = Mode("extend", "prefill")
    DECODE = Mode("decode", "decode_or_idle")
    TARGET_VERIFY = Mode("target_verify")


class _StandInClass(abc.ABCMeta):
    """Members of an unknown enumeration or class exist, too."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return _new_stand_in(name)


class _StandIn(metaclass=_StandInClass):
    """Answers to any use an import-time statement may make of an unknown name: base class, decorator, constant."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # A decorator that was never really imported must hand back what it decorates.
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else None


def _new_stand_in(name: str) -> Any:
    return _StandInClass(name, (_StandIn,), {})


def _no(*args: Any, **kwargs: Any) -> bool:
    return False


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


class _StandInModule(types.ModuleType):
    """A module that has every public name; each is a class of its own, made once. Questions (`is_...`) are denied."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _no if name.startswith(("is_", "has_", "supports_", "can_use_")) else _new_stand_in(name)
        setattr(self, name, value)
        return value


def _next_power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length() if n > 0 else 1


def _env_bool(name: str, default: str = "false") -> bool:
    return os.environ.get(name, default).lower() in ("true", "1")


class _AttentionArch:
    MLA = "MLA"
    MHA = "MHA"


class _EnvironmentVariables:
    """`envs.SGLANG_X.get()`: none is set."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return types.SimpleNamespace(get=_no)


class _Runtime:
    """What `get_exec()`, `get_spec()`, ... of newer releases answer: the server arguments, in groups or not."""

    def __init__(self, server_args: Any) -> None:
        self.server_args = server_args

    def __getattr__(self, name: str) -> Any:
        if name in _GROUPS:
            return self.server_args
        return getattr(self.server_args, name, None)


_GROUPS = ("kernel", "deterministic", "dllm", "graph", "memory", "moe", "quantization")
_runtime = _Runtime(Loose())


class _Parallel:
    """What `get_parallel()` answers: one rank of each group."""

    def __getattr__(self, name: str) -> Any:
        if name.endswith("_size"):
            return 1
        return 0 if name.endswith("_rank") else None


_PARALLEL = _Parallel()


def use_server_args(server_args: Any) -> None:
    """What the backend finds as the running server's arguments where it asks for them itself (from 0.5.17)."""
    _runtime.server_args = server_args


def _verify_mask(**given: Any) -> Any:
    """The buffer for the tree masks of captured graphs, as large as the engine's own function makes it."""
    import torch

    width, requests = given.get("num_draft_tokens"), given.get("max_bs", 0)
    if given.get("is_draft_runner") or given.get("skip_prefill") or not width:
        return None
    cells = requests * width * (given.get("max_context_len", 0) + width)
    return Loose(buffer=torch.zeros(cells, dtype=given.get("dtype", torch.bool)), max_bs=requests, is_read=True)


# Answers that in the engine come from a running server; put over the names of a really imported backend, too.
_SERVER_VALUES: Dict[str, Any] = {
    "get_attention_tp_size": lambda: 1,
    "get_parallel": lambda: _PARALLEL,
    "get_exec": lambda: _runtime,
    "get_spec": lambda: _runtime,
    "get_schedule": lambda: _runtime,
    "get_global_server_args": lambda: _runtime.server_args,
    "get_device_core_count": lambda *args, **kwargs: 0,
    "maybe_create_verify_mask": _verify_mask,
    "mambaish_config": _nothing,
    "hybrid_gdn_config": _nothing,
    "kimi_linear_config": _nothing,
    "linear_attn_model_spec": _nothing,
}


def _server_values(*names: str) -> Dict[str, Any]:
    return {name: _SERVER_VALUES[name] for name in names}


# What the metadata builders really compute with, for the plainest case: one GPU's worth of heads, no CUDA.
_VALUES: Dict[str, Dict[str, Any]] = {
    "sglang.srt.utils": {
        "get_bool_env_var": _env_bool,
        "get_int_env_var": lambda name, default=0: int(os.environ.get(name, str(default))),
        "next_power_of_2": _next_power_of_2,
        **_server_values("get_device_core_count"),
    },
    "sglang.srt.environ": {"envs": _EnvironmentVariables()},
    "sglang.srt.configs.model_config": {"AttentionArch": _AttentionArch},
    "sglang.srt.configs.hybrid_arch": _server_values(
        "mambaish_config", "hybrid_gdn_config", "kimi_linear_config", "linear_attn_model_spec"
    ),
    "sglang.srt.layers.dp_attention": _server_values("get_attention_tp_size"),
    "sglang.srt.layers.attention.verify_mask": _server_values("maybe_create_verify_mask"),
    "sglang.srt.model_executor.forward_batch_info": {"ForwardMode": ForwardMode},
    "sglang.srt.runtime_context": _server_values("get_parallel", "get_exec", "get_spec", "get_schedule"),
    "sglang.srt.server_args": _server_values("get_global_server_args"),
    # Sizes of launches that are never made.
    "sglang.kernels.ops.attention.decode_attention": {
        "_LEAN_BLOCK_M": 16,
        "_lean_decode_launch_params": lambda *args, **kwargs: (1, 1, 1),
    },
    "sglang.kernels.ops.attention.extend_attention": {
        "_get_block_sizes_for_extend_attention": lambda *args, **kwargs: (64, 64, 64, 64, 64, 4),
    },
}


class _LenientLoader(importlib.machinery.SourceFileLoader):
    """For the files around the backend: one that cannot be executed here becomes a stand-in, and is remembered."""

    def exec_module(self, module: types.ModuleType) -> None:
        try:
            super().exec_module(module)
        except Exception as error:
            _replaced[module.__name__] = "{}: {}".format(type(error).__name__, error)
            module.__class__ = _StandInModule


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Serves `sglang` and everything below it: the real file for REAL_MODULES, a stand-in for the rest."""

    def __init__(self, site_packages: Path, real: Sequence[str] = REAL_MODULES) -> None:
        self.site_packages, self.real = site_packages, real
        self.values: Dict[str, Dict[str, Any]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "sglang" and not fullname.startswith("sglang."):
            return None
        if fullname in self.real:
            file = _file_of(self.site_packages, fullname)
            if file.is_file():
                loader = (
                    None if fullname in (BACKEND_MODULE, *EXTEND_ATTENTION) else _LenientLoader(fullname, str(file))
                )
                return importlib.util.spec_from_file_location(fullname, file, loader=loader)
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _StandInModule(spec.name)
        module.__dict__.update({**_VALUES.get(spec.name, {}), **self.values.get(spec.name, {})})
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _plain_create_flashinfer_kv_indices(grid: Tuple[int, ...], args: Tuple[Any, ...]) -> None:
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

    def __getitem__(self, grid: Tuple[int, ...]) -> Any:
        def launch(*args: Any, **kwargs: Any) -> None:
            twin = _PLAIN_KERNELS.get(self.name)
            if twin is None:
                raise NotImplementedError(f"{self.name}: needs triton in its interpreter, which is not to be had here")
            twin(grid, args)

        return launch


def _plain_jit(function: Any = None, **options: Any) -> Any:
    return _PlainKernel(function) if function is not None else _PlainKernel


def _plain_triton() -> Tuple[types.ModuleType, types.ModuleType]:
    triton = _StandInModule("triton")
    language = _StandInModule("triton.language")
    triton.__dict__.update(
        jit=_plain_jit,
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
    can_interpret = "triton" not in sys.modules or bool(os.environ.get("TRITON_INTERPRET"))
    os.environ.setdefault("TRITON_INTERPRET", "1")
    wanted = os.environ.get("DIAG_NO_TRITON") != "1"
    _triton_is_real = wanted and can_interpret and importlib.util.find_spec("triton") is not None
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


def replaced() -> Dict[str, str]:
    """Files around the backend that could not be executed and became stand-ins, with the reason."""
    return dict(_replaced)


def _forget_engine() -> None:
    for name in [m for m in sys.modules if m == "sglang" or m.startswith("sglang.")]:
        del sys.modules[name]
    sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, _Finder)]
    _replaced.clear()


def _need_backend_file(site_packages: Path) -> None:
    if not (site_packages / BACKEND_FILE).is_file():
        raise FileNotFoundError(f"{BACKEND_FILE}: not in {site_packages}")


def load_backend(site_packages: Path) -> types.ModuleType:
    """Execute the installed backend file and return its module.

    Raises FileNotFoundError if the package is not there, and whatever the file itself raises (a SyntaxError of a
    hand edit, say): the caller reports that as the engine would.
    """
    _need_backend_file(site_packages)
    _forget_engine()
    # Stays in place: the backend imports more of the engine when it is constructed.
    sys.meta_path.insert(0, _Finder(site_packages))
    with _triton_for_installed_files():
        return importlib.import_module(BACKEND_MODULE)


def import_backend(site_packages: Path) -> types.ModuleType:
    """Import the backend with the engine around it, as its server does; the GPU is not touched.

    Raises whatever importing raises, ImportError when another copy of the engine comes first.
    What needs a running server (its arguments, the size of the tensor-parallel group) is answered here.
    """
    global _triton_is_real
    _need_backend_file(site_packages)
    if "triton" in sys.modules and not os.environ.get("TRITON_INTERPRET"):
        raise ImportError("triton was imported before TRITON_INTERPRET=1 was set: its kernels would want a GPU")
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    module = _import_from(site_packages, BACKEND_MODULE)
    _triton_is_real = True
    vars(module).update({name: value for name, value in _SERVER_VALUES.items() if name in vars(module)})
    return module


def load_extend_attention(site_packages: Path, real: Any = "auto") -> Tuple[types.ModuleType, bool]:
    """The module of the installed `extend_attention_fwd`, and whether the engine itself was imported around it.

    real: as for the oracle. Compiled for the GPU that CUDA_VISIBLE_DEVICES leaves, or interpreted (TRITON_INTERPRET).
    Raises FileNotFoundError where the release has no such file, and whatever the file raises.
    """
    name = next((n for n in EXTEND_ATTENTION if _file_of(site_packages, n).is_file()), None)
    if name is None:
        raise FileNotFoundError(f"extend_attention.py: not in {site_packages}")
    if real is not False:
        try:
            return _import_from(site_packages, name), True
        except Exception:
            if real is True:
                raise
    _forget_engine()
    finder = _Finder(site_packages, (name, *BESIDE_EXTEND_ATTENTION))
    finder.values = {"sglang.srt.utils": {"is_cuda": _on_cuda}}
    sys.meta_path.insert(0, finder)
    return importlib.import_module(name), False


def _on_cuda() -> bool:
    import torch

    return torch.cuda.is_available() and not os.environ.get("TRITON_INTERPRET")


def _file_of(site_packages: Path, module: str) -> Path:
    return site_packages.joinpath(*module.split(".")).with_suffix(".py")


def _import_from(site_packages: Path, name: str) -> types.ModuleType:
    """Raises whatever importing raises, ImportError when another copy of the engine comes first."""
    _forget_engine()
    before = list(sys.path)
    sys.path.insert(0, str(site_packages))
    try:
        module = importlib.import_module(name)
        file = Path(str(module.__file__)).resolve()
        if file != _file_of(site_packages, name).resolve():
            raise ImportError(f"importing gave {file}, not the file in {site_packages}")
    except BaseException:
        _forget_engine()
        sys.path[:] = before
        raise
    return module
