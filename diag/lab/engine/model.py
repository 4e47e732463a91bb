"""The model: transformers' own, with attention replaced by ours. Everything but attention is the library's.

A step is one flat row of T tokens from any number of requests ([1, T]); which rows may see which, and which pool
slots they read, is in the step's plans. K and V of the step are written to the pool before they are read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AttentionInterface, AutoModelForCausalLM

from diag.lab.engine.attention import RequestPlan, attend
from diag.lab.engine.faults import Damage, Fault

_NAME = "diag_lab_paged"


class Model:
    """num_slots: size of the KV pool in tokens."""

    def __init__(self, folder: Path, num_slots: int, fault: Fault | None = None) -> None:
        self._fault = fault or Fault()
        AttentionInterface.register(_NAME, self._attention)
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation=_NAME
        ).eval()
        config = self._model.config
        self.num_attention_heads: int = config.num_attention_heads
        self.num_kv_heads: int = config.num_key_value_heads
        self.head_dim: int = config.head_dim
        self.vocab_size: int = config.vocab_size
        shape = (config.num_hidden_layers, num_slots, self.num_kv_heads, self.head_dim)
        self._keys, self._values = torch.zeros(shape), torch.zeros(shape)
        self._step: _Step | None = None
        # The output block is handed back by the allocator uncleared, as on a GPU: a row that the kernel does not
        # write still holds what the last user of the block left there.
        self._out = torch.zeros(0, self.num_attention_heads, self.head_dim)

    @torch.inference_mode()
    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        plans: list[RequestPlan],
        *,
        own_rows: bool,
        logits_of: torch.Tensor | None = None,
        damage: Damage | None = None,
    ) -> torch.Tensor:
        """input_ids, positions, slots: [T] int64. Returns logits [T or len(logits_of), vocab] float32."""
        self._step = _Step(slots, plans, own_rows, damage)
        hidden = self._model.model(
            input_ids=input_ids[None],
            position_ids=positions[None],
            attention_mask={"full_attention": None},
            use_cache=False,
        ).last_hidden_state[0]
        if logits_of is not None:
            hidden = hidden[logits_of]
        logits: torch.Tensor = self._model.lm_head(hidden)
        return logits

    def _attention(
        self, module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float, **_: Any
    ) -> tuple[torch.Tensor, None]:
        """transformers calls this for each layer; query [1, H, T, D], key and value [1, Hkv, T, D]."""
        step, layer = self._step, module.layer_idx
        if step is None:
            raise RuntimeError("attention outside a step")
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        k, v = self._fault.stored(k), self._fault.stored(v)
        self._keys[layer, step.slots], self._values[layer, step.slots] = k, v
        if self._out.shape[0] < q.shape[0]:
            self._out = torch.zeros(q.shape[0], self.num_attention_heads, self.head_dim)
        out = self._out[: q.shape[0]]
        attend(
            q,
            k,
            v,
            out,
            self._keys[layer],
            self._values[layer],
            step.plans,
            own_rows=step.own_rows,
            scaling=scaling,
        )
        if step.damage is not None:
            step.damage(layer, out)
        return out.clone()[None], None

    def take(self, slots: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of what the pool holds there: K and V, each [layers, len(slots), Hkv, D]."""
        return self._keys[:, slots].clone(), self._values[:, slots].clone()

    def put(self, slots: list[int], keys: torch.Tensor, values: torch.Tensor) -> None:
        self._keys[:, slots], self._values[:, slots] = keys, values


class _Step:
    def __init__(self, slots: torch.Tensor, plans: list[RequestPlan], own_rows: bool, damage: Damage | None) -> None:
        self.slots, self.plans, self.own_rows, self.damage = slots, plans, own_rows, damage
