"""Ask an endpoint a whole suite, in every way that the suite wants, and judge what comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from typing import Any

from diag.serving import suites
from diag.serving.client import Prompt
from diag.serving.endpoint import Endpoint
from diag.serving.suites import Scoring
from diag.verdict import telemetry
from diag.verdict.answers import Answer, Asked
from diag.verdict.compare import TextVerdict
from diag.verdict.judging import Judge
from diag.verdict.leads import Lead, Seen, leads
from diag.verdict.probed import PROPERTIES, Probed, Summary, combine, summary
from diag.verdict.prompts import Suite, SuitePrompt
from diag.verdict.reference import Margin
from diag.verdict.shape.values import Evidence
from diag.verdict.telemetry import Sign, signs
from diag.verdict.texts import Record, judge

ABANDON_AFTER_S = 0.5

CHAT_TOKENS = 48
"""New tokens of the one message that goes through the chat template to see whether only that path garbles."""

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
    scorer = reference if isinstance(reference, Endpoint) else None
    good = _good(suite, reference, say)
    chats = _chats(suite, scorer)
    before = _replays(endpoint)
    taken = list(_asked(endpoint, suite, say))
    say("the verdicts")
    margin = _margin(suite, scorer, good, say)
    judging = Judge(suite, Scoring((scorer or endpoint).client, suite), margin.nats)
    answers = tuple(_judged(judging, each, good, chats) for each in taken)
    effective = endpoint.client.server_info()
    return Probe(
        endpoint=endpoint.name,
        kind=endpoint.kind,
        model=endpoint.model,
        suite=suite.name,
        reference=None if reference is None else scorer.name if scorer is not None else "an earlier run",
        margin=margin,
        answers=answers,
        leads=tuple(leads(_seen(endpoint, suite, scorer, taken, answers, good, effective))),
        signs=tuple(_signs(endpoint, suite, taken, effective, before)),
        summary=summary(answers),
        effective=effective,
    )


def _signs(
    endpoint: Endpoint, suite: Suite, taken: Sequence[Taken], effective: Mapping[str, Any], before: int | None
) -> list[Sign]:
    told = [each.answer for each in taken]
    cached = [count for a in told if isinstance(count := a.meta.get("cached_tokens"), int)]
    after = _replays(endpoint)
    return [
        *signs(effective, [a.accept_length for a in told], cached, cache_asked="again" in suite.ways),
        *telemetry.graphs(effective, None if before is None or after is None else after - before),
        *telemetry.not_as_asked(telemetry.flags(endpoint.argv), effective),
        *telemetry.numbers_that_are_none(endpoint.log()),
    ]


def _replays(endpoint: Endpoint) -> int | None:
    return telemetry.graph_replays(endpoint.client.server_info(), endpoint.client.metrics())


def _good(suite: Suite, reference: Endpoint | Mapping[str, Answer] | None, say: Say) -> dict[str, Answer]:
    if isinstance(reference, Endpoint):
        say(f"{len(suite.prompts)} prompts to the reference, alone")
        return {p.name: _one(reference, suite, p) for p in suite.prompts}
    return dict(reference or {})


def _chats(suite: Suite, reference: Endpoint | None) -> dict[str, Answer]:
    """The reference's answers through its chat template, where the suite goes that way: one token is enough to learn
    how many the message became."""
    if reference is None or "chat" not in suite.ways:
        return {}
    return {p.name: reference.chat(p.name, p.asked, 1) for p in suite.prompts if p.user is not None}


def _margin(suite: Suite, good: Endpoint | None, alone: Mapping[str, Answer], say: Say) -> Margin:
    """From the reference's answers alone and together, scored by itself: another batch size is what near ties come
    from."""
    if good is None or good.kind == "openai":
        return Margin()
    say("the margin of the reference")
    prompts = [Prompt(p.name, suite.rendered(p)) for p in suite.prompts]
    together = good.client.generate_together(prompts, suite.max_new_tokens)
    return suites.margin(good.client, suite, (*alone.values(), *together))


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


def _judged(judging: Judge, taken: Taken, good: Mapping[str, Answer], chats: Mapping[str, Answer]) -> Probed:
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
        parses=prompt.parses,
    )
    scored, by_reference = _scored(judging, taken, good)
    found = combine(record, taken.how, scored, by_reference=by_reference)
    rendered = _rendered(answer, chats.get(prompt.name)) if taken.how == "chat" else None
    return found if rendered is None else replace(found, verdict="garbled", evidence=(rendered, *found.evidence))


def _rendered(answer: Answer, wanted: Answer | None) -> Evidence | None:
    """Where the same message became another number of prompt tokens than at the reference."""
    here, there = _count(answer), None if wanted is None else _count(wanted)
    if here is None or there is None or here == there:
        return None
    why = f"the message became {here} prompt tokens, and {there} at the reference: another chat template"
    numbers = {"prompt_tokens": here, "reference_prompt_tokens": there}
    return Evidence("chat-template", "garbled", (0, len(answer.text)), why, numbers)


def _scored(judging: Judge, taken: Taken, good: Mapping[str, Answer]) -> tuple[TextVerdict | None, bool]:
    """None where there is nothing but the text: by the chat path, and from servers that do not score."""
    answer = taken.answer
    if taken.how == "chat" or answer.error or not answer.token_ids:
        return None, False
    asked = Asked("together" if taken.how.startswith("together") else "alone", answer)
    wanted = good.get(answer.prompt)
    if wanted is None or wanted.error or not wanted.token_ids:
        return judging.unaided([asked])[0], False
    if wanted.finish_reason == "length" and len(answer.token_ids) < len(wanted.token_ids):
        wanted = _cut(wanted, answer)
    return judging.against([asked], {**good, answer.prompt: wanted})[0], True


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
    lacks = [{each.rule for each in answer.evidence} & set(PROPERTIES) for answer in answers]
    message = next((p.asked for p in suite.prompts if p.user is not None), "Say hello.")
    here = endpoint.chat("template", message, min(suite.max_new_tokens, CHAT_TOKENS))
    there = reference.chat("template", message, 1) if reference is not None else None
    return Seen(
        effective=effective,
        answers=len(answers),
        cut=sum(bool(missing) and a.finish_reason == "length" for missing, a in zip(lacks, answers)),
        compared=len(ids),
        same_ids_other_text=sum(not theirs.text.startswith(mine.text.rstrip("\ufffd")) for mine, theirs in same),
        chat_garbled=None if here.error else judge(Record(text=here.text, prompt=message)).verdict == "garbled",
        raw_garbled=all(a.verdict == "garbled" for t, a in zip(taken, answers) if t.how != "chat"),
        chat_tokens=_count(here),
        reference_chat_tokens=None if there is None else _count(there),
    )


def _count(answer: Answer) -> int | None:
    tokens = answer.meta.get("prompt_tokens")
    return tokens if isinstance(tokens, int) else None
