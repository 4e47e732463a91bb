"""The server's command line, in SGLang's own flags, and the configuration that results from it.

Only flags that mean something here, or that a real command line would carry, are known; any other is refused as
SGLang refuses it, so that a plan with a misspelt flag fails in the lab as it would on the GPU host.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from diag.lab.engine.fault_names import FAULTS

ALGORITHMS = ("DDTREE", "NGRAM")


@dataclass(frozen=True)
class ServerArgs:
    """The effective configuration. `draft_token_num`: rows of a verify step, None without speculation."""

    model_path: str
    host: str
    port: int
    served_model_name: str
    context_length: int
    max_running_requests: int
    attention_backend: str
    disable_cuda_graph: bool
    cuda_graph_max_bs: int
    disable_radix_cache: bool
    chunked_prefill_size: int
    speculative_algorithm: str | None
    speculative_num_steps: int
    speculative_eagle_topk: int
    speculative_num_draft_tokens: int | None
    speculative_ddtree_budget: int | None
    speculative_ngram_max_bfs_breadth: int | None
    draft_token_num: int | None
    random_seed: int
    lab_fault: str
    lab_fault_chance: float
    lab_fault_above: int
    lab_fault_past: int
    # what the backend's constructor reads besides
    triton_attention_num_kv_splits: int = 8
    triton_attention_split_tile_size: int | None = None
    enable_deterministic_inference: bool = False
    # lab only
    eos_token_ids: tuple[int, ...] = ()
    num_slots: int = 8192
    batch_wait_s: float = 0.02

    def to_json(self) -> dict[str, Any]:
        """The part that /server_info shows."""
        hidden = {"eos_token_ids", "num_slots", "batch_wait_s"}
        return {name: value for name, value in vars(self).items() if name not in hidden}


def _parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="launch_server", allow_abbrev=False)
    p.add_argument("--model-path", "--model", required=True)
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--port", type=int, default=30000)
    p.add_argument("--served-model-name")
    p.add_argument("--context-length", type=int, default=2048)
    p.add_argument("--max-running-requests", type=int, default=8)
    p.add_argument("--attention-backend", choices=["triton"], default="triton")
    p.add_argument("--disable-cuda-graph", action="store_true")
    p.add_argument("--cuda-graph-max-bs", type=int, default=8)
    p.add_argument("--disable-radix-cache", action="store_true")
    p.add_argument("--chunked-prefill-size", type=int, default=8192)
    p.add_argument("--speculative-algorithm", choices=ALGORITHMS)
    p.add_argument("--speculative-num-steps", type=int)
    p.add_argument("--speculative-eagle-topk", type=int)
    p.add_argument("--speculative-num-draft-tokens", type=int)
    p.add_argument("--speculative-ddtree-budget", type=int)
    p.add_argument("--speculative-ngram-max-bfs-breadth", type=int)
    p.add_argument("--random-seed", type=int, default=0)
    # Accepted because real command lines carry them; they change nothing here.
    p.add_argument("--sampling-backend", default="pytorch")
    p.add_argument("--grammar-backend", default="none")
    p.add_argument("--mem-fraction-static", type=float)
    p.add_argument("--log-level", default="info")
    p.add_argument("--tp-size", "--tp", type=int, choices=[1], default=1)
    p.add_argument("--dtype", choices=["auto", "float32"], default="auto")
    p.add_argument("--device", choices=["cpu"], default="cpu")
    p.add_argument("--trust-remote-code", action="store_true")
    p.add_argument("--skip-server-warmup", action="store_true")
    p.add_argument("--disable-overlap-schedule", action="store_true")
    p.add_argument("--disable-piecewise-cuda-graph", action="store_true")
    p.add_argument("--disable-custom-all-reduce", action="store_true")
    p.add_argument("--kv-cache-dtype", choices=["auto"], default="auto")
    p.add_argument("--page-size", type=int, choices=[1], default=1)
    add_lab_flags(p)
    return p


def add_lab_flags(p: argparse.ArgumentParser) -> None:
    """Lab only: a fault that is known to be there (faults.py)."""
    p.add_argument("--lab-fault", choices=sorted(FAULTS), default="")
    p.add_argument("--lab-fault-chance", type=float, default=1.0)
    p.add_argument("--lab-fault-above", type=int, default=0)
    p.add_argument("--lab-fault-past", type=int, default=0)


def parse(argv: Sequence[str]) -> ServerArgs:
    """Exits with status 2 and a usage line, as argparse does, on a flag or value that is not accepted."""
    parser = _parser()
    return resolved(parser, parser.parse_args(argv))


def resolved(parser: argparse.ArgumentParser, raw: argparse.Namespace) -> ServerArgs:
    """raw: by SGLang's names, whatever the flags were. What does not go together ends as argparse ends."""
    if raw.max_running_requests < 1:
        parser.error("--max-running-requests must be at least 1")
    if not 0 <= raw.lab_fault_chance <= 1:
        parser.error("--lab-fault-chance is a probability")
    block, width, topk = _speculation(parser, raw)
    return ServerArgs(
        model_path=raw.model_path,
        host=raw.host,
        port=raw.port,
        served_model_name=raw.served_model_name or raw.model_path,
        context_length=raw.context_length,
        max_running_requests=raw.max_running_requests,
        attention_backend=raw.attention_backend,
        disable_cuda_graph=raw.disable_cuda_graph,
        cuda_graph_max_bs=raw.cuda_graph_max_bs,
        disable_radix_cache=raw.disable_radix_cache,
        chunked_prefill_size=raw.chunked_prefill_size,
        speculative_algorithm=raw.speculative_algorithm,
        speculative_num_steps=raw.speculative_num_steps or 1,
        speculative_eagle_topk=topk,
        speculative_num_draft_tokens=block,
        speculative_ddtree_budget=raw.speculative_ddtree_budget,
        speculative_ngram_max_bfs_breadth=raw.speculative_ngram_max_bfs_breadth,
        draft_token_num=width,
        random_seed=raw.random_seed,
        lab_fault=raw.lab_fault,
        lab_fault_chance=raw.lab_fault_chance,
        lab_fault_above=raw.lab_fault_above,
        lab_fault_past=raw.lab_fault_past,
    )


def _speculation(parser: argparse.ArgumentParser, raw: argparse.Namespace) -> tuple[int | None, int | None, int]:
    """(the backend's fixed count, the verify step's width, topk).

    DDTREE verifies budget + 1 rows while num_draft_tokens stays the block size: the two need not be equal. NGRAM
    verifies num_draft_tokens rows, as SGLang's own does.
    """
    breadth = raw.speculative_ngram_max_bfs_breadth if raw.speculative_algorithm == "NGRAM" else None
    topk = breadth or raw.speculative_eagle_topk or 1
    if raw.speculative_algorithm is None:
        if raw.speculative_ddtree_budget is not None:
            parser.error("--speculative-ddtree-budget needs --speculative-algorithm DDTREE")
        return None, None, topk
    block = raw.speculative_num_draft_tokens or 8
    budget = raw.speculative_ddtree_budget
    if raw.speculative_algorithm == "NGRAM":
        if budget is not None:
            parser.error("--speculative-ddtree-budget needs --speculative-algorithm DDTREE")
        width = block
    else:
        width = (budget if budget is not None else block - 1) + 1
    if width < 2 or block < 1 or topk < 1:
        parser.error("speculation needs a budget, a block size and a topk of at least 1")
    return block, width, topk
