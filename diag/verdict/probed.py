"""One answer of a probe and all that the layers say of it, combined into one verdict. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from diag.verdict.compare import TextVerdict
from diag.verdict.shape.values import Evidence
from diag.verdict.statistics import Rate, excluded_rate, rate, requests_for_clean
from diag.verdict.texts import Record, Verdict, judge, lacking

LOOKS = frozenset({"salad", "loop", "character-run", "token-run"})
"""Rules that only say what a text looks like."""

PROPERTIES = ("expected", "unparsed")
"""Rules that say what a right answer lacks."""


@dataclass(frozen=True)
class Probed:
    """how: the way it was asked (`prompts.Way`), with the group's size where it was one."""

    prompt: str
    how: str
    verdict: Verdict
    evidence: tuple[Evidence, ...]
    text: str
    token_ids: tuple[int, ...] = ()
    finish_reason: str = ""
    accept_length: float | None = None
    reference: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "prompt": self.prompt,
            "how": self.how,
            "verdict": self.verdict,
            "evidence": [each.to_json() for each in self.evidence],
            "text": self.text,
            "token_ids": list(self.token_ids),
            "finish_reason": self.finish_reason,
            "accept_length": self.accept_length,
            "reference": self.reference,
        }


def combine(record: Record, how: str, scored: TextVerdict | None, *, by_reference: bool) -> Probed:
    """Shape and property by the text itself; scored: what the log-probabilities say, None where there are none.

    A reference outweighs the look of a text: what it would have written as well is healthy, however odd it looks.
    """
    judged = judge(record)
    found = list(judged.evidence)
    verdict = judged.verdict
    if scored is not None and scored.kind != "no_answer":
        certain = by_reference and scored.healthy
        if certain:
            found = [each for each in found if each.rule in (*PROPERTIES, "absent", "replaced")]
            if scored.reference is not None:  # what it lacks as well, the model itself cannot do
                neither = lacking(scored.reference, record.finish_reason, record.expect, record.parses)
                found = [each for each in found if each.rule not in {lack.rule for lack in neither}]
        elif scored.healthy and scored.worst_gap_nats is not None:
            # Its own prefill would have written this: odd, and perhaps asked for.
            found = [replace(each, weight="suspect") if each.rule in LOOKS else each for each in found]
        elif not scored.healthy and scored.kind != "wrong":  # `wrong` is the property's own evidence
            found.insert(0, _of_scores(scored, record.text or "", by_reference))
        weights = {each.weight for each in found}
        scores_told = scored.worst_gap_nats is not None or by_reference
        verdict = "garbled" if "garbled" in weights else "suspect" if weights else verdict
        if not weights:
            verdict = "healthy" if scores_told else judged.verdict
    return Probed(
        prompt=str(record.id or ""),
        how=how,
        verdict=verdict,
        evidence=tuple(found),
        text=record.text or "",
        token_ids=record.token_ids,
        finish_reason=record.finish_reason,
        accept_length=scored.accept_length if scored is not None else None,
        reference=scored.reference if scored is not None else None,
    )


def _of_scores(scored: TextVerdict, text: str, by_reference: bool) -> Evidence:
    numbers: Mapping[str, Any] = {
        "kind": scored.kind,
        "worst_gap_nats": scored.worst_gap_nats,
        "worst_at_token": scored.worst_at,
        "diverges_at_token": scored.diverges_at,
    }
    rule = "reference" if by_reference else "own-scores"
    return Evidence(rule, "garbled", (0, len(text)), scored.why, numbers)


@dataclass(frozen=True)
class Summary:
    """rate: garbled answers of those that could be judged. to_exclude: clean requests that exclude that rate; excluded:
    the smallest rate that these clean answers exclude, where none was garbled."""

    rate: Rate
    suspect: int
    unknown: int
    to_exclude: int | None
    excluded: float | None

    def to_json(self) -> dict[str, Any]:
        return {
            "garbled": self.rate.garbled,
            "judged": self.rate.tried,
            "suspect": self.suspect,
            "unknown": self.unknown,
            "rate_low": self.rate.low,
            "rate_high": self.rate.high,
            "requests_to_exclude": self.to_exclude,
            "excluded_rate": self.excluded,
        }


def summary(answers: Sequence[Probed]) -> Summary:
    judged = [each for each in answers if each.verdict != "unknown"]
    found = rate(sum(each.verdict == "garbled" for each in judged), len(judged))
    return Summary(
        found,
        sum(each.verdict == "suspect" for each in judged),
        len(answers) - len(judged),
        requests_for_clean(found.share),
        excluded_rate(len(judged)) if judged and not found.garbled else None,
    )
