"""A bench that starts a server on a host for each trial, asks it, judges its texts, and stops it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from diag import bundle
from diag.bisect.decision import Next
from diag.bisect.expr import Value
from diag.bisect.plan import Plan
from diag.bisect.run import Listener
from diag.bisect.space import describe, level_text, same
from diag.bisect.trial import Outcome, Trial
from diag.errors import PreconditionFailed, ServerDied, ServerNotHealthy, UsageError
from diag.hosts.inventory import Host
from diag.hosts.transport import Transport
from diag.serving.client import Answer
from diag.serving.server import Launch, Progress, Server, start
from diag.verdict import suite
from diag.verdict.compare import TextVerdict


def fills_for(plan: Plan, host: Host, given: Mapping[str, str]) -> dict[str, str]:
    """Values for the command's placeholders: --set first, then the host's labels and its interpreter."""
    known = {**host.labels, **({"python": host.python} if host.python is not None else {}), **given}
    missing = sorted(plan.placeholders() - set(known))
    if missing:
        first = missing[0]
        where = "`python`" if first == "python" else f"`labels.{first}`"
        raise UsageError(
            f"The plan's command needs {', '.join('{' + name + '}' for name in missing)}, which nothing provides.",
            next=f"Give it: --set {first}=VALUE, or {where} in the inventory entry of {host.name}.",
        )
    return {name: known[name] for name in plan.placeholders()}


class ServerBench:
    """Runs single trials; keeps the good configuration's answers, which all others are judged by."""

    def __init__(
        self,
        plan: Plan,
        transport: Transport,
        run_id: str,
        listener: Listener,
        fills: Mapping[str, str],
        done: Sequence[Trial] = (),
    ) -> None:
        """done: trials of an earlier session of this run; the first healthy one holds the reference."""
        self._plan, self._transport, self._run_id = plan, transport, run_id
        self._listener, self._fills = listener, fills
        self._reference = _reference_of(done)

    def trial(self, number: int, step: Next) -> Trial:
        plan, began = self._plan, time.monotonic()
        launch = Launch(
            argv=plan.argv(step.config, self._fills),
            env={**plan.spec.env, **plan.space.env(step.config)},
            run_id=self._run_id,
            ready_timeout_s=plan.spec.ready_timeout_s,
        )
        try:
            with start(self._transport, launch, self._progress) as server:
                texts, reference, info = self._ask(server)
        except (ServerDied, ServerNotHealthy) as error:
            return self._not_started(number, step, error, began)
        reported = plan.reported(info)
        outcome, reason = _outcome(texts, server.stopped)
        if outcome is Outcome.PASS:
            self._reference = reference  # of the first healthy trial, and kept from then on
        return Trial(
            number=number,
            purpose=step.purpose,
            config=step.config,
            effective=plan.space.effective(step.config, reported),
            outcome=outcome,
            texts=tuple(texts),
            reason=reason,
            warnings=(*_not_as_asked(step.config, reported), *_left_behind(server.stopped)),
            start_s=server.ready_after_s,
            total_s=time.monotonic() - began,
            details={**_told(launch), "stopped": server.stopped},
        )

    def _ask(self, server: Server) -> tuple[list[TextVerdict], dict[str, Answer], dict[str, Any]]:
        """(texts, reference, effective configuration). The first trial of a run is the good configuration: its own
        lone answers are the reference."""
        plan = self._plan
        asked = suite.ask(server.client, plan.suite, plan.max_new_tokens, self._listener.waits_for)
        self._listener.waits_for("the verdicts")
        judge = suite.Judge(server.client, plan.suite)
        if self._reference is None:
            alone = [a for a in asked if a.how == "alone"]
            together = [a for a in asked if a.how == "together"]
            reference = suite.references(asked)
            texts = judge.unaided(alone) + judge.against(together, reference)
        else:
            reference = self._reference
            texts = judge.against(asked, reference)
        # Read last: counters then show which paths the prompts really took.
        return texts, reference, _effective(server)

    def _progress(self, progress: Progress) -> None:
        if progress.phase == "waiting":
            tail = f": {progress.last_log}" if progress.last_log else ""
            self._listener.waits_for(f"the server to be healthy ({progress.elapsed_s:.0f} s){tail}")

    def _not_started(self, number: int, step: Next, error: PreconditionFailed, began: float) -> Trial:
        """Raises for the good and the failing end: without both there is nothing to compare. Else a skipped trial."""
        space = self._plan.space
        for end, name in ((space.good, "good"), (space.bad, "failing")):
            if all(same(step.config[k], end[k]) for k in end):
                error.what = f"The {name} configuration ({describe(end)}) does not start. {error.what}"
                raise error
        return Trial(
            number=number,
            purpose=step.purpose,
            config=step.config,
            effective=space.effective(step.config, {}),
            outcome=Outcome.SKIP,
            reason=error.what,
            total_s=time.monotonic() - began,
            details={"log": error.details},
        )


def _reference_of(done: Sequence[Trial]) -> dict[str, Answer] | None:
    for trial in done:
        if trial.outcome is Outcome.PASS:
            alone = [text for text in trial.texts if text.how == "alone"]
            return {t.prompt: Answer(t.prompt, text=t.text, token_ids=t.token_ids) for t in alone}
    return None


def _effective(server: Server) -> dict[str, Any]:
    """What it says is in force; {} where it says nothing any more, which the texts then show, or how it ended."""
    try:
        return server.client.server_info()
    except httpx.HTTPError:
        return {}


def _told(launch: Launch) -> dict[str, Any]:
    """The command as it goes into journal and report: secrets hidden by the same rule as what a host says."""
    proc = bundle.load("probes._proc")
    env = {name: "***" if proc.is_secret(name, value) else value for name, value in launch.env.items()}
    return {"argv": proc.hide_argv(launch.argv), "env": env}


def _outcome(texts: list[TextVerdict], stopped: Mapping[str, Any]) -> tuple[Outcome, str]:
    """A server that died while it was asked says nothing about its texts: that is another fault."""
    if stopped.get("died"):
        return Outcome.SKIP, "the server died while it was asked"
    bad = [text for text in texts if not text.healthy]
    if not bad:
        return Outcome.PASS, "every text healthy"
    worst = max(bad, key=lambda text: text.worst_gap_nats or 0.0)
    return Outcome.FAIL, f"{len(bad)} of {len(texts)} texts; {worst.prompt} ({worst.how}): {worst.why}"


def _not_as_asked(config: Mapping[str, Value], reported: Mapping[str, Value]) -> tuple[str, ...]:
    return tuple(
        f"{name}: asked for {level_text(level)}, in force is {level_text(reported[name])}"
        for name, level in config.items()
        if name in reported and not same(reported[name], level)
    )


def _left_behind(stopped: Mapping[str, Any]) -> tuple[str, ...]:
    left = stopped.get("left") or []
    return tuple(f"process {p.get('pid')} could not be stopped" for p in left)
