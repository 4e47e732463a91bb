"""The installed `TritonAttnBackend`, given just enough of a model runner to build attention metadata.

Four ways through the installed file, as in the engine: `extend` (prefill), `decode`, `verify` eager, and `verify`
replayed from a captured graph, where the metadata lives in static buffers that capture made once.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from diag import bundle

KV_SPLITS = 8


_MODES = bundle.load("kernels.installed").ForwardMode


class VerifyInput(SimpleNamespace):
    """What a DDTree verify step hands to the backend.

    draft_token_num:     D, rows a request in this step = budget + 1
    num_tokens_per_req:  the same, under the name that releases from 0.5.9 on read
    custom_mask:         flat uint8 mask, see `tree.flat_custom_mask`
    """

    def __init__(self, draft_token_num: int, custom_mask: torch.Tensor) -> None:
        super().__init__(
            draft_token_num=draft_token_num,
            num_tokens_per_req=draft_token_num,
            num_tokens_per_batch=draft_token_num,
            custom_mask=custom_mask,
            topk=1,
        )


class InstalledBackend:
    """Builds `ForwardMetadata` by calling the installed file's own methods."""

    def __init__(
        self,
        site_packages: Path,
        *,
        server_args: Any,
        req_to_token: torch.Tensor,
        num_attention_heads: int,
        num_kv_heads: int,
        head_dim: int,
        context_len: int,
    ) -> None:
        """req_to_token: [max requests, context] int32 table of pool slots. Raises what the installed file raises."""
        self.module = bundle.load("kernels.installed").load_backend(site_packages)
        value_buffer = torch.empty(1, num_kv_heads, head_dim)
        runner = SimpleNamespace(
            server_args=server_args,
            req_to_token_pool=SimpleNamespace(size=req_to_token.shape[0], req_to_token=req_to_token),
            token_to_kv_pool=SimpleNamespace(
                get_value_buffer=lambda layer: value_buffer, get_v_head_dim=lambda: head_dim
            ),
            token_to_kv_pool_allocator=None,
            sliding_window_size=None,
            hybrid_gdn_config=None,
            kimi_linear_config=None,
            linear_attn_model_spec=None,
            device="cpu",
            gpu_id=0,
            model_config=SimpleNamespace(
                attention_arch="MHA",
                num_attention_heads=num_attention_heads,
                get_num_kv_heads=lambda tp_size=1: num_kv_heads,
                context_len=context_len,
                v_head_dim=head_dim,
                swa_v_head_dim=head_dim,
                head_dim=head_dim,
                is_encoder_decoder=False,
            ),
        )
        with bundle.load("kernels.builder").nothing_is_compiled():
            self.backend = self.module.TritonAttnBackend(runner)
        self._captured: dict[int, Any] = {}
        self._late: torch.Tensor | None = None

    def extend(self, req_pool_indices: torch.Tensor, prefix_lens: list[int], extend_lens: list[int]) -> Any:
        seq_lens = torch.tensor([p + e for p, e in zip(prefix_lens, extend_lens, strict=True)])
        return self._eager(
            _MODES.EXTEND,
            req_pool_indices,
            seq_lens,
            extend_prefix_lens=torch.tensor(prefix_lens),
            extend_prefix_lens_cpu=prefix_lens,
            extend_seq_lens=torch.tensor(extend_lens),
            extend_seq_lens_cpu=extend_lens,
        )

    def decode(self, req_pool_indices: torch.Tensor, seq_lens: torch.Tensor) -> Any:
        """seq_lens count the token being decoded."""
        return self._eager(_MODES.DECODE, req_pool_indices, seq_lens)

    def verify(self, req_pool_indices: torch.Tensor, seq_lens: torch.Tensor, spec_info: VerifyInput) -> Any:
        """seq_lens: committed prefix of each request, the tree not counted."""
        return self._eager(_MODES.TARGET_VERIFY, req_pool_indices, seq_lens, spec_info=spec_info)

    def _eager(self, mode: Any, req_pool_indices: torch.Tensor, seq_lens: torch.Tensor, **more: Any) -> Any:
        batch = SimpleNamespace(
            forward_mode=mode,
            batch_size=len(req_pool_indices),
            req_pool_indices=req_pool_indices,
            seq_lens=seq_lens,
            seq_lens_sum=int(seq_lens.sum()),
            seq_lens_cpu=seq_lens,
            encoder_lens=None,
            **{"spec_info": None, **more},
        )
        self.backend.init_forward_metadata(batch)
        return self.backend.forward_metadata

    def capture_verify_graphs(self, max_bs: int, draft_token_num: int, context_len: int) -> None:
        """Capture one verify step for each batch size: the metadata's tensors are static from here on.

        The graph runner's width is draft_token_num, as in a fork that has patched its runner: the width in the
        captured *metadata* is whatever the installed file takes it to be.
        """
        self.backend.init_cuda_graph_state(max_bs, max_bs * draft_token_num)
        for bs in range(1, max_bs + 1):
            seq_lens = torch.ones(bs, dtype=torch.int64)
            mask = torch.ones(bs * draft_token_num * (1 + draft_token_num), dtype=torch.uint8)
            self.backend.init_forward_metadata_capture_cuda_graph(
                bs,
                bs * draft_token_num,
                torch.arange(bs),
                seq_lens,
                None,
                _MODES.TARGET_VERIFY,
                VerifyInput(draft_token_num, mask),
            )
            self._captured[bs] = self.backend.forward_metadata

    def replay_verify(
        self, req_pool_indices: torch.Tensor, seq_lens: torch.Tensor, spec_info: VerifyInput, stale_mask: bool = False
    ) -> Any:
        """Refill the static buffers and hand back the metadata captured for this batch size."""
        bs = len(req_pool_indices)
        before = self.backend.cuda_graph_custom_mask.clone() if stale_mask else None
        self.backend.init_forward_metadata_replay_cuda_graph(
            bs,
            req_pool_indices,
            seq_lens,
            int(seq_lens.sum()),
            None,
            _MODES.TARGET_VERIFY,
            spec_info,
            seq_lens,
        )
        if before is not None:  # the lab's fault of that name: the copy into the static buffer comes a step late
            fresh = self.backend.cuda_graph_custom_mask.clone()
            late, self._late = self._late, fresh
            self.backend.cuda_graph_custom_mask.copy_(before if late is None else late)
        return self._captured[bs]
