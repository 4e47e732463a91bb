"""Which fields of a server's own word are shown."""

from __future__ import annotations

# Of some 400 fields of /server_info, those that decide which path runs.
TELLING = (
    "version",
    "model_path",
    "attention_backend",
    "disable_cuda_graph",
    "speculative_algorithm",
    "speculative_num_draft_tokens",
    "speculative_ddtree_budget",
    "speculative_eagle_topk",
    "speculative_num_steps",
    "draft_token_num",
    "kv_cache_dtype",
    "dtype",
    "quantization",
    "tp_size",
    "dp_size",
    "page_size",
    "disable_radix_cache",
    "chunked_prefill_size",
    "disable_overlap_schedule",
    # vLLM's names, where they are others
    "enforce_eager",
    "speculative_config",
    "enable_prefix_caching",
    "async_scheduling",
    "tensor_parallel_size",
    "block_size",
)
