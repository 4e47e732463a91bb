"""`diag bisect`: which setting, or combination of settings, breaks the output?"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from diag.cli.common import JSON, connected, console, print_json
from diag.errors import DiagError, Interrupted, UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from diag.bisect.plan import Plan
    from diag.bisect.search import Next
    from diag.bisect.trial import Trial
    from diag.hosts.transport import Transport
    from diag.report.bisect import FaultySource


@click.command()
@click.argument("name")
@click.option("--plan", "plan_name", default="ddtree-garble", show_default=True, help="A shipped plan, or a file.")
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="Fill {NAME} in the plan's command.")
@click.option("--dry-run", is_flag=True, help="Check the plan and show the command lines of both ends; start nothing.")
@click.option("--check", is_flag=True, help="Only the two ends: does the failing configuration still fail?")
@JSON
def bisect(name: str, plan_name: str, sets: tuple[str, ...], dry_run: bool, check: bool, as_json: bool) -> int:
    """Find which factor of a plan, or which combination, breaks the output of a server on host NAME.

    Starts the server over SSH once for each trial, asks it a suite of prompts one by one and all at once, judges
    every text against the good configuration's, and stops everything it started, whatever happens.

    Exit code 1: the culprit is named; 3: it could not be named, and why is said. With --check, 0: the failing
    configuration is clean; 1: it fails.
    """
    from diag.bisect import plan as plans
    from diag.bisect import run
    from diag.bisect.journal import Journal
    from diag.bisect.search import BothEnds
    from diag.hosts import inventory
    from diag.report import bisect as report

    plan = plans.load(plan_name)
    host = inventory.load().get(name)
    fills = run.fills_for(plan, host, _given(sets))
    if dry_run:
        return _dry_run(name, plan, fills, as_json)
    show = _Show(console(stderr=True), plan)
    with connected(name) as transport, Journal.create() as journal:
        try:
            before = _faulty_source(transport, plan)
            with show:
                search = BothEnds(plan.space) if check else None
                result = run.run(plan, host, transport, journal, show, fills, search)
            source = _faulty_source(transport, plan)
            if before is not None and source is not None and before.sha256 != source.sha256:
                result = run.spoiled(result, f"{source.path} was changed by somebody while this ran")
        except KeyboardInterrupt:
            raise Interrupted(
                f"Interrupted. Nothing that was started on {name} is left running.",
                next=f"What was learnt so far: {journal.path}",
            ) from None
    if as_json:
        print_json(report.document(result, plan.space, name, plan.spec.name, source))
    else:
        out = console()
        for style, line in report.page(result, plan.space, name, source):
            out.print(_safe(line), style=style)
    return report.EXIT[result.verdict.kind]


def _given(sets: tuple[str, ...]) -> dict[str, str]:
    given = {}
    for each in sets:
        key, equals, value = each.partition("=")
        if not equals or not key:
            raise UsageError(f"--set {each}: NAME=VALUE is expected.", next="For example: --set model=/models/x")
        given[key] = value
    return given


def _dry_run(name: str, plan: Plan, fills: dict[str, str], as_json: bool) -> int:
    import shlex

    from diag.bisect.search import DeterministicSearch

    search = DeterministicSearch(plan.space, max_trials=plan.spec.max_trials)
    expected = search.expected_trials([])
    ends = {"good": plan.argv(plan.space.good, fills), "failing": plan.argv(plan.space.bad, fills)}
    if as_json:
        print_json({"schema": 1, "host": name, "plan": plan.spec.name, "expected_trials": expected, "commands": ends})
        return 0
    click.echo(f"{plan.spec.name}: {plan.spec.title or 'no title'}; about {expected} server starts on {name}.\n")
    for end, argv in ends.items():
        command = shlex.join(argv).replace("'{port}'", "{port}")  # a placeholder, not something to quote
        click.echo(f"{end:8} {command}\n")
    return 0


def _faulty_source(transport: Transport, plan: Plan) -> FaultySource | None:
    """What the installed file says, if the plan names a fault of the catalogue. Failing to look changes no verdict."""
    from diag.fixes import catalogue, transaction
    from diag.report.bisect import FaultySource

    if plan.spec.fault is None:
        return None
    fix = catalogue.get(plan.spec.fault)
    try:
        installed = transaction.inspect(transport, fix)
        detection = fix.detect(installed.text)
    except DiagError as error:
        click.echo(f"the installed source could not be read: {error.what}", err=True)
        return None
    faulty = [site for site in detection.sites if site.source == "server" and site.role != "definition"]
    return FaultySource(
        fault=fix.id,
        title=fix.title,
        state=detection.state,
        path=installed.path,
        version=f"{fix.package} {installed.version or '(version unknown)'}",
        sha256=installed.sha256,
        lines=tuple((site.line, site.symbol.split(".")[-1], site.text) for site in faulty),
    )


def _safe(line: str) -> str:
    from diag.report.text import visible

    return visible(line)


class _Show:
    """Tells on standard error what the run is doing: lines for a log, and a moving last line on a terminal."""

    def __init__(self, out: Console, plan: Plan) -> None:
        self._out, self._plan = out, plan
        self._status: Status | None = None
        self._began = time.monotonic()
        self._spent: list[float] = []
        self._head = ""

    def __enter__(self) -> _Show:
        if self._out.is_terminal:
            self._status = self._out.status("connecting")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def trial_starts(self, number: int, expected: int, step: Next) -> None:
        from diag.bisect.space import describe

        elapsed = time.monotonic() - self._began
        rest = ""
        if self._spent:
            ahead = sum(self._spent) / len(self._spent) * (expected - number + 1)
            rest = f", about {ahead:.0f} s to go"
        self._head = f"trial {number} of about {expected} · {elapsed:.0f} s{rest}"
        self._out.print(f"{self._head} · {describe(step.config)}")
        self._out.print(f"    {step.purpose}", style="dim")

    def waits_for(self, what: str) -> None:
        if self._status is not None:
            from diag.report.text import one_line

            self._status.update(one_line(f"{self._head} · waiting for {what}", 110))

    def trial_done(self, trial: Trial) -> None:
        from diag.report.bisect import OUTCOME_STYLE, trial_line

        self._spent.append(trial.total_s)
        self._out.print(f"    {trial_line(trial, self._plan.space.bad)}", style=OUTCOME_STYLE[trial.outcome])
