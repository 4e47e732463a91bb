"""The margin that a bisection judges by: as the good configuration's own first run has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from diag.bisect import asking
from diag.serving import suites
from diag.serving.client import Answer, Prompt
from diag.verdict.compare import MARGIN_NATS, Score
from diag.verdict.prompts import Suite
from diag.verdict.reference import LEAST_MARGIN_NATS


def suite(*names: str) -> Suite:
    return Suite.model_validate({"schema": 1, "name": "s", "prompts": [{"name": n, "text": n} for n in names]})


class FakePlan:
    suite = suite("a", "b")
    max_new_tokens = 100

    class space:
        factors: tuple[Any, ...] = ()


@dataclass
class Rounding:
    """A healthy server whose arithmetic leaves `gap` nats between tokens that are as good as equal; where `strays`, it
    parts ways with itself at token 4. rounds: nats between what its decode and its prefill make of a token; None: it
    does not tell what decode made of it."""

    gap: float
    strays: bool = False
    rounds: float | None = None
    speculates: bool = False

    def server_info(self) -> dict[str, Any]:
        return {"speculative_algorithm": "NGRAM" if self.speculates else None}

    def decoded(self, prompt: Prompt, max_new_tokens: int) -> tuple[Answer, list[float]]:
        told = [] if self.rounds is None else [self.rounds - 0.5] * max_new_tokens
        return self.generate(prompt, max_new_tokens), told

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
            Score(self.gap if at == 4 else 0.0, 0.0 if rival and rival[0] == at else None, 0.5)
            for at in range(len(emitted))
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


@pytest.mark.parametrize(
    ("client", "nats"),
    [
        (Rounding(0.0, rounds=1e-5), LEAST_MARGIN_NATS),  # float32: what differs more is no rounding
        (Rounding(0.0, rounds=-0.05), 0.2),
        (Rounding(0.1, rounds=0.001), 0.2),  # the widest that was seen of either
        (Rounding(0.0, rounds=0.2), MARGIN_NATS),  # it narrows the margin and never widens it
        (Rounding(0.0, rounds=1e-5, speculates=True), MARGIN_NATS),  # not asked
    ],
)
def test_what_rounding_can_do_on_a_host_narrows_the_margin(client: Rounding, nats: float) -> None:
    asked = [client.generate(Prompt(name, name), 100) for name in ("a", "b", "c")]
    assert suites.margin(client, suite("a", "b", "c"), asked).nats == pytest.approx(nats)  # type: ignore[arg-type]
