"""Caches of compiled kernels: found where an engine would look, measured within limits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from probes import caches


def fill(folder: Path, count: int) -> None:
    for at in range(count):
        path = folder / f"d{at % 3}" / f"{at}.cubin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 10)
        os.utime(path, (1000 + at, 1000 + at))


def test_a_cache_with_its_size_and_ages(tmp_path: Path) -> None:
    fill(tmp_path / ".triton" / "cache", 5)
    fill(tmp_path / "inductor", 1)
    env = {"HOME": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"), "USER": "me"}
    found = {one["name"]: one for one in caches.find([env, env])}
    assert found == {
        "triton": {
            "name": "triton",
            "path": str(tmp_path / ".triton" / "cache"),
            "size_bytes": 50,
            "files": 5,
            "oldest_unix": 1000.0,
            "newest_unix": 1004.0,
            "complete": True,
        },
        "torch-inductor": {
            "name": "torch-inductor",
            "path": str(tmp_path / "inductor"),
            "size_bytes": 10,
            "files": 1,
            "oldest_unix": 1000.0,
            "newest_unix": 1000.0,
            "complete": True,
        },
    }


def test_what_is_too_large_is_counted_in_part_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / ".cache" / "flashinfer", 30)
    (tmp_path / ".cache" / "flashinfer" / "loop").symlink_to(tmp_path / ".cache")
    monkeypatch.setattr(caches, "MAX_FILES", 5)
    [one] = caches.find([{"HOME": str(tmp_path), "USER": "me"}])
    assert (one["name"], one["complete"]) == ("flashinfer", False)
    assert 5 < one["files"] < 30


@pytest.mark.parametrize(
    ("variable", "name", "below"),
    [
        ("TRITON_CACHE_DIR", "triton", ""),
        ("TRITON_HOME", "triton", "/.triton/cache"),
        ("TORCH_EXTENSIONS_DIR", "torch-extensions", ""),
        ("FLASHINFER_WORKSPACE_BASE", "flashinfer", "/.cache/flashinfer"),
        ("SGLANG_DG_CACHE_DIR", "deep-gemm", ""),
        ("VLLM_CACHE_ROOT", "vllm", ""),
        ("CUDA_CACHE_PATH", "cuda", ""),
    ],
)
def test_variables_move_them(variable: str, name: str, below: str) -> None:
    assert dict(caches.places({variable: "/data", "HOME": "/h", "USER": "me"}))[name] == "/data" + below
