"""The lab's second personality: vLLM's flags, and what they are in the engine that computes here.

As in args.py, only flags that mean something here or that a real command line would carry are known.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from diag.lab.engine import args as server_args
from diag.lab.engine.args import ServerArgs

STANDS_FOR = "0.14.0"
"""The version that the server says it is: the one whose flags and answers it was written after."""

GRAPH_MODES: dict[str, Any] = {"NONE": 0, "PIECEWISE": 1, "FULL": 2, "FULL_AND_PIECEWISE": [2, 1]}


def _parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="vllm serve", allow_abbrev=False)
    p.add_argument("model_tag", nargs="?")
    p.add_argument("--model")
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--port", type=int, default=8000)
    p.add_argument("--served-model-name")
    p.add_argument("--max-model-len", type=int, default=2048)
    p.add_argument("--max-num-seqs", type=int, default=8)
    p.add_argument("--max-num-batched-tokens", type=int, default=8192)
    p.add_argument("--enforce-eager", action=argparse.BooleanOptionalAction, default=False)
    p.add_argument("--compilation-config.cudagraph_mode", "-cc.cudagraph_mode", dest="mode", choices=GRAPH_MODES)
    p.add_argument("--compilation-config", "-cc", type=_json, default={})
    p.add_argument("--speculative-config", type=_json)
    p.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=True)
    p.add_argument("--attention-backend", choices=["TRITON_ATTN"])
    p.add_argument("--seed", type=int, default=0)
    # Accepted because real command lines carry them; they change nothing here.
    p.add_argument("--enable-chunked-prefill", action=argparse.BooleanOptionalAction, default=True)
    p.add_argument("--async-scheduling", action=argparse.BooleanOptionalAction, default=True)
    p.add_argument("--disable-cascade-attn", action=argparse.BooleanOptionalAction, default=False)
    p.add_argument("--disable-custom-all-reduce", action=argparse.BooleanOptionalAction, default=False)
    p.add_argument("--gpu-memory-utilization", type=float, default=0.9)
    p.add_argument("--tensor-parallel-size", "-tp", type=int, choices=[1], default=1)
    p.add_argument("--block-size", type=int, choices=[16], default=16)
    p.add_argument("--kv-cache-dtype", choices=["auto"], default="auto")
    p.add_argument("--dtype", choices=["auto", "float32"], default="auto")
    p.add_argument("--trust-remote-code", action="store_true")
    server_args.add_lab_flags(p)
    return p


def parse(argv: Sequence[str]) -> tuple[ServerArgs, dict[str, Any]]:
    """(the configuration by the names of the engine that computes, `vllm_config` as /server_info tells it). Exits with
    status 2 and a usage line, as argparse does, on a flag or value that is not accepted."""
    parser = _parser()
    raw = parser.parse_args([_dashed(word) for word in argv])
    model = raw.model or raw.model_tag
    if model is None:
        parser.error("the following arguments are required: --model")
    mode = raw.mode or raw.compilation_config.get("cudagraph_mode", "FULL_AND_PIECEWISE")
    if mode not in GRAPH_MODES:
        parser.error(f"argument --compilation-config: no such cudagraph_mode: {mode!r}")
    graph_mode = "NONE" if raw.enforce_eager else str(mode)
    drafts = _drafts(parser, raw.speculative_config)
    args = server_args.resolved(
        parser,
        argparse.Namespace(
            model_path=model,
            host=raw.host,
            port=raw.port,
            served_model_name=raw.served_model_name,
            context_length=raw.max_model_len,
            max_running_requests=raw.max_num_seqs,
            attention_backend="triton",
            disable_cuda_graph=graph_mode == "NONE",
            cuda_graph_max_bs=raw.max_num_seqs,
            disable_radix_cache=not raw.enable_prefix_caching,
            chunked_prefill_size=raw.max_num_batched_tokens,
            speculative_algorithm="NGRAM" if drafts else None,
            speculative_num_steps=drafts,
            speculative_eagle_topk=1,
            speculative_num_draft_tokens=drafts + 1 if drafts else None,
            speculative_ddtree_budget=None,
            speculative_ngram_max_bfs_breadth=1,
            random_seed=raw.seed,
            lab_fault=raw.lab_fault,
            lab_fault_chance=raw.lab_fault_chance,
            lab_fault_above=raw.lab_fault_above,
            lab_fault_past=raw.lab_fault_past,
        ),
    )
    return args, _config(raw, args, GRAPH_MODES[graph_mode])


def _dashed(word: str) -> str:
    """vLLM takes `_` for `-` in a flag's name."""
    name, equals, value = word.partition("=")
    if not name.startswith("--"):
        return word
    first, dot, rest = name.partition(".")
    return first.replace("_", "-") + dot + rest + equals + value


def _json(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"Value {text} cannot be converted to {json.loads}.") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"not a JSON object: {text}")
    return value


def _drafts(parser: argparse.ArgumentParser, config: dict[str, Any] | None) -> int:
    """Tokens that are drafted in a step, 0 without speculation."""
    if config is None:
        return 0
    count = config.get("num_speculative_tokens")
    if config.get("method") != "ngram" or not isinstance(count, int) or count < 1:
        parser.error("argument --speculative-config: the lab drafts by ngram: method and num_speculative_tokens")
    return count


def _config(raw: argparse.Namespace, args: ServerArgs, graph_mode: Any) -> dict[str, Any]:
    return {
        "model_config": {
            "model": args.model_path,
            "served_model_name": args.served_model_name,
            "max_model_len": args.context_length,
            "enforce_eager": raw.enforce_eager,
            "dtype": "torch.float32",
            "seed": args.random_seed,
        },
        "cache_config": {
            "block_size": raw.block_size,
            "cache_dtype": raw.kv_cache_dtype,
            "enable_prefix_caching": raw.enable_prefix_caching,
        },
        "parallel_config": {
            "tensor_parallel_size": raw.tensor_parallel_size,
            "disable_custom_all_reduce": raw.disable_custom_all_reduce,
        },
        "scheduler_config": {
            "max_num_seqs": args.max_running_requests,
            "max_num_batched_tokens": args.chunked_prefill_size,
            "enable_chunked_prefill": raw.enable_chunked_prefill,
            "async_scheduling": raw.async_scheduling,
        },
        "attention_config": {"backend": "TRITON_ATTN"},
        "compilation_config": {"cudagraph_mode": graph_mode},
        "speculative_config": raw.speculative_config,
    }
