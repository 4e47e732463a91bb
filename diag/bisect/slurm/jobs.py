"""What goes into a job, and what its result says. Pure, but for the client that plays the job's requests back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from diag.bisect import asking, seen
from diag.bisect.decision import Next, same_config
from diag.bisect.plan import CONCURRENCY, Plan
from diag.bisect.space import Config
from diag.bisect.trial import Trial
from diag.errors import JobFailed, ServerDied, ServerNotHealthy
from diag.hosts import courier, parity
from diag.serving import recording
from diag.serving.server import STOP_GRACE_S

ENDED = (
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
    "TIMEOUT",
)
"""States of a job that is over (Slurm's own words); COMPLETING is not."""
_WHY = {
    "BOOT_FAIL": "its node did not boot",
    "CANCELLED": "somebody cancelled it",
    "DEADLINE": "its time was up",
    "NODE_FAIL": "its node failed",
    "OUT_OF_MEMORY": "it ran out of memory",
    "PENDING": "its node is not to be had",
    "PREEMPTED": "another job took its place",
    "TIMEOUT": "its time was up",
}
NODES_AT_FAULT = ("BOOT_FAIL", "COMPLETED", "FAILED", "NODE_FAIL")
"""Ended so and without a result, a job says something about its node: its launcher died there, or the node did."""


def launcher_args(
    plan: Plan, config: Config, mark: str, fills: Mapping[str, str], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """For probes/job.py."""
    what = seen.launch(plan, config, mark, fills)
    wanted = asking.requests(plan, config)
    concurrency = wanted.pop(CONCURRENCY, None)
    at_once = int(concurrency) if concurrency is not None else None
    good = same_config(config, plan.space.good)
    return {
        "run_id": mark,
        "argv": list(what.argv),
        "env": {**plan.engine.environment(what.argv), **what.env},
        "ready": {"path": plan.engine.ready_path, "deadline_s": what.ready_timeout_s},
        "script": recording.script(plan.engine, plan.suite, plan.max_new_tokens, wanted, at_once, rounding=good),
        "facts": dict(facts),
        "stop_grace_s": STOP_GRACE_S,
        "log_lines": 40,
    }


@dataclass(frozen=True)
class Judged:
    """reference: what other configurations are judged by, None where it did not start; info: the effective
    configuration."""

    trial: Trial
    reference: asking.Reference | None = None
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ran:
    """Where and how a job ran: for a trial's details."""

    job: str
    serial: int
    nodes: str
    restart: int = 0
    queue_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {"job": self.job, "serial": self.serial, "nodes": self.nodes, "restart": self.restart}


def judged(
    plan: Plan,
    step: Next,
    told: Mapping[str, Any],
    ran: Ran,
    shown: Mapping[str, Any],
    reference: asking.Reference | None,
) -> Judged:
    """What a job's server showed. told: as probes/job.py's `_Desk.told`; shown: for the trial's details.

    Raises JobFailed where it says nothing about the configuration, what `seen.not_started` raises, and PortInUse.
    """
    error = told["ended"].get("error")
    total_s = float(told["total_s"])
    if error is not None:
        failed = courier.error_from(error, f"job {ran.job} on {ran.nodes}")
        if not isinstance(failed, ServerDied | ServerNotHealthy):
            raise failed
        return Judged(seen.not_started(plan, step, failed, number=0, total_s=total_s, host=ran.nodes))
    _refuse_unasked(told, ran)
    with recording.played_back(told["exchanges"]) as http:
        client = plan.engine.client(http)
        texts, reference = asking.ask(client, plan, step.config, reference, lambda what: None)
        info = client.server_info()
    trial = seen.trial(
        plan,
        step,
        texts,
        info,
        told["ended"],
        number=0,
        start_s=float(told["ready_after_s"] or 0.0),
        total_s=total_s,
        details={
            **shown,
            "slurm": ran.to_json(),
            **({} if ran.queue_s is None else {"queue_s": ran.queue_s}),
            asking.MARGIN: reference.margin.to_json(),
        },
        host=ran.nodes,
    )
    return Judged(trial, reference, info)


def _refuse_unasked(told: Mapping[str, Any], ran: Ran) -> None:
    """A server that ended by itself was asked as far as it went; any other must have been asked all."""
    if told["asked"] or told["ended"].get("died"):
        return
    fallen = told.get("fallen")
    if fallen:
        why = f"the part of its server on {fallen['node']} ended"
        details = [str(line) for line in ((fallen["ended"].get("error") or {}).get("details") or [])]
        raise JobFailed(f"Job {ran.job} on {ran.nodes}: {why}.", next="Look at what it printed.", details=details)
    why = told.get("failed") or f"it was stopped ({told['ended'].get('reason')})"
    raise JobFailed(f"Job {ran.job} on {ran.nodes} did not ask all it was to ask: {why}.", next="Try again.")


def unlike(result: Mapping[str, Any]) -> list[str]:
    """How the nodes of a job differ in what ranks of one server must not differ in; [] for one node."""
    documents = {_name(number, one): one for number, one in enumerate(result.get("ranks") or []) if one is not None}
    found = [each for each in parity.differences(documents) if each.matters]
    return [f"{each.what}: {', '.join(f'{node} {value}' for node, value in each.values.items())}" for each in found]


def _name(rank: int, document: Mapping[str, Any]) -> str:
    return f"rank {rank} ({document['facts'].get('hostname')})"


def lost(ran: Ran, state: str, reason: str, log: list[str], stopped: bool = False) -> JobFailed:
    """A job that is over and has left no result. state, reason: in Slurm's words; stopped: it was told to stop, as it
    is before its time is up, and did."""
    words = f"{state}, {reason}" if reason not in ("", "None") else state
    told = "it was told to stop: its time was nearly up, or somebody ended it" if stopped else None
    why = (
        _WHY.get(state)
        or told
        or f"its launcher ended without a result ({words or 'Slurm knows nothing of it any more'})"
    )
    return JobFailed(
        f"Job {ran.job}{f' on {ran.nodes}' if ran.nodes else ''} gave no result: {why}.",
        next="It is tried again elsewhere; if that goes on, look at the job's output.",
        details=log,
    )


def must_be_known(told: Mapping[str, Any]) -> bool:
    """Whether only the job's final state says what this is: a server killed by KILL may have been killed by the kernel
    for want of memory, or by Slurm."""
    ended = told["server"]["ended"]
    died, error = ended.get("died") or {}, ended.get("error") or {}
    return died.get("signal") == "SIGKILL" or "signal SIGKILL" in str(error.get("what"))
