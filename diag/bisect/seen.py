"""From what was seen of a server to a trial: pure, wherever the server ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from diag import bundle
from diag.bisect import asking, refused, signatures
from diag.bisect.decision import Next, same_config
from diag.bisect.expr import Value
from diag.bisect.plan import Plan
from diag.bisect.space import Config, Space, describe, level_text, same
from diag.bisect.trial import Outcome, Trial
from diag.errors import PreconditionFailed
from diag.serving.server import Launch
from diag.verdict import telemetry
from diag.verdict.compare import TextVerdict


def trial(
    plan: Plan,
    step: Next,
    texts: Sequence[TextVerdict],
    info: Mapping[str, Any],
    stopped: Mapping[str, Any],
    *,
    number: int,
    start_s: float,
    total_s: float,
    details: Mapping[str, Any],
    host: str = "",
) -> Trial:
    """info: the effective configuration; stopped: how the server ended, as its supervisor says."""
    reported = plan.reported(info)
    result, reason, signature = outcome(texts, stopped, plan.space, step.config)
    return Trial(
        number=number,
        purpose=step.purpose,
        config=step.config,
        effective=plan.space.effective(step.config, reported),
        outcome=result,
        texts=tuple(texts),
        reason=reason,
        warnings=(
            *_not_as_asked(step.config, reported),
            *asking.warnings(plan, step.config),
            *_left_behind(stopped),
            *telemetry.watched(stopped),
        ),
        start_s=start_s,
        total_s=total_s,
        details={**details, "stopped": stopped},
        host=host,
        signature=signature,
    )


def not_started(
    plan: Plan, step: Next, error: PreconditionFailed, *, number: int, total_s: float, host: str = ""
) -> Trial:
    """Raises for the good and the failing end: without both there is nothing to compare. Else a skipped trial."""
    space = plan.space
    refusal = refused.read(error.details, space)
    for end, name in ((space.good, "good"), (space.bad, "failing")):
        if all(same(step.config[k], end[k]) for k in end):
            why = f"{refusal.why} " if refusal is not None else ""
            error.what = f"The {name} configuration ({describe(end)}) does not start. {why}{error.what}"
            error.next = refusal.next if refusal is not None else error.next
            raise error
    return Trial(
        number=number,
        purpose=step.purpose,
        config=step.config,
        effective=space.effective(step.config, {}),
        outcome=Outcome.SKIP,
        reason=refusal.why if refusal is not None else error.what,
        total_s=total_s,
        details={"log": error.details},
        host=host,
        signature="does not start",
    )


def launch(plan: Plan, config: Config, mark: str, fills: Mapping[str, str]) -> Launch:
    """What is started for a trial of this configuration, whoever starts it."""
    return Launch(
        argv=plan.argv(config, fills),
        env={**plan.spec.env, **plan.space.env(config)},
        run_id=mark,
        ready_timeout_s=plan.spec.ready_timeout_s,
        engine=plan.spec.engine,
    )


def told(launch: Launch) -> dict[str, Any]:
    """The command as it goes into journal and report: secrets hidden by the same rule as what a host says."""
    proc = bundle.load("probes._proc")
    env = {name: "***" if proc.is_secret(name, value) else value for name, value in launch.env.items()}
    return {"argv": proc.hide_argv(launch.argv), "env": env}


def outcome(
    texts: Sequence[TextVerdict], stopped: Mapping[str, Any], space: Space, config: Mapping[str, Value]
) -> tuple[Outcome, str, str]:
    """(outcome, why, signature). To die is a failure of its own kind, unless texts were garbled before; a good
    configuration that dies has only given no answers, and is asked once more."""
    bad = [text for text in texts if not text.healthy]
    died, signature = stopped.get("died"), signatures.of_texts(texts)
    if died and not signatures.is_of_text(signature):
        how = f"signal {died['signal']}" if died.get("signal") else f"exit code {died.get('exit_code')}"
        signature = signatures.of_death(died.get("log") or [], how)
        result = Outcome.SKIP if same_config(config, space.good) else Outcome.FAIL
        return result, f"the server died while it was asked ({signature})", signature
    if not bad:
        return Outcome.PASS, "every text healthy", ""
    worst = max(bad, key=lambda text: text.worst_gap_nats or 0.0)
    reason = f"{len(bad)} of {len(texts)} texts; {worst.prompt} ({worst.how}): {worst.why}"
    return Outcome.FAIL, reason, signature


def _not_as_asked(config: Mapping[str, Value], reported: Mapping[str, Value]) -> tuple[str, ...]:
    return tuple(
        f"{name}: asked for {level_text(level)}, in force is {level_text(reported[name])}"
        for name, level in config.items()
        if name in reported and not same(reported[name], level)
    )


def _left_behind(stopped: Mapping[str, Any]) -> tuple[str, ...]:
    left = stopped.get("left") or []
    return tuple(f"process {p.get('pid')} could not be stopped" for p in left)
