"""The margin that a bisection judges by: as the good configuration's own first run has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from diag.bisect import asking
from diag.serving.client import Answer, Prompt
from diag.verdict.compare import MARGIN_NATS, Score
from diag.verdict.prompts import Suite


class FakePlan:
    suite = Suite.model_validate(
        {"schema": 1, "name": "s", "prompts": [{"name": name, "text": name} for name in ("a", "b")]}
    )
    max_new_tokens = 100

    class space:
        factors: tuple[Any, ...] = ()


@dataclass
class Rounding:
    """A healthy server whose arithmetic leaves `gap` nats between tokens that are as good as equal; where `strays`, it
    parts ways with itself at token 4."""

    gap: float
    strays: bool = False

    def generate(self, prompt: Prompt, max_new_tokens: int) -> Answer:
        ids = [1] * max_new_tokens
        ids[4] = 2 if self.strays else 1
        return Answer(prompt.name, text="1 " * max_new_tokens, token_ids=tuple(ids), finish_reason="length")

    def generate_together(self, prompts: Sequence[Prompt], max_new_tokens: int) -> list[Answer]:
        return [self.generate(prompt, max_new_tokens) for prompt in prompts]

    def tokenize(self, prompt: Prompt) -> list[int]:
        return [7]

    def score(self, ids: Sequence[int], emitted: Sequence[int], rival: tuple[int, int] | None = None) -> list[Score]:
        return [
            Score(self.gap if at == 4 else 0.0, 0.0 if rival and rival[0] == at else None) for at in range(len(emitted))
        ]


def ask(client: Rounding, reference: asking.Reference | None) -> tuple[list[str], asking.Reference]:
    said: Callable[[str], None] = lambda what: None  # noqa: E731
    texts, reference = asking.ask(client, FakePlan, {}, reference, said)  # type: ignore[arg-type]
    return [text.kind for text in texts], reference


@pytest.mark.parametrize(
    ("gap", "nats", "kinds", "strayed"),
    [
        (0.0, MARGIN_NATS, "plausible", "near_tie"),
        (0.3, 0.6, "plausible", "near_tie"),  # larger logits, coarser rounding: the constant would accuse this host
        (3.0, MARGIN_NATS, "garbled", "garbled"),  # no rounding is that coarse: it is not healthy
    ],
)
def test_near_ties_are_what_the_good_configuration_shows_them_to_be(
    gap: float, nats: float, kinds: str, strayed: str
) -> None:
    first, reference = ask(Rounding(gap), None)
    assert (first, reference.margin.nats) == ([kinds] * 2 + ["identical"] * 2, nats)
    assert (reference.margin.tokens, reference.margin.texts) == (400, 4)
    second, kept = ask(Rounding(gap, strays=True), reference)
    assert (second, kept) == ([strayed] * 4, reference)
