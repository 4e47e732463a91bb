"""Faults that the lab's server can be given, each a mechanism of the running engine and not of its answers.

    --lab-fault NAME            which
    --lab-fault-chance P        drawn once at the start of the server: it has the fault with this probability
    --lab-fault-above N         only in steps with more than N requests
    --lab-fault-past N          only for tokens at positions from N on

The fault that the lab is made for is none of these: it is in the installed file. These are for measuring how well a
verdict finds what is known to be there (`benchmarks/verdicts.py`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from diag.lab.engine.attention import RequestPlan
from diag.lab.engine.fault_names import FAULTS

if TYPE_CHECKING:
    from diag.lab.engine.model import Model

__all__ = ["FAULTS", "Fault", "draw"]

Stage = Literal["prefill", "decode", "verify"]
Damage = Callable[[int, torch.Tensor], None]

NAN_LAYER = 10
BLOCK = 16
"""Tokens of a KV block."""

PAGE = 8
"""Tokens that the prefix cache reuses at a time."""

LEAST_SHARED = 3
"""Tokens at the beginning of two prompts that make the stale cache take them for the same."""


@dataclass
class Fault:
    """name: one of FAULTS, or "" for none. Every method leaves things as they are where the fault does not strike."""

    name: str = ""
    above: int = 0
    past: int = 0
    stop_ids: frozenset[int] = frozenset()
    _cached: tuple[list[int], torch.Tensor, torch.Tensor] | None = field(default=None, repr=False)

    def plans(self, plans: list[RequestPlan], positions: Sequence[int], stage: Stage) -> list[RequestPlan]:
        """uninitialised-rows: the last request's row of a decode step, and the later half of every verify step's, are
        not computed: they keep what the block's last user left there."""
        if self.name != "uninitialised-rows" or stage == "prefill" or len(plans) <= self.above:
            return plans
        if stage == "verify":
            return [self._halved(plan) if self._reaches(positions, plan.rows) else plan for plan in plans]
        last = plans[-1]
        return [*plans[:-1], _cut(last, 0)] if self._reaches(positions, last.rows) else plans

    def _halved(self, plan: RequestPlan) -> RequestPlan:
        return _cut(plan, (plan.rows.stop - plan.rows.start) // 2)

    def _reaches(self, positions: Sequence[int], rows: slice) -> bool:
        return positions[rows.stop - 1] >= self.past

    def damage(self, positions: Sequence[int], requests: int, stage: Stage) -> Damage | None:
        """nan-layer: what one layer's attention gives for the tokens of a decode or verify step is no number."""
        if self.name != "nan-layer" or stage == "prefill" or requests <= self.above:
            return None
        rows = [row for row, position in enumerate(positions) if position >= self.past]

        def strike(layer: int, out: torch.Tensor) -> None:
            if layer == NAN_LAYER and rows:
                out[rows] = float("nan")

        return strike

    def stored(self, x: torch.Tensor) -> torch.Tensor:
        """wrong-dtype: K and V go through an 8-bit float without a scale on their way into the pool."""
        return x.to(torch.float8_e5m2).to(x.dtype) if self.name == "wrong-dtype" else x

    def stale_mask(self) -> bool:
        return self.name == "stale-mask"

    def swapped(self, slots: list[list[int]]) -> bool:
        """swapped-block: one KV block of two prompts that were prefilled together belongs to the other one from now
        on. slots: of each request; changed in place. Whether anything was."""
        if self.name != "swapped-block" or len(slots) < 2 or len(slots) <= self.above:
            return False
        one, other = slots[0], slots[1]
        end = min(len(one), len(other)) - 1
        start = max(end - BLOCK, 0)
        if end <= max(start, self.past):
            return False
        one[start:end], other[start:end] = other[start:end], one[start:end]
        return True

    def reused(self, input_ids: list[int]) -> int:
        """stale-prefix: how many tokens at the beginning are taken from the cache, which holds another prompt's."""
        if self.name != "stale-prefix" or self._cached is None:
            return 0
        before = self._cached[0]
        if before[:LEAST_SHARED] != input_ids[:LEAST_SHARED] or len(input_ids) <= self.past:
            return 0
        return min(len(before), len(input_ids) - 1) // PAGE * PAGE

    def restore(self, model: Model, slots: list[int]) -> None:
        """Write the cached K and V where the request looks for those of its own prefix."""
        if self._cached is not None and slots:
            _, keys, values = self._cached
            model.put(slots, keys[:, : len(slots)], values[:, : len(slots)])

    def keep(self, model: Model, input_ids: list[int], slots: list[int]) -> None:
        if self.name == "stale-prefix":
            self._cached = (list(input_ids), *model.take(slots))

    def ends(self, output_ids: list[int]) -> bool:
        """early-end: another token is taken for the end of the answer."""
        return self.name == "early-end" and len(output_ids) > 2 and output_ids[-1] in self.stop_ids

    def detokenised(self, ids: Sequence[int], vocab_size: int) -> list[int]:
        """detokeniser: the ids that the text is made of, by a table that is off by one."""
        return [min(i + 1, vocab_size - 1) for i in ids] if self.name == "detokeniser" else list(ids)

    def rendered(self, messages: list[dict[str, Any]]) -> str | None:
        """wrong-template: another model family's chat template; None for the model's own."""
        if self.name != "wrong-template":
            return None
        return "".join(f"[INST] {message.get('content', '')} [/INST]" for message in messages)


def draw(name: str, chance: float, above: int, past: int, tokenizer: Any) -> Fault:
    """The fault as this server has it: none, if chance does not want it."""
    if not name or random.SystemRandom().random() >= chance:
        return Fault()
    stops = frozenset(i for text in (".", ",", ";", ":") for i in tokenizer.encode(text))
    return Fault(name, above=above, past=past, stop_ids=stops)


def _cut(plan: RequestPlan, rows: int) -> RequestPlan:
    return replace(plan, rows=slice(plan.rows.start, plan.rows.start + rows), mask=plan.mask[:rows])
