"""One `diag bisect --over`: what was asked for, the axis that it means, and the run; or one to go on with.

    asked = session.new(...) or session.resumed(...)      checked; nothing has been connected to
    ready = asked.prepare(links)                          the axis: hosts, the package index or the repository are asked
    ready.run(links, journal, listener)

The journal's first line holds the whole axis. A resumed run goes on with that list of versions; of commits it is read
again from the repository and must be the same.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from diag import bundle, paths
from diag.bisect import plan as plans
from diag.bisect import resume
from diag.bisect.bench import fills_for
from diag.bisect.executor import Bench, Executor, Inline, Workers
from diag.bisect.link import Link
from diag.bisect.over import history, releases
from diag.bisect.over.axis import Axis, Place, row
from diag.bisect.over.bench import PlaceCommandBench, PlaceServerBench
from diag.bisect.over.history import History, Range
from diag.bisect.over.layers import Before, Kept, Trees, Wheels
from diag.bisect.over.search import FirstBadSearch
from diag.bisect.plan import Plan
from diag.bisect.run import Listener, Result, run
from diag.bisect.session import reach
from diag.bisect.space import Space
from diag.errors import Interrupted, PreconditionFailed, UsageError
from diag.hosts import inventory
from diag.hosts.inventory import Host
from diag.journal import Journal
from diag.records import telling
from diag.serving import overlay
from diag.source.wheels import Target, target_of
from diag.verdict.compare import RULES

What = Literal["versions", "commits"]

TRIAL_TIMEOUT_S = 1800.0


@dataclass(frozen=True)
class Question:
    """What is looked for, as it was asked. package: whose versions, or what is imported from a commit's tree; "" for
    the plan's engine. paths: what a build is made of. source: the folder of a tree that packages lie in."""

    what: What
    good: str
    bad: str
    package: str = ""
    repo: str = "."
    paths: tuple[str, ...] = ()
    source: str | None = None
    ignore_changes: bool = False

    @property
    def range(self) -> Range:
        return Range(self.repo, self.good, self.bad, self.paths)


@dataclass(frozen=True)
class Asked:
    """plan: None where a command is tried and no plan was named. hosts: where servers are started; none where the
    command runs here. slots: their names, or what the command is told of as DIAG_HOST.
    holder: the run that this one is a part of, and that the lock of the host is for; None: this one's own."""

    question: Question
    plan: Plan | None
    command: str | None
    hosts: tuple[Host, ...]
    slots: tuple[str, ...]
    fills: Mapping[str, Mapping[str, str]]
    flaky: bool
    earlier: resume.Earlier | None = None
    holder: str | None = None

    @property
    def where(self) -> str:
        return ", ".join(self.slots) or "this machine"

    @property
    def name(self) -> str:
        """For lists of runs."""
        question = self.question
        subject = question.package if question.what == "versions" else Path(question.repo).expanduser().resolve().name
        return f"{self.plan.name}, {question.what} of {subject}" if self.plan else f"{question.what} of {subject}"

    def links(self) -> dict[str, Link]:
        """Connections to its hosts, not opened yet."""
        return {host.name: Link(host) for host in self.hosts}

    def journal(self, run_id: str | None = None) -> Journal:
        """run_id: of a new run that is a part of another; None: by time and chance."""
        if self.earlier is not None:
            return Journal.reopen(self.earlier.folder, self.earlier.run_id)
        return Journal.create() if run_id is None else Journal(resume.runs_folder() / run_id, run_id)

    def python_of(self, host: str) -> str:
        """The interpreter that the plan's command starts there."""
        if self.plan is None:
            raise ValueError("a command of the user's starts what it likes")
        words = self.plan.argv(self.plan.space.bad, self.fills[host])
        named = next((word for word in words if re.fullmatch(r"python(\d+(\.\d+)?)?", Path(word).name)), None)
        python = named or next(one.python for one in self.hosts if one.name == host)
        if python is None:
            raise UsageError(
                f"Which interpreter runs the engine on {host}? The plan's command names none.",
                next=f"Set `python` in the inventory entry of {host}, or begin the command with {{python}} -m.",
            )
        return python

    def prepare(self, links: Mapping[str, Link], left_out: Mapping[str, str]) -> Ready:
        """Ask the hosts, the package index or the repository. Raises DiagError for what makes no axis."""
        there = {name: link for name, link in links.items() if name not in left_out}
        if self.question.what == "versions":
            return self._over_versions(there)
        return self._over_commits(there)

    def _over_versions(self, links: Mapping[str, Link]) -> Ready:
        question, targets, notes = self.question, {}, []
        for name, link in links.items():
            facts = overlay.interpreter(link.transport(), self.python_of(name), question.package, self.env)
            targets[name] = target_of(facts)
            notes.append(f"{name} has {question.package} {facts['installed'] or '(none)'} installed; it stays as it is")
        if self.earlier is not None:
            axis = axis_from(self.earlier.start["over"]["axis"])
            return Ready(self, axis, tuple(notes), targets)
        lists = [releases.between(question.package, question.good, question.bad, one) for one in set(targets.values())]
        ids = [version for version in lists[0] if all(version in other for other in lists)]
        return Ready(self, row("version", ids), tuple(notes), targets)

    def _over_commits(self, links: Mapping[str, Link]) -> Ready:
        found = [self._history(link) for link in links.values()] if self.hosts else [self._history(None)]
        if len({one.axis for one in found}) > 1:
            raise PreconditionFailed(
                f"The repositories on {', '.join(links)} do not hold the same commits between the two ends.",
                next="Bring them to the same state (git fetch), or name one host.",
            )
        axis = found[0].axis
        if self.earlier is not None and axis != axis_from(self.earlier.start["over"]["axis"]):
            raise PreconditionFailed(
                f"The commits between the two ends are not those that run {self.earlier.run_id} began with.",
                next="Put the repository back as it was, or begin a new run.",
            )
        return Ready(self, axis, found[0].notes, {}, found[0].top)

    def _history(self, link: Link | None) -> History:
        asked = self.question.range
        facts = history.local(asked) if link is None else history.remote(link.transport(), asked)
        return history.history_of(facts, asked, ignore_changes=self.question.ignore_changes)

    @property
    def env(self) -> dict[str, str]:
        """What the plan sets for its server."""
        if self.plan is None:
            return {}
        return {**self.plan.spec.env, **self.plan.space.env(self.plan.space.bad)}


@dataclass(frozen=True)
class Ready:
    """targets: by host, which wheels fit there. top: the repository's folder."""

    asked: Asked
    axis: Axis
    notes: tuple[str, ...] = ()
    targets: Mapping[str, Target] = field(default_factory=dict)
    top: str = ""

    @property
    def space(self) -> Space:
        return self.axis.space

    @property
    def slots(self) -> tuple[str, ...]:
        return self.asked.slots

    @property
    def at_once(self) -> int:
        return max(1, len(self.slots))

    def search(self) -> FirstBadSearch:
        plan = self.asked.plan
        told = plan is not None and "max_trials" in plan.spec.model_fields_set
        most = plan.spec.max_trials if plan is not None and told else None
        return FirstBadSearch(self.axis, flaky=self.asked.flaky, max_trials=most)

    def run(
        self,
        links: Mapping[str, Link],
        journal: Journal,
        listener: Listener,
        left_out: Mapping[str, str] | None = None,
        facts: Mapping[str, Mapping[str, Any]] | None = None,
        note: overlay.Say = lambda what: None,
    ) -> Result:
        """To a verdict; see `run.run` for what it raises. note: told of what others had left behind."""
        slots = self.slots or ("",)
        benches = {slot: self._bench(slot, links, journal, listener, note) for slot in slots}
        executor: Executor = Workers(benches) if len(slots) > 1 else Inline(benches[slots[0]], slots[0])
        earlier = self.asked.earlier
        return run(
            self.search(),
            executor,
            journal,
            listener,
            good=self.axis.space.good,
            start=self._start(),
            done=earlier.trials if earlier is not None else (),
            left_out=left_out,
            facts=facts,
        )

    def _bench(
        self, slot: str, links: Mapping[str, Link], journal: Journal, listener: Listener, note: overlay.Say
    ) -> Bench:
        asked, plan = self.asked, self.asked.plan
        mark = journal.run_id if len(self.slots) <= 1 else f"{journal.run_id}.{slot}"
        if plan is None or asked.command is not None:
            factors = plan.space.bad if plan is not None else {}
            timeout_s = plan.spec.trial_timeout_s if plan is not None else TRIAL_TIMEOUT_S
            layers = Kept(lambda: self._trees_here(mark), note)
            more = {**factors, "repo": self.top}
            return PlaceCommandBench(self.axis, layers, asked.command or "", timeout_s, listener, slot, more)
        done = asked.earlier.trials if asked.earlier is not None else ()
        return PlaceServerBench(
            self.axis,
            Kept(lambda: self._layers(slot, links[slot], mark), note),
            plan,
            links[slot],
            mark,
            listener,
            asked.fills[slot],
            done,
            resumed=asked.earlier is not None,
            run=asked.holder or journal.run_id,
            reports_version=asked.question.what == "versions" and asked.question.package == plan.spec.engine,
        )

    def _layers(self, slot: str, link: Link, mark: str) -> Wheels | Trees:
        question = self.asked.question
        before = Before(self.asked.python_of(slot), question.package, self.asked.env)
        if question.what == "versions":
            return Wheels(link.transport(), mark, before, self.targets[slot])
        return Trees(link.transport(), mark, question.repo, before, source=question.source)

    def _trees_here(self, mark: str) -> Trees:
        from diag.hosts.local import LocalTransport

        transport = LocalTransport(Host(name=inventory.LOCAL, address=inventory.LOCAL))
        return Trees(transport, mark, self.top, root=paths.state_dir())

    def _start(self) -> dict[str, Any]:
        """What another session must know to go on. Secret values are left out: they are asked for again."""
        asked, is_secret = self.asked, bundle.load("probes._proc").is_secret
        plan = asked.plan
        question = asked.question
        pinned = {"good": self.axis.places[0].id, "bad": self.axis.places[-1].id}
        return {
            "host": ", ".join(self.slots) or None,
            "hosts": list(self.slots),
            "plan": plan.text if plan is not None else "",
            "plan_name": asked.name,
            "plan_path": str(plan.path.resolve()) if plan is not None else None,
            "fills": {
                slot: {name: value for name, value in fills.items() if not is_secret(name, value)}
                for slot, fills in asked.fills.items()
            },
            "trial": asked.command,
            "check": False,
            "flaky": asked.flaky,
            "rules": RULES,
            **(telling.plan(plan) if plan is not None else {}),
            **telling.space(self.space),
            "over": {**asdict(question), "repo": self.top or question.repo, **pinned, "axis": axis_to(self.axis)},
        }


@dataclass(frozen=True)
class Opened:
    """Connected, and the axis known. left_out: hosts that could not be reached, and why."""

    ready: Ready
    links: Mapping[str, Link]
    left_out: Mapping[str, str]


@contextlib.contextmanager
def opened(asked: Asked) -> Iterator[Opened]:
    """Raises what `reach` and `Asked.prepare` raise."""
    links = asked.links()
    with contextlib.ExitStack() as closing:
        for link in links.values():
            closing.callback(link.drop)
        left_out = reach(links)
        yield Opened(asked.prepare(links, left_out), links, left_out)


def conduct(found: Opened, listener: Listener, *, run_id: str | None = None, note: overlay.Say) -> Result:
    """The whole run. run_id: see `Asked.journal`; note: told what is worth knowing of the hosts, and of what others
    left behind there. Raises what `Ready.run` raises; Interrupted says what is kept and how to go on."""
    ready, asked = found.ready, found.ready.asked
    with asked.journal(run_id) as journal:
        try:
            for line in ready.notes:
                note(f"note: {line}")
            facts = telling.look(found.links, found.left_out, note)
            result = ready.run(found.links, journal, listener, found.left_out, facts, note=note)
            telling.report(journal, _document(result, ready))
            return result
        except KeyboardInterrupt:
            raise Interrupted(
                f"Interrupted. Nothing that was started on {asked.where} is running, nothing laid out is left.",
                next=f"Go on: diag bisect --resume {journal.run_id}   (what was learnt: {journal.path})",
            ) from None


def _document(result: Result, ready: Ready) -> dict[str, Any]:
    from diag.bisect.over import page

    return page.document(result, ready)


def new(
    names: Sequence[str],
    question: Question,
    plan_name: str | None,
    trial_cmd: str | None,
    given: Mapping[str, str],
    *,
    flaky: bool = False,
) -> Asked:
    """plan_name: None where none was named. Raises UsageError or PlanError; nothing has been connected to."""
    if trial_cmd is not None and question.what == "versions":
        raise UsageError(
            "Versions are laid before a server's environment on a host; a trial command cannot be given them.",
            next="Leave --trial-cmd out and name a host and a plan.",
        )
    if plan_name is None and trial_cmd is None:
        raise UsageError("What is tried?", next="Name a plan with --plan, or, for commits, a command with --trial-cmd.")
    plan = plans.load(plan_name, trial_cmd) if plan_name is not None else None
    if plan is not None and plan.trial is not None and question.what == "versions":
        raise UsageError(
            f"In the plan {plan.name} a command is the trial; versions are laid before a server's environment.",
            next="Name a plan that starts a server.",
        )
    if plan is not None and not question.package:
        question = replace(question, package=plan.spec.engine)
    return _asked(question, plan, trial_cmd, names, {}, given, flaky, None)


def is_over(earlier: resume.Earlier) -> bool:
    return "over" in earlier.start


def resumed(earlier: resume.Earlier, names: Sequence[str], given: Mapping[str, str]) -> Asked:
    """The run as it was asked for. Raises what `new` raises, and PreconditionFailed when the question has changed."""
    began = earlier.start
    if names and set(names) != set(earlier.hosts):
        about = ", ".join(earlier.hosts) or "this machine"
        raise UsageError(
            f"Run {earlier.run_id} is about {about}, not about {', '.join(names)}.", next="Leave the host out."
        )
    command = began["trial"]
    plan = plans.load(str(began["plan_path"]), command) if began["plan_path"] is not None else None
    resume.refuse_if_changed(earlier, plan.text if plan is not None else "")
    over = began["over"]
    question = Question(
        over["what"],
        over["good"],
        over["bad"],
        over["package"],
        over["repo"],
        tuple(over["paths"]),
        over["source"],
        True,  # it was settled when the run began, and its commits are named by their ids
    )
    return _asked(question, plan, command, earlier.hosts, earlier.fills, given, bool(began["flaky"]), earlier)


def _asked(
    question: Question,
    plan: Plan | None,
    command: str | None,
    names: Sequence[str],
    before: Mapping[str, Mapping[str, str]],
    given: Mapping[str, str],
    flaky: bool,
    earlier: resume.Earlier | None,
) -> Asked:
    if len(set(names)) != len(names):
        raise UsageError(f"A host is named twice: {', '.join(names)}.", next="Name each host once.")
    if plan is not None and plan.trial is not None and command is None:
        command = plan.trial
    if command is not None:
        return Asked(question, plan, command, (), tuple(names), {}, flaky, earlier)
    if plan is None or not names:
        raise UsageError(
            "Which host? Servers are started there.",
            next="Name one (see: diag host list); for commits, --trial-cmd tries a command on this machine.",
        )
    known = inventory.load()
    hosts = tuple(known.get(name) for name in names)
    fills = {host.name: fills_for(plan, host, {**before.get(host.name, {}), **given}) for host in hosts}
    asked = Asked(question, plan, None, hosts, tuple(names), fills, flaky, earlier)
    for name in names:
        asked.python_of(name)
    return asked


def axis_to(axis: Axis) -> dict[str, Any]:
    """As it is written into the journal."""
    places = [[place.id, list(place.parents), place.build, place.title] for place in axis.places]
    return {"name": axis.name, "bases": axis.bases, "declared": axis.declared, "places": places}


def axis_from(told: Mapping[str, Any]) -> Axis:
    """The inverse of `axis_to`."""
    places = tuple(Place(one[0], tuple(one[1]), one[2], one[3]) for one in told["places"])
    return Axis(told["name"], places, int(told["bases"]), bool(told["declared"]))
