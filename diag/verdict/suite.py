"""Ask a suite of a running server, one by one and all at once, and judge every answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from diag.serving.client import Answer, Client, Prompt
from diag.verdict.compare import (
    MARGIN_NATS,
    How,
    Kind,
    Score,
    TextVerdict,
    ending,
    first_divergence,
    judge_alone,
    judge_divergence,
)
from diag.verdict.prompts import Suite

Say = Callable[[str], None]


@dataclass(frozen=True)
class Asked:
    """One answer and how it was asked for."""

    how: How
    answer: Answer


def ask(client: Client, suite: Suite, max_new_tokens: int, say: Say | None = None) -> list[Asked]:
    """Every prompt alone, then all of them at the same moment: some faults need company, some need none."""
    prompts = [Prompt(p.name, suite.rendered(p)) for p in suite.prompts]
    asked = []
    for number, prompt in enumerate(prompts, 1):
        if say is not None:
            say(f"prompt {number}/{len(prompts)} ({prompt.name}), alone")
        asked.append(Asked("alone", client.generate(prompt, max_new_tokens)))
    if len(prompts) > 1:
        if say is not None:
            say(f"{len(prompts)} prompts at once")
        together = client.generate_together(prompts, max_new_tokens)
        asked.extend(Asked("together", answer) for answer in together)
    return asked


def references(asked: list[Asked]) -> dict[str, Answer]:
    """The answers that others are compared with: each prompt's own, alone."""
    return {a.answer.prompt: a.answer for a in asked if a.how == "alone"}


class Judge:
    """Judges the answers of one server; asks it to score where a comparison alone does not settle it."""

    def __init__(
        self, client: Client, suite: Suite, margin_nats: float = MARGIN_NATS, scorer: Client | None = None
    ) -> None:
        """scorer: a server that is known to be good, which scores instead of the one that is judged."""
        self._client, self._margin = scorer or client, margin_nats
        self._prompts = {p.name: Prompt(p.name, suite.rendered(p)) for p in suite.prompts}
        self._expect = {p.name: p.expect for p in suite.prompts}
        self._ids: dict[str, list[int] | None] = {}

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
        scores = self._scores(_with_end(answer, end), rival)
        kind, why, worst = judge_divergence(at, scores, self._margin)
        return self._verdict(asked, kind, why, reference, diverges_at=at, worst=worst, gap=_gap(scores, worst))

    def _alone(self, asked: Asked) -> TextVerdict:
        answer = asked.answer
        if answer.error:
            return self._verdict(asked, "no_answer", answer.error)
        if not answer.token_ids and not answer.text:
            return self._verdict(asked, "garbled", "empty output")
        pattern = self._expect[answer.prompt]
        expected = None if pattern is None else re.search(pattern, answer.text) is not None
        scores = self._scores(answer)
        kind, why, worst = judge_alone(scores, expected, self._margin)
        return self._verdict(asked, kind, why, worst=worst, gap=_gap(scores, worst))

    def _scores(self, answer: Answer, rival: tuple[int, int] | None = None) -> list[Score] | None:
        if answer.prompt not in self._ids:
            self._ids[answer.prompt] = self._client.tokenize(self._prompts[answer.prompt])
        ids = self._ids[answer.prompt]
        if ids is None or not answer.token_ids:
            return None
        return self._client.score(ids, answer.token_ids, rival)

    def _verdict(
        self,
        asked: Asked,
        kind: Kind,
        why: str,
        reference: Answer | None = None,
        *,
        diverges_at: int | None = None,
        worst: int | None = None,
        gap: float | None = None,
    ) -> TextVerdict:
        return TextVerdict(
            prompt=asked.answer.prompt,
            how=asked.how,
            kind=kind,
            text=asked.answer.text,
            reference=reference.text if reference is not None else None,
            why=why,
            diverges_at=diverges_at,
            worst_gap_nats=gap,
            worst_at=worst,
            accept_length=asked.answer.accept_length,
            token_ids=asked.answer.token_ids,
        )


def _with_end(answer: Answer, end: int | None) -> Answer:
    """Where the server says that the answer stopped by itself, the token that ends one is what has to be likely."""
    stopped = answer.finish_reason == "stop" and answer.token_ids[-1:] != (end,)
    return replace(answer, token_ids=(*answer.token_ids, end)) if end is not None and stopped else answer


def _gap(scores: list[Score] | None, worst: int | None) -> float | None:
    return scores[worst].gap_nats if scores and worst is not None else None
