"""One `diag bisect`: what was asked for, checked, and ready to run; a new run, or one to go on with."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from diag import bundle
from diag.bisect import early, resume
from diag.bisect import plan as plans
from diag.bisect.bench import ServerBench, fills_for, refuse_two_masters
from diag.bisect.command import CommandBench
from diag.bisect.decision import BothEnds, Search
from diag.bisect.executor import Bench, Executor, Inline, Workers
from diag.bisect.installed import faulty_sources
from diag.bisect.link import Link
from diag.bisect.plan import Plan
from diag.bisect.run import Listener, Result, run, spoiled
from diag.bisect.space import Space
from diag.bisect.trial import Trial
from diag.errors import HostError, Interrupted, UsageError
from diag.hosts import inventory
from diag.hosts.inventory import Host
from diag.journal import Journal
from diag.records import telling
from diag.verdict.compare import RULES

if TYPE_CHECKING:
    from diag.bisect.slurm.batch import Options
    from diag.report.bisect import FaultySource

JOB_WORDS = ("rank", "nnodes", "head", "head_port")
"""Placeholders of a plan's command that only a job can fill in, see probes/job.py."""
FLAKY_TRIALS = 200
"""A flaky pair among ten factors takes some fifty trials; the plan's own max_trials, where it has one, goes before."""


@dataclass(frozen=True)
class Session:
    """hosts: where servers are started; none where a command is the trial, which runs here. slots: their names; a
    command is run for each of them at once. fills: by host. earlier: the run that this one goes on with.
    holder: the run that this one is a part of, and that the lock of the host is for; None: this one's own.
    slurm: where trials are jobs; the one host is then the login node."""

    plan: Plan
    hosts: tuple[Host, ...]
    slots: tuple[str, ...]
    fills: Mapping[str, Mapping[str, str]]
    check: bool
    flaky: bool = False
    earlier: resume.Earlier | None = None
    holder: str | None = None
    slurm: Options | None = None

    @property
    def at_once(self) -> int:
        """Trials that may be under way at the same time."""
        return self.slurm.jobs if self.slurm is not None else max(1, len(self.slots))

    @property
    def where(self) -> str:
        return ", ".join(self.slots) or "this machine"

    @property
    def space(self) -> Space:
        return self.plan.space

    @property
    def done(self) -> tuple[Trial, ...]:
        return self.earlier.trials if self.earlier is not None else ()

    def search(self) -> Search:
        if self.check:
            return BothEnds(self.plan.space)
        from diag.bisect.bayesian import BayesianSearch  # scipy takes a moment to import
        from diag.bisect.refine import RefinedSearch

        space, told = self.plan.space, "max_trials" in self.plan.spec.model_fields_set
        most = FLAKY_TRIALS if self.flaky and not told else self.plan.spec.max_trials
        return RefinedSearch(
            BayesianSearch(space, deterministic=None if self.flaky else True, max_trials=most), space, max_trials=most
        )

    def journal(self, run_id: str | None = None) -> Journal:
        """run_id: of a new run that is a part of another; None: by time and chance."""
        if self.earlier is not None:
            return Journal.reopen(self.earlier.folder, self.earlier.run_id)
        return Journal.create() if run_id is None else Journal(resume.runs_folder() / run_id, run_id)

    def links(self) -> dict[str, Link]:
        """Connections to its hosts, not opened yet."""
        return {host.name: Link(host) for host in self.hosts}

    def run(
        self,
        links: Mapping[str, Link],
        journal: Journal,
        listener: Listener,
        left_out: Mapping[str, str] | None = None,
        facts: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Result:
        """To a verdict; see `run.run` for what it raises. left_out: hosts that `reach` could not reach, and why; facts:
        what `telling.look` saw there."""
        return run(
            self.search(),
            self._executor(links, journal, listener),
            journal,
            listener,
            good=self.plan.space.good,
            start=self._start(),
            done=self.done,
            left_out=left_out,
            facts=facts,
            ends_early=partial(early.ends_alike, self.plan.space),
        )

    def _executor(self, links: Mapping[str, Link], journal: Journal, listener: Listener) -> Executor:
        if self.slurm is not None:
            return self._jobs(self.slurm, links[self.slots[0]], journal, listener)
        slots = self.slots or ("",)
        benches = {slot: self._bench(slot, links, journal, listener) for slot in slots}
        return Workers(benches) if len(slots) > 1 else Inline(benches[slots[0]], slots[0])

    def _jobs(self, options: Options, link: Link, journal: Journal, listener: Listener) -> Executor:
        from diag.bisect.slurm.executor import Slurm

        fills, resumed = self.fills[self.slots[0]], self.earlier is not None
        return Slurm(self.plan, link, journal.run_id, options, fills, listener, self.done, resumed)

    def _bench(self, slot: str, links: Mapping[str, Link], journal: Journal, listener: Listener) -> Bench:
        if self.plan.trial is not None:
            return CommandBench(self.plan.space, self.plan.trial, self.plan.spec.trial_timeout_s, slot)
        # A mark of its own for each: two names may be one machine.
        mark = journal.run_id if len(self.slots) == 1 else f"{journal.run_id}.{slot}"
        resumed = self.earlier is not None
        return ServerBench(
            self.plan,
            links[slot],
            mark,
            listener,
            self.fills[slot],
            self.done,
            resumed=resumed,
            run=self.holder or journal.run_id,
        )

    def _start(self) -> dict[str, Any]:
        """What another session must know to go on. Secret values are left out: they are asked for again."""
        is_secret = bundle.load("probes._proc").is_secret
        return {
            "host": ", ".join(self.slots) or None,
            "hosts": list(self.slots),
            "plan": self.plan.text,
            "plan_name": self.plan.name,
            "plan_path": str(self.plan.path.resolve()),
            "fills": {
                slot: {name: value for name, value in fills.items() if not is_secret(name, value)}
                for slot, fills in self.fills.items()
            },
            "trial": self.plan.trial,
            "check": self.check,
            "flaky": self.flaky,
            "rules": RULES,
            "slurm": self.slurm.to_json() if self.slurm is not None else None,
            **telling.plan(self.plan),
        }


@dataclass(frozen=True)
class Conducted:
    """source: what the installed file says about the plan's fault, None where the plan names none."""

    result: Result
    source: FaultySource | None


def conduct(
    asked: Session, listener: Listener, *, run_id: str | None = None, warn: Callable[[str], None] = lambda line: None
) -> Conducted:
    """The whole run: connected only as long as it takes. run_id: see `Session.journal`; warn: told what could not be
    looked at. Raises what `Session.run` raises; Interrupted says what is kept and how to go on."""
    links = asked.links()
    with contextlib.ExitStack() as closing:
        for link in links.values():
            closing.callback(link.drop)
        left_out = reach(links)
        if asked.slurm is not None:
            _check_cluster(links[asked.slots[0]], asked.slurm)
        journal = closing.enter_context(asked.journal(run_id))
        try:
            facts = telling.look(links, left_out, warn)
            before = faulty_sources(links, left_out, asked.plan, warn)
            result = asked.run(links, journal, listener, left_out, facts)
            after = faulty_sources(links, result.left_out, asked.plan, warn)
            done = Conducted(_unless_changed(result, before, after, journal), next(iter(after.values()), None))
            telling.report(journal, _document(asked, done))
        except KeyboardInterrupt:
            raise Interrupted(
                f"Interrupted. Nothing that was started on {asked.where} is left running.",
                next=f"Go on: diag bisect --resume {journal.run_id}   (what was learnt: {journal.path})",
            ) from None
    return done


def _check_cluster(link: Link, options: Options) -> None:
    """Raises what is wrong with it before a run is begun."""
    from diag.bisect.slurm import executor

    executor.check(link, options)


def _unless_changed(
    result: Result, before: Mapping[str, FaultySource], after: Mapping[str, FaultySource], journal: Journal
) -> Result:
    """Without a conclusion where somebody changed the file meanwhile."""
    for host, source in after.items():
        if host in before and before[host].sha256 != source.sha256:
            result = spoiled(result, f"{source.path} on {host} was changed by somebody while this ran")
            journal.write("verdict", verdict=result.verdict.kind, culprit=None)
    return result


def _document(asked: Session, done: Conducted) -> dict[str, Any]:
    from diag.report import bisect as report

    return report.document(done.result, asked.space, asked.where, asked.plan.name, done.source)


def new(
    names: Sequence[str],
    plan_name: str,
    trial_cmd: str | None,
    given: Mapping[str, str],
    *,
    check: bool,
    flaky: bool = False,
    slurm: Options | None = None,
) -> Session:
    """slurm: trials are jobs, submitted from the one host that is named. Raises UsageError or PlanError for whatever is
    wrong; nothing has been connected to."""
    plan = plans.load(plan_name, trial_cmd)
    return _session(plan, names, {}, given, check, flaky, None, slurm)


def resumed(run_id: str, names: Sequence[str], given: Mapping[str, str]) -> Session:
    """The run as it was asked for. Raises what `new` raises, and PreconditionFailed when the question has changed."""
    earlier = resume.load(run_id)
    if names and set(names) != set(earlier.hosts):
        about = ", ".join(earlier.hosts) or "this machine"
        raise UsageError(f"Run {run_id} is about {about}, not about {', '.join(names)}.", next="Leave the host out.")
    began = earlier.start
    plan = plans.load(str(began["plan_path"]), began["trial"])
    resume.refuse_if_changed(earlier, plan.text)
    flaky, slurm = bool(began.get("flaky")), _options(began.get("slurm"))
    return _session(plan, earlier.hosts, earlier.fills, given, bool(began["check"]), flaky, earlier, slurm)


def _options(told: Mapping[str, Any] | None) -> Options | None:
    """Of a run whose trials were jobs."""
    if told is None:
        return None
    from diag.bisect.slurm.batch import Options

    return Options(**told)


def _session(
    plan: Plan,
    names: Sequence[str],
    before: Mapping[str, Mapping[str, str]],
    given: Mapping[str, str],
    check: bool,
    flaky: bool,
    earlier: resume.Earlier | None,
    slurm: Options | None,
) -> Session:
    """before: what an earlier session filled in, by host; what is given now goes before it."""
    if slurm is not None and (plan.trial is not None or len(names) > 1):
        what = "a command is no job" if plan.trial is not None else f"{len(names)} hosts are named"
        raise UsageError(
            f"--executor slurm wants one login node, and a plan that starts servers; {what}.",
            next="For example: diag bisect LOGIN --executor slurm --partition gpu --plan FILE",
        )
    if len(set(names)) != len(names):
        raise UsageError(f"A host is named twice: {', '.join(names)}.", next="Name each host once.")
    if plan.trial is not None:
        return Session(plan, (), tuple(names), {}, check, flaky, earlier)
    if not names:
        raise UsageError(
            "Which host? Servers are started there.",
            next="Name one (see: diag host list), or give --trial-cmd to try a command on this machine.",
        )
    known = inventory.load()
    places = known.select if slurm is not None else known.slots  # a login node starts no server
    hosts = tuple({host.name: host for name in names for host in places(name)}.values())  # of a name, or a group's
    refuse_two_masters(plan, hosts if slurm is None else ())
    own = {name: "{" + name + "}" for name in JOB_WORDS} if slurm is not None else {}  # for the job to fill in
    fills = {host.name: fills_for(plan, host, {**own, **before.get(host.name, {}), **given}) for host in hosts}
    names = tuple(host.name for host in hosts)
    return Session(plan, hosts, names, fills, check, flaky, earlier, slurm=slurm)


def reach(links: Mapping[str, Link]) -> dict[str, str]:
    """Connect to all at once. Host -> why, for those that cannot be reached. Raises the HostError of the first one when
    none can."""
    if not links:
        return {}
    with ThreadPoolExecutor(len(links)) as pool:
        errors = dict(zip(links, pool.map(_unreached, links.values())))
    failed = {name: error for name, error in errors.items() if error is not None}
    if len(failed) == len(links):
        raise next(iter(failed.values()))
    return {name: error.what for name, error in failed.items()}


def _unreached(link: Link) -> HostError | None:
    try:
        link.transport()
    except HostError as error:
        return error
    return None
