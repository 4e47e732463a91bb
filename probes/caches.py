"""Folders of compiled kernels: how large, how many files, how old. What is in them is not read."""

from __future__ import annotations

import getpass
import os
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

Json = Dict[str, Any]

LIMIT_S = 2.0
MAX_FILES = 100_000


def places(env: Mapping[str, str]) -> List[Tuple[str, str]]:
    """(name, folder) of each cache, for a process with these variables."""
    home = env.get("HOME") or os.path.expanduser("~")
    try:
        user = env.get("USER") or getpass.getuser()
    except Exception:  # an account that the password file does not know
        user = str(os.geteuid())
    get = env.get
    return [
        ("triton", get("TRITON_CACHE_DIR") or os.path.join(get("TRITON_HOME") or home, ".triton", "cache")),
        ("torch-inductor", get("TORCHINDUCTOR_CACHE_DIR") or "/tmp/torchinductor_" + user),
        ("torch-extensions", get("TORCH_EXTENSIONS_DIR") or home + "/.cache/torch_extensions"),
        ("flashinfer", os.path.join(get("FLASHINFER_WORKSPACE_BASE") or home, ".cache", "flashinfer")),
        ("deep-gemm", get("SGLANG_DG_CACHE_DIR") or get("SGL_DG_CACHE_DIR") or home + "/.cache/deep_gemm"),
        ("vllm", get("VLLM_CACHE_ROOT") or home + "/.cache/vllm"),
        ("cuda", get("CUDA_CACHE_PATH") or home + "/.nv/ComputeCache"),
    ]


def find(envs: Sequence[Mapping[str, str]]) -> List[Json]:
    """Those that exist: {name, path, size_bytes, files, oldest_unix, newest_unix, complete (false: there was more
    than could be counted within the limits)}. envs: of this account, and of the running servers."""
    found: Dict[str, Json] = {}
    deadline = time.monotonic() + LIMIT_S
    for env in envs:
        for name, path in places(env):
            if path not in found and os.path.isdir(path):
                found[path] = dict(_measured(path, deadline), name=name, path=path)
    return list(found.values())


def _measured(path: str, deadline: float) -> Json:
    size = files = 0
    oldest: Optional[float] = None
    newest: Optional[float] = None
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                status = os.lstat(os.path.join(folder, name))
            except OSError:
                continue
            size, files = size + status.st_size, files + 1
            oldest = status.st_mtime if oldest is None else min(oldest, status.st_mtime)
            newest = status.st_mtime if newest is None else max(newest, status.st_mtime)
        if files > MAX_FILES or time.monotonic() > deadline:
            return _document(size, files, oldest, newest, False)
    return _document(size, files, oldest, newest, True)


def _document(size: int, files: int, oldest: Optional[float], newest: Optional[float], complete: bool) -> Json:
    times = {"oldest_unix": oldest, "newest_unix": newest}
    return dict(times, size_bytes=size, files=files, complete=complete)
