"""What the layers say of one answer, made one verdict."""

from __future__ import annotations

import pytest

from diag.verdict.compare import TextVerdict
from diag.verdict.probed import combine
from diag.verdict.prompts import SuitePrompt, load
from diag.verdict.texts import Record

POEM = "The river runs below the bridge and nobody has seen it stop."


def scored(kind: str, reference: str | None = POEM, gap: float | None = 0.0) -> TextVerdict:
    return TextVerdict("a", "alone", kind, POEM, reference, "why", worst_gap_nats=gap)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expect", "told", "by_reference", "verdict", "rules"),
    [
        (POEM, "river", scored("identical"), True, "healthy", []),
        (POEM, "river", scored("garbled", gap=9.0), True, "garbled", ["reference"]),
        (POEM, "river", scored("garbled", gap=9.0), False, "garbled", ["own-scores"]),
        (POEM, "sea", scored("near_tie", reference="The sea, the sea."), True, "garbled", ["expected"]),
        # The reference does not have it either: the model cannot do it, and that is no server's fault.
        (POEM, "sea", scored("near_tie"), True, "healthy", []),
        (POEM, "sea", scored("wrong", reference=None), False, "garbled", ["expected"]),
        ("wis " * 30, None, scored("identical"), True, "healthy", []),
        ("wis " * 30, None, None, False, "garbled", ["loop"]),
        # What its own prefill would have written as well may be what was asked for.
        ("wis " * 30, None, scored("plausible", reference=None), False, "suspect", ["loop"]),
    ],
)
def test_a_reference_outweighs_the_look_and_not_the_answer(
    text: str, expect: str | None, told: TextVerdict | None, by_reference: bool, verdict: str, rules: list[str]
) -> None:
    found = combine(Record(text=text, id="a", expect=expect), "alone", told, by_reference=by_reference)
    assert (found.verdict, [each.rule for each in found.evidence if each.rule != "salad"]) == (verdict, rules)


RIGHT = {
    "weekdays": " Wednesday, Thursday, Friday, Saturday, Sunday, Monday, Tuesday, Wednesday, Thursday",
    "cycle": " c3 d4 e5 f6 a1 b2 c3 d4 e5 f6 a1 b2 c3 d4 e5 f6",
    "numbers": " 13, 14, 15, 16, 17, 18, 19, 20, 21",
    "capitals": " Madrid. The capital of Portugal is Lisbon. The capital of Greece is Athens.",
}


@pytest.mark.parametrize("prompt", load("quick").prompts, ids=lambda prompt: prompt.name)
def test_right_answers_to_the_suite_that_every_probe_asks_look_right(prompt: SuitePrompt) -> None:
    record = Record(text=RIGHT[prompt.name], id=prompt.name, prompt=prompt.asked, expect=prompt.expect)
    found = combine(record, "alone", None, by_reference=False)
    assert (found.verdict, found.evidence) == ("healthy", ())
