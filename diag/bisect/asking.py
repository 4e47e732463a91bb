"""What a trial asks of a running server, and how its texts are judged where requests differ between trials."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from diag.bisect.expr import Value
from diag.bisect.plan import CONCURRENCY, Plan
from diag.bisect.space import Config
from diag.bisect.trial import Outcome, Trial
from diag.serving import suites
from diag.serving.client import Client
from diag.verdict.answers import Answer, Asked, references
from diag.verdict.compare import TextVerdict
from diag.verdict.judging import Judge
from diag.verdict.reference import Margin

MARGIN = "margin"
"""Key of a trial's details: the margin it was judged by."""


@dataclass(frozen=True)
class Reference:
    """answers: of the good configuration, each prompt alone; margin: as its own healthy run has it."""

    answers: Mapping[str, Answer]
    margin: Margin = field(default_factory=Margin)


def ask(
    client: Client, plan: Plan, config: Config, reference: Reference | None, say: Callable[[str], None]
) -> tuple[list[TextVerdict], Reference]:
    """(verdicts, reference): every prompt alone, then together; without a reference each text is judged by itself, and
    the lone answers become one."""
    asked = suites.ask(_asking(client, requests(plan, config)), plan.suite, plan.max_new_tokens, say)
    say("the verdicts")
    score = suites.Scoring(client, plan.suite)
    if reference is None:
        # Of the good configuration's first run: alone against together, scored by itself.
        margin = suites.margin(client, plan.suite, (each.answer for each in asked))
        reference = Reference(references(asked), margin)
        judge = Judge(plan.suite, score, reference.margin.nats)
        alone = [a for a in asked if a.how == "alone"]
        together = [a for a in asked if a.how == "together"]
        return judge.unaided(alone) + judge.against(together, reference.answers), reference
    judge = Judge(plan.suite, score, reference.margin.nats)
    return [_judged(judge, each, reference.answers) for each in asked], reference


def _asking(client: Client, wanted: Mapping[str, Value]) -> Client:
    if not wanted:
        return client
    concurrency = wanted.get(CONCURRENCY)
    sampling = {name: level for name, level in wanted.items() if name != CONCURRENCY}
    return client.asking(sampling, int(concurrency) if concurrency is not None else None)


def _judged(judge: Judge, asked: Asked, reference: Mapping[str, Answer]) -> TextVerdict:
    """Where one of the two was cut off at its number of tokens, they are compared as far as both go."""
    answer, wanted = asked.answer, reference[asked.answer.prompt]
    ids, ref = answer.token_ids, wanted.token_ids
    if answer.error or not ref or len(ids) == len(ref):
        return judge.against([asked], reference)[0]
    if len(ids) < len(ref) and answer.finish_reason == "length":
        cut = replace(wanted, token_ids=ref[: len(ids)])
        return judge.against([asked], {answer.prompt: cut})[0]
    if len(ids) > len(ref) and wanted.finish_reason == "length" and ids[: len(ref)] == ref:
        return judge.unaided([asked])[0]
    return judge.against([asked], reference)[0]


def requests(plan: Plan, config: Config) -> dict[str, Value]:
    """Sampling parameters, and `concurrency`, that this configuration puts into its requests."""
    return {f.target: config[f.name] for f in plan.space.factors if f.how == "request"}


def warnings(plan: Plan, config: Config) -> tuple[str, ...]:
    temperature = requests(plan, config).get("temperature", 0)
    if isinstance(temperature, int | float) and temperature > 0:
        return (f"temperature {temperature:g}: texts are drawn by lot, and still judged as the likeliest ones",)
    return ()


def reference_of(done: Sequence[Trial]) -> Reference | None:
    """The lone answers of the first healthy trial. One as long as any is taken to have been cut off there."""
    for trial in done:
        if trial.outcome is Outcome.PASS:
            alone = [text for text in trial.texts if text.how == "alone"]
            longest = max((len(t.token_ids) for t in alone), default=0)
            answers = {
                t.prompt: Answer(
                    t.prompt,
                    text=t.text,
                    token_ids=t.token_ids,
                    finish_reason="length" if len(t.token_ids) == longest else "stop",
                )
                for t in alone
            }
            told = trial.details.get(MARGIN)
            return Reference(answers, Margin.from_json(told) if told is not None else Margin())
    return None
