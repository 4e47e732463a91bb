"""Ask an endpoint a whole suite, in every way that the suite wants, and judge what comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any

from diag.serving.client import Answer, Prompt
from diag.serving.endpoint import Endpoint
from diag.verdict import suite as asking
from diag.verdict.compare import TextVerdict
from diag.verdict.leads import Lead, Seen, leads
from diag.verdict.probed import Probed, Summary, combine, summary
from diag.verdict.prompts import Suite, SuitePrompt
from diag.verdict.reference import Margin, calibrate
from diag.verdict.telemetry import Sign, signs
from diag.verdict.texts import Record

ABANDON_AFTER_S = 0.5

Say = Callable[[str], None]


@dataclass(frozen=True)
class Taken:
    """One answer and how it was asked for: the way, and the group's size where it was one."""

    how: str
    prompt: SuitePrompt
    answer: Answer


@dataclass(frozen=True)
class Probe:
    """What a probe of an endpoint gave."""

    endpoint: str
    kind: str
    model: str
    suite: str
    reference: str | None
    margin: Margin
    answers: tuple[Probed, ...]
    leads: tuple[Lead, ...]
    signs: tuple[Sign, ...]
    summary: Summary
    effective: Mapping[str, Any] = field(repr=False, default_factory=dict)


def probe(
    endpoint: Endpoint,
    suite: Suite,
    *,
    reference: Endpoint | Mapping[str, Answer] | None = None,
    say: Say = lambda line: None,
) -> Probe:
    """reference: a server that is known to be good, or the lone answers that one gave earlier. Raises LinkLost."""
    good = _good(suite, reference, say)
    taken = list(_asked(endpoint, suite, say))
    say("the verdicts")
    scorer = reference if isinstance(reference, Endpoint) else None
    margin = _margin(suite, scorer, say)
    judge = asking.Judge(endpoint.client, suite, margin.nats, scorer.client if scorer is not None else None)
    answers = tuple(_judged(judge, each, good) for each in taken)
    effective = endpoint.client.server_info()
    told = [answer.answer for answer in taken]
    cached = [count for a in told if isinstance(count := a.meta.get("cached_tokens"), int)]
    again = "again" in suite.ways
    seen = _seen(endpoint, suite, scorer, taken, answers, good, effective)
    return Probe(
        endpoint=endpoint.name,
        kind=endpoint.kind,
        model=endpoint.model,
        suite=suite.name,
        reference=None if reference is None else scorer.name if scorer is not None else "an earlier run",
        margin=margin,
        answers=answers,
        leads=tuple(leads(seen)),
        signs=tuple(signs(effective, [a.accept_length for a in told], cached, cache_asked=again)),
        summary=summary(answers),
        effective=effective,
    )


def _good(suite: Suite, reference: Endpoint | Mapping[str, Answer] | None, say: Say) -> dict[str, Answer]:
    if isinstance(reference, Endpoint):
        say(f"{len(suite.prompts)} prompts to the reference, alone")
        return {p.name: _one(reference, suite, p) for p in suite.prompts}
    return dict(reference or {})


def _margin(suite: Suite, good: Endpoint | None, say: Say) -> Margin:
    """From the reference's answers together, scored by itself: another batch size is what near ties come from."""
    if good is None or good.kind != "sglang":
        return Margin()
    say("the margin of the reference")
    prompts = [Prompt(p.name, suite.rendered(p)) for p in suite.prompts]
    answers = good.client.generate_together(prompts, suite.max_new_tokens)
    scored = []
    for prompt, answer in zip(prompts, answers):
        ids = good.client.tokenize(prompt)
        scores = good.client.score(ids, answer.token_ids) if ids and answer.token_ids else None
        scored.append(scores or [])
    return calibrate(scored)


def _asked(endpoint: Endpoint, suite: Suite, say: Say) -> Iterator[Taken]:
    for number in range(suite.rounds):
        turn = f", round {number + 1} of {suite.rounds}" if suite.rounds > 1 else ""
        for way in suite.ways:
            say(f"{suite.name}: {way}{turn}")
            if way == "together":
                yield from _together(endpoint, suite)
            elif way == "chat":
                for prompt in suite.prompts:
                    if prompt.user is not None:
                        yield Taken(way, prompt, endpoint.chat(prompt.name, prompt.asked, suite.tokens(prompt)))
            else:
                yield from _after(way, endpoint, suite)


def _after(way: str, endpoint: Endpoint, suite: Suite) -> Iterator[Taken]:
    """Each prompt alone, after what the way is named for."""
    if way == "flushed":
        endpoint.client.flush_cache()
    if way == "cancel":
        prompts = [Prompt(p.name, suite.rendered(p)) for p in islice(cycle(suite.prompts), 8)]
        endpoint.abandoned(prompts, 256, ABANDON_AFTER_S)
    for prompt in suite.prompts:
        yield Taken(way, prompt, _one(endpoint, suite, prompt))


def _together(endpoint: Endpoint, suite: Suite) -> Iterator[Taken]:
    everyone = [prompt for prompt in suite.prompts for _ in range(prompt.copies)]
    for size in suite.sizes or (len(everyone),):
        group = list(islice(cycle(everyone), size))
        prompts = [Prompt(p.name, suite.rendered(p)) for p in group]
        answers = endpoint.client.generate_together(prompts, suite.max_new_tokens)
        yield from (Taken(f"together, {size}", p, answer) for p, answer in zip(group, answers))


def _one(endpoint: Endpoint, suite: Suite, prompt: SuitePrompt) -> Answer:
    return endpoint.client.generate(Prompt(prompt.name, suite.rendered(prompt)), suite.tokens(prompt))


def _judged(judge: asking.Judge, taken: Taken, good: Mapping[str, Answer]) -> Probed:
    prompt, answer = taken.prompt, taken.answer
    record = Record(
        id=prompt.name,
        text=None if answer.error else answer.text,
        error=answer.error,
        prompt=prompt.asked,
        token_ids=answer.token_ids,
        finish_reason=answer.finish_reason,
        expect=prompt.expect,
        absent=prompt.absent,
    )
    scored, by_reference = _scored(judge, taken, good)
    return combine(record, taken.how, scored, by_reference=by_reference)


def _scored(judge: asking.Judge, taken: Taken, good: Mapping[str, Answer]) -> tuple[TextVerdict | None, bool]:
    """None where there is nothing but the text: by the chat path, and from servers that do not score."""
    answer = taken.answer
    if taken.how == "chat" or answer.error or not answer.token_ids:
        return None, False
    asked = asking.Asked("together" if taken.how.startswith("together") else "alone", answer)
    wanted = good.get(answer.prompt)
    if wanted is None or wanted.error or not wanted.token_ids:
        return judge.unaided([asked])[0], False
    if wanted.finish_reason == "length" and len(answer.token_ids) < len(wanted.token_ids):
        wanted = _cut(wanted, answer)
    return judge.against([asked], {**good, answer.prompt: wanted})[0], True


def _cut(wanted: Answer, answer: Answer) -> Answer:
    """The reference as far as an answer goes that was given fewer tokens."""
    if answer.finish_reason != "length":
        return wanted
    return Answer(
        wanted.prompt, wanted.text, wanted.token_ids[: len(answer.token_ids)], wanted.finish_reason, meta=wanted.meta
    )


def _seen(
    endpoint: Endpoint,
    suite: Suite,
    reference: Endpoint | None,
    taken: Sequence[Taken],
    answers: Sequence[Probed],
    good: Mapping[str, Answer],
    effective: Mapping[str, Any],
) -> Seen:
    ids = [(t.answer, good[t.prompt.name]) for t in taken if t.prompt.name in good and t.answer.token_ids]
    same = [(mine, theirs) for mine, theirs in ids if mine.token_ids == theirs.token_ids]
    lacks = [{each.rule for each in answer.evidence} & {"expected"} for answer in answers]
    message = next((p.asked for p in suite.prompts if p.user is not None), "Say hello.")
    here = endpoint.chat("template", message, 1)
    there = reference.chat("template", message, 1) if reference is not None else None
    return Seen(
        effective=effective,
        answers=len(answers),
        cut=sum(bool(missing) and a.finish_reason == "length" for missing, a in zip(lacks, answers)),
        compared=len(ids),
        same_ids_other_text=sum(not theirs.text.startswith(mine.text.rstrip("\ufffd")) for mine, theirs in same),
        chat_tokens=_count(here),
        reference_chat_tokens=None if there is None else _count(there),
    )


def _count(answer: Answer) -> int | None:
    tokens = answer.meta.get("prompt_tokens")
    return tokens if isinstance(tokens, int) else None
