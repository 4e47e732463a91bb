"""One `diag bisect`: what was asked for, checked, and ready to run; a new run, or one to go on with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diag import bundle
from diag.bisect import plan as plans
from diag.bisect import resume
from diag.bisect.bench import ServerBench, fills_for
from diag.bisect.command import CommandBench
from diag.bisect.decision import BothEnds, DeterministicSearch, Search
from diag.bisect.journal import Journal
from diag.bisect.plan import Plan
from diag.bisect.run import Bench, Listener, Result, run
from diag.errors import UsageError
from diag.hosts import inventory
from diag.hosts.inventory import Host
from diag.hosts.transport import Transport
from diag.verdict.compare import RULES

FLAKY_TRIALS = 200
"""A flaky pair among ten factors takes some fifty trials; the plan's own max_trials, where it has one, goes before."""


@dataclass(frozen=True)
class Session:
    """host: None where a command is the trial, which runs here. earlier: the run that this one goes on with."""

    plan: Plan
    host: Host | None
    fills: Mapping[str, str]
    check: bool
    flaky: bool = False
    earlier: resume.Earlier | None = None

    @property
    def where(self) -> str:
        return self.host.name if self.host is not None else "this machine"

    def search(self) -> Search:
        if self.check:
            return BothEnds(self.plan.space)
        if self.flaky:
            from diag.bisect.bayesian import BayesianSearch  # scipy takes a moment to import

            told = "max_trials" in self.plan.spec.model_fields_set
            return BayesianSearch(self.plan.space, max_trials=self.plan.spec.max_trials if told else FLAKY_TRIALS)
        return DeterministicSearch(self.plan.space, max_trials=self.plan.spec.max_trials)

    def journal(self) -> Journal:
        if self.earlier is not None:
            return Journal.reopen(self.earlier.folder, self.earlier.run_id)
        return Journal.create()

    def run(self, transport: Transport | None, journal: Journal, listener: Listener) -> Result:
        """To a verdict; see `run.run` for what it raises."""
        done = self.earlier.trials if self.earlier is not None else ()
        bench = self._bench(transport, journal, listener)
        return run(self.search(), bench, journal, listener, start=self._start(), done=done)

    def _bench(self, transport: Transport | None, journal: Journal, listener: Listener) -> Bench:
        if self.plan.trial is not None:
            return CommandBench(self.plan.space, self.plan.trial, self.plan.spec.trial_timeout_s)
        if transport is None:
            raise ValueError("a server is started on a host")
        done = self.earlier.trials if self.earlier is not None else ()
        return ServerBench(self.plan, transport, journal.run_id, listener, self.fills, done)

    def _start(self) -> dict[str, Any]:
        """What another session must know to go on. Secret values are left out: they are asked for again."""
        is_secret = bundle.load("probes._proc").is_secret
        return {
            "host": self.host.name if self.host is not None else None,
            "plan": self.plan.text,
            "plan_name": self.plan.name,
            "plan_path": str(self.plan.path.resolve()),
            "fills": {name: value for name, value in self.fills.items() if not is_secret(name, value)},
            "trial": self.plan.trial,
            "check": self.check,
            "flaky": self.flaky,
            "rules": RULES,
        }


def new(
    name: str | None,
    plan_name: str,
    trial_cmd: str | None,
    given: Mapping[str, str],
    *,
    check: bool,
    flaky: bool = False,
) -> Session:
    """Raises UsageError or PlanError for whatever is wrong; nothing has been connected to."""
    plan = plans.load(plan_name, trial_cmd)
    if plan.trial is not None:
        if name is not None:
            raise UsageError(
                f"A trial command runs on this machine, not on {name}.",
                next="Leave the host out; let the command reach a host itself.",
            )
        return Session(plan, None, {}, check, flaky)
    if name is None:
        raise UsageError(
            "Which host? Servers are started there.",
            next="Name one (see: diag host list), or give --trial-cmd to try a command on this machine.",
        )
    host = inventory.load().get(name)
    return Session(plan, host, fills_for(plan, host, given), check, flaky)


def resumed(run_id: str, name: str | None, given: Mapping[str, str]) -> Session:
    """The run as it was asked for. Raises what `new` raises, and PreconditionFailed when the question has changed."""
    earlier = resume.load(run_id)
    began = earlier.start
    if name is not None and name != began["host"]:
        about = began["host"] or "this machine"
        raise UsageError(f"Run {run_id} is about {about}, not about {name}.", next="Leave the host out.")
    plan = plans.load(str(began["plan_path"]), began["trial"])
    resume.refuse_if_changed(earlier, plan.text)
    if began["host"] is None:
        return Session(plan, None, {}, began["check"], bool(began.get("flaky")), earlier)
    host = inventory.load().get(str(began["host"]))
    fills = fills_for(plan, host, {**began["fills"], **given})
    return Session(plan, host, fills, began["check"], bool(began.get("flaky")), earlier)
