"""How fast the kernels of this repository are on this GPU, beside the installed one and the memory's own speed: tables.

    python benchmarks/kernels.py SITE_PACKAGES [--only verify,audit,sweep]

SITE_PACKAGES holds `sglang`. Needs an NVIDIA GPU, torch and triton. Every line is timed in the same call as the copy
that it is compared with; inputs are random, page order too, and the cache is flushed before each run (do_bench).
`floor` is the time in which the keys, values and indices of the prefix are read once at the copy's speed. Errors are
against float64 on the same inputs, for requests short enough for that.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import functools
import inspect
import itertools
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import triton
from triton.testing import do_bench

from kernels import differential, installed, mask_audit, reference, tree_verify
from kernels.step import Shape, made_up

COPIED_BYTES = 1 << 33
Row = tuple[object, ...]


def copy_rate() -> float:
    """Bytes a second that a device-to-device copy reads and writes."""
    source = torch.empty(COPIED_BYTES // 2, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    ms = do_bench(lambda: target.copy_(source), warmup=50, rep=300, return_mode="median")
    return float(COPIED_BYTES / ms * 1e3)


def microseconds(call: Callable[[], Any], rep: int = 200) -> float:
    return float(do_bench(call, warmup=25, rep=rep, return_mode="median")) * 1e3


def replayed(call: Callable[[], Any]) -> Callable[[], Any]:
    """`call` as a CUDA graph: what a server replays, without the launches' own time on the CPU."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def verify(fwd: Callable[..., Any], rate: float) -> Iterator[Row]:
    yield ("D", "bs", "prefix", "floor us", "ours us", "x floor", "installed us", "x ours", "error ours", "installed")
    for width, bs, prefix in itertools.product((8, 17), (1, 4, 16, 64), (1024, 8192, 32768)):
        shape = Shape(bs, width, prefix, heads=32, kv_heads=8, Lq=128, Lv=128, dtype="bfloat16", ragged=False)
        step = made_up(shape, seed=1, device="cuda")
        out, theirs = (
            torch.empty(step.out_shape, dtype=step.q.dtype, device="cuda"),
            torch.empty(step.out_shape, dtype=step.q.dtype, device="cuda"),
        )
        given = differential.arguments(fwd, step, theirs)
        ours = microseconds(replayed(functools.partial(tree_verify.attend, step, out)))
        their = microseconds(replayed(functools.partial(fwd, **given)))
        floor = step.kv_bytes() / rate * 1e6
        errors: tuple[object, object] = ("-", "-")
        if bs * prefix <= 1 << 16:
            want = reference.attend(step)
            errors = tuple(f"{reference.relative_error(x, want):.1e}" for x in (out, theirs))  # type: ignore[assignment]
        told = (f"{floor:.1f}", f"{ours:.1f}", f"{ours / floor:.2f}", f"{their:.1f}", f"{their / ours:.1f}")
        yield (width, bs, prefix, *told, *errors)


SWEPT = ((1, 1024), (1, 8192), (4, 8192), (64, 8192))


def cuts(width: int) -> list[tree_verify.Plan]:
    """Cuts worth trying for 4 heads a group; how many stretches is tried apart."""
    tiles = ((64, 16), (128, 0)) if width * 4 > 64 else ((32, 0),)
    return [
        tree_verify.Plan(m, n, 2, warps, stages, x)
        for (m, x), n, warps, stages in itertools.product(tiles, (32, 64, 128), (4, 8), (2, 3, 4, 5))
        if n * stages <= 384
    ]


def _compile(width: int, plan: tree_verify.Plan) -> None:
    """In a process of its own: fills the cache of compiled kernels."""
    step = made_up(Shape(1, width, 1024, 32, 8, 128, 128, "bfloat16"), seed=1, device="cuda")
    for splits in (1, 2):
        with contextlib.suppress(Exception):
            tree_verify.attend(step, None, plan._replace(splits=splits))


def sweep(rate: float) -> Iterator[Row]:
    yield ("D", "bs", "prefix", "floor us", "us", "x floor", *tree_verify.Plan._fields)
    widths = (8, 17)
    jobs = [(width, plan) for width in widths for plan in cuts(width)]
    with concurrent.futures.ProcessPoolExecutor(12, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_compile, *zip(*jobs), chunksize=2))
    for width, (bs, prefix) in itertools.product(widths, SWEPT):
        step = made_up(Shape(bs, width, prefix, 32, 8, 128, 128, "bfloat16", ragged=False), seed=1, device="cuda")
        out = torch.empty(step.out_shape, dtype=step.q.dtype, device="cuda")
        found = []
        for plan in cuts(width):
            programs = bs * 8
            for times in (0, 1, 2, 4):
                splits = max(1, min(64, times * 132 // programs, prefix // plan.block_n))
                one = plan._replace(splits=splits)
                if any(one == p for _, p in found):
                    continue
                with contextlib.suppress(Exception):  # what does not fit into shared memory is no candidate
                    found.append(
                        (microseconds(replayed(functools.partial(tree_verify.attend, step, out, one)), rep=10), one)
                    )
        floor = step.kv_bytes() / rate * 1e6
        for took, plan in sorted(found)[:5]:
            yield (width, bs, prefix, f"{floor:.1f}", f"{took:.1f}", f"{took / floor:.2f}", *plan)


def audit(rate: float) -> Iterator[Row]:
    yield ("bs", "D", "prefix", "offsets", "cells", "us", "GB/s of cells read", "of the copy", "GB/s of distinct cells")
    for bs, width, prefix, setting in ((64, 33, 32768, 33), (64, 33, 32768, 8), (64, 17, 8192, 8)):
        step = made_up(Shape(bs, width, prefix, 1, 1, 16, 16, ragged=False), seed=1, device="cuda")
        mask, starts = step.custom_mask, step.mask_indptr
        if mask is None or starts is None:
            raise ValueError("a step without a mask")
        lens = torch.full((bs,), prefix, device="cuda")
        right = mask_audit.Offsets(lens, step.qo_indptr, starts, 1 << 20)
        wrong = torch.arange(bs, device="cuda") * setting * (prefix + setting)
        got = right._replace(mask_indptr=wrong if setting != width else starts[:-1])
        rows = mask_audit.rows_of(got, right, whole_rows=True)
        took = microseconds(replayed(functools.partial(mask_audit.count, mask, rows, prefix + width)))
        read = 2 * mask.numel()
        told = (f"{read / took / 1e3:.0f}", f"{read / took * 1e6 / rate:.0%}", f"{mask.numel() / took / 1e3:.0f}")
        yield (bs, width, prefix, "right" if setting == width else f"of {setting}", mask.numel(), f"{took:.1f}", *told)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("site_packages", type=Path)
    parser.add_argument("--only", default="verify,audit", help="and sweep: many cuts of the work")
    given = parser.parse_args()
    module, really = installed.load_extend_attention(given.site_packages, "auto")
    rate = copy_rate()
    name = torch.cuda.get_device_name()
    nothing = torch.empty(1, device="cuda")
    idle = microseconds(replayed(lambda: nothing.zero_()))
    print(f"a graph of one kernel that does next to nothing: {idle:.1f} us; all times below hold as much")
    print(f"{name}, torch {torch.__version__}, triton {triton.__version__}, copy {rate / 1e9:.0f} GB/s")
    print(f"installed: {module.__file__}, imported {'with the engine' if really else 'alone'}")
    print(", ".join(inspect.signature(module.extend_attention_fwd).parameters))
    tables: dict[str, Callable[[], Iterator[Row]]] = {
        "verify": lambda: verify(module.extend_attention_fwd, rate),
        "audit": lambda: audit(rate),
        "sweep": lambda: sweep(rate),
    }
    for table in given.only.split(","):
        for line in tables[table]():
            print("| " + " | ".join(map(str, line)) + " |", flush=True)
        print()


if __name__ == "__main__":
    main()
