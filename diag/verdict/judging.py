"""Judge the answers to a suite: against the good configuration's, or each by itself. Pure; scores are asked for
through a function that is passed in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from diag.verdict.answers import Answer, Asked
from diag.verdict.compare import (
    MARGIN_NATS,
    Kind,
    Score,
    TextVerdict,
    ending,
    first_divergence,
    judge_alone,
    judge_divergence,
)
from diag.verdict.prompts import Suite
from diag.verdict.texts import lacking

Scorer = Callable[[Answer, tuple[int, int] | None], list[Score] | None]
"""(answer, rival) -> a score for each of its tokens, teacher-forced after its prompt; None where there are none. rival:
(index, token) whose gap is wanted as well."""


class Judge:
    """Judges the answers of one server; wants scores only where a comparison alone does not settle it."""

    def __init__(self, suite: Suite, score: Scorer, margin_nats: float = MARGIN_NATS) -> None:
        """score: by the server that is judged, or better by one that is known to be good."""
        self._score, self._margin = score, margin_nats
        self._prompts = {p.name: p for p in suite.prompts}

    def against(self, asked: list[Asked], reference: Mapping[str, Answer]) -> list[TextVerdict]:
        """Each answer against the good configuration's."""
        end = ending((r.token_ids, r.finish_reason == "stop") for r in reference.values())
        return [self._compared(a, reference[a.answer.prompt], end) for a in asked]

    def unaided(self, asked: list[Asked]) -> list[TextVerdict]:
        """Each answer by itself: the model's own scores, and what the prompt says of a right answer."""
        return [self._alone(a) for a in asked]

    def _compared(self, asked: Asked, reference: Answer, end: int | None) -> TextVerdict:
        answer = asked.answer
        if answer.error:
            return self._verdict(asked, "no_answer", answer.error, reference)
        at = first_divergence(answer.token_ids, reference.token_ids)
        if at is None:
            if not reference.text.startswith(answer.text.rstrip("\ufffd")):
                why = "the same token ids as the good configuration's, another text: the detokeniser"
                return self._verdict(asked, "garbled", why, reference)
            return self._verdict(asked, "identical", "token for token the same", reference)
        rival = (at, reference.token_ids[at]) if at < len(reference.token_ids) else None
        scores = self._scores(with_end(answer, end), rival)
        kind, why, worst = judge_divergence(at, scores, self._margin)
        return self._verdict(asked, kind, why, reference, diverges_at=at, worst=worst, scores=scores)

    def _alone(self, asked: Asked) -> TextVerdict:
        answer = asked.answer
        if answer.error:
            return self._verdict(asked, "no_answer", answer.error)
        if not answer.token_ids and not answer.text:
            return self._verdict(asked, "garbled", "empty output")
        asked_for = self._prompts[answer.prompt]
        lacks = lacking(answer.text, answer.finish_reason, asked_for.expect, asked_for.parses)
        expected = None if asked_for.expect is None and asked_for.parses is None else not lacks
        scores = self._scores(answer)
        kind, why, worst = judge_alone(scores, expected, self._margin)
        return self._verdict(asked, kind, why, worst=worst, scores=scores)

    def _scores(self, answer: Answer, rival: tuple[int, int] | None = None) -> list[Score] | None:
        return self._score(answer, rival) if answer.token_ids else None

    def _verdict(
        self,
        asked: Asked,
        kind: Kind,
        why: str,
        reference: Answer | None = None,
        *,
        diverges_at: int | None = None,
        worst: int | None = None,
        scores: Sequence[Score] | None = None,
    ) -> TextVerdict:
        emitted = (scores or ())[: len(asked.answer.token_ids)]
        pieces = tuple(score.piece for score in emitted)
        return TextVerdict(
            prompt=asked.answer.prompt,
            how=asked.how,
            kind=kind,
            text=asked.answer.text,
            reference=reference.text if reference is not None else None,
            why=why,
            diverges_at=diverges_at,
            worst_gap_nats=scores[worst].gap_nats if scores and worst is not None else None,
            worst_at=worst,
            accept_length=asked.answer.accept_length,
            token_ids=asked.answer.token_ids,
            gaps_nats=tuple(round(score.gap_nats, 3) for score in emitted),
            pieces=pieces if all(pieces) else (),
        )


def with_end(answer: Answer, end: int | None) -> Answer:
    """Where the server says that the answer stopped by itself, the token that ends one is what has to be likely."""
    stopped = answer.finish_reason == "stop" and answer.token_ids[-1:] != (end,)
    return replace(answer, token_ids=(*answer.token_ids, end)) if end is not None and stopped else answer
