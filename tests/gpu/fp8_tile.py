"""A kernel of our own that Triton 3.6.0 compiles wrongly for Hopper: no SGLang in it. Not collected by pytest: run it.

    python tests/gpu/fp8_tile.py

Scores of one tile of queries in two dots, as attention with heads of 192 makes them (128, and 64 of rotary positions):
`dot(q, k) + dot(q_pe, k_pe)`, everything rounded to fp8 first. Each tile and number of warps in a process of its own,
since the wrong one reads shared memory that is not there and takes its process with it. Prints the largest error
against torch: 64 rows by 8 warps is what SGLang 0.5.16 and later choose for such heads on Hopper.
"""

from __future__ import annotations

import subprocess
import sys

import torch
import triton
import triton.language as tl

KEYS, HEAD, ROTARY = 512, 128, 64


@triton.jit
def scores(Q, QP, K, KP, V, Out, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, P: tl.constexpr, n):
    """The weighted mean of V's rows, by softmax without a maximum (scores are small here)."""
    row, d, pe, key = tl.arange(0, M), tl.arange(0, D), tl.arange(0, P), tl.arange(0, N)
    q = tl.load(Q + row[:, None] * D + d[None, :])
    q_pe = tl.load(QP + row[:, None] * P + pe[None, :])
    total = tl.zeros([M], tl.float32)
    mean = tl.zeros([M, D], tl.float32)
    for at in range(0, n, N):
        k = tl.load(K + (at + key)[None, :] * D + d[:, None])
        k_pe = tl.load(KP + (at + key)[None, :] * P + pe[:, None])
        v = tl.load(V + (at + key)[:, None] * D + d[None, :])
        weight = tl.exp((tl.dot(q.to(k.dtype), k) + tl.dot(q_pe.to(k_pe.dtype), k_pe)) * 0.05)
        total += tl.sum(weight, 1)
        mean += tl.dot(weight.to(v.dtype), v)
    tl.store(Out + row[:, None] * D + d[None, :], mean / total[:, None])


def error(rows: int, warps: int) -> float:
    """Largest relative error of a row."""
    torch.manual_seed(0)
    fp8 = torch.float8_e4m3fn
    q, q_pe = (torch.randn(rows, size, device="cuda").bfloat16() for size in (HEAD, ROTARY))
    k, k_pe, v = (torch.randn(KEYS, size, device="cuda").to(fp8) for size in (HEAD, ROTARY, HEAD))
    out = torch.full((rows, HEAD), float("nan"), device="cuda")
    scores[(1,)](q, q_pe, k, k_pe, v, out, rows, 64, HEAD, ROTARY, KEYS, num_warps=warps, num_stages=1)
    torch.cuda.synchronize()
    wanted = ((q.to(fp8).float() @ k.float().T + q_pe.to(fp8).float() @ k_pe.float().T) * 0.05).softmax(-1) @ v.float()
    return float(((out - wanted).norm(dim=1) / wanted.norm(dim=1)).nan_to_num(float("inf")).max())


def main() -> None:
    if len(sys.argv) == 3:
        print(f"{error(int(sys.argv[1]), int(sys.argv[2])):.3f}")
        return
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    for rows in (32, 64, 128):
        for warps in (4, 8):
            done = subprocess.run([sys.executable, __file__, str(rows), str(warps)], capture_output=True, text=True)
            said = done.stdout.strip() or done.stderr.strip().splitlines()[0][:90]
            last = next((line for line in reversed(done.stderr.splitlines()) if "error" in line.lower()), said)
            print(f"{rows} rows, {warps} warps: {said if done.returncode == 0 else last[:90]}")


if __name__ == "__main__":
    main()
