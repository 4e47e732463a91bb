"""A kernel of our own that Triton 3.6.0 compiles wrongly for Hopper: no SGLang in it. Not collected by pytest: run it.

    python tests/gpu/fp8_tile.py

One tile of queries over a pool of fp8 keys and values, gathered by slot as a server's are. Scores come from two dots,
as attention with heads of 192 makes them (128, and 64 of rotary positions), with queries rounded to fp8 as well. Each
tile and number of warps runs in a process of its own: the wrong one reads shared memory that is not there and takes its
process with it. Prints the largest error against torch. 64 rows by 8 warps is what SGLang 0.5.13 and later choose for
such heads on Hopper. With keys that lie side by side instead of gathered ones it was right in all of them.
"""

from __future__ import annotations

import subprocess
import sys

import torch
import triton
import triton.language as tl

POOL, KEYS, HEAD, ROTARY = 1024, 127, 128, 64


@triton.jit
def attend(Q, QP, K, KP, V, Slots, Out, n, scale, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, P: tl.constexpr):
    row, d, pe, key = tl.arange(0, M), tl.arange(0, D), tl.arange(0, P), tl.arange(0, N)
    q = tl.load(Q + row[:, None] * D + d[None, :])
    q_pe = tl.load(QP + row[:, None] * P + pe[None, :])
    acc = tl.zeros([M, D], tl.float32)
    norm = tl.zeros([M], tl.float32)
    most = tl.zeros([M], tl.float32) - float("inf")
    for at in range(0, n, N):
        is_key = (at + key) < n
        slot = tl.load(Slots + at + key, mask=is_key, other=0)
        k = tl.load(K + slot[None, :] * D + d[:, None], mask=is_key[None, :], other=0.0)
        s = tl.dot(q.to(k.dtype), k)
        k_pe = tl.load(KP + slot[None, :] * P + pe[:, None], mask=is_key[None, :], other=0.0)
        s += tl.dot(q_pe.to(k_pe.dtype), k_pe)
        s = tl.where(is_key[None, :], s * scale, float("-inf"))
        higher = tl.maximum(tl.max(s, 1), most)
        rescale = tl.exp(most - higher)
        p = tl.exp(s - higher[:, None])
        norm = norm * rescale + tl.sum(p, 1)
        v = tl.load(V + slot[:, None] * D + d[None, :], mask=is_key[:, None], other=0.0)
        acc = acc * rescale[:, None] + tl.dot(p.to(v.dtype), v)
        most = higher
    tl.store(Out + row[:, None] * D + d[None, :], acc / norm[:, None])


def error(rows: int, warps: int) -> float:
    """Largest relative error of a row; that of rounding alone is 0.04."""
    torch.manual_seed(0)
    fp8, scale = torch.float8_e4m3fn, 0.05
    q, q_pe = (torch.randn(rows, size, device="cuda").bfloat16() for size in (HEAD, ROTARY))
    k, k_pe, v = (torch.randn(POOL, size, device="cuda").to(fp8) for size in (HEAD, ROTARY, HEAD))
    slots = torch.randperm(POOL, device="cuda")[:KEYS]
    out = torch.full((rows, HEAD), float("nan"), device="cuda")
    attend[(1,)](q, q_pe, k, k_pe, v, slots, out, KEYS, scale, rows, 64, HEAD, ROTARY, num_warps=warps, num_stages=1)
    torch.cuda.synchronize()
    scores = q.float() @ k[slots].float().T + q_pe.float() @ k_pe[slots].float().T
    wanted = (scores * scale).softmax(-1) @ v[slots].float()
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
