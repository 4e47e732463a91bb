"""`diag bisect`: which setting, or combination of settings, breaks the output?"""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING

import click

from diag.cli.common import JSON, console, print_json
from diag.cli.over import Over, over_options
from diag.cli.slurm import slurm_options
from diag.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console
    from rich.status import Status

    from diag.bisect.decision import Next
    from diag.bisect.forecast import Forecast
    from diag.bisect.over.session import Ready
    from diag.bisect.session import Session
    from diag.bisect.slurm.batch import Options
    from diag.bisect.space import Config
    from diag.bisect.trial import Trial


@click.command()
@click.argument("names", metavar="[HOST]...", nargs=-1)
@click.option("--plan", "plan_name", default="ddtree-garble", show_default=True, help="A shipped plan, or a file.")
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="Fill {NAME} in the plan's command.")
@click.option("--check", is_flag=True, help="Only the two ends: does the failing configuration still fail?")
@click.option("--flaky", is_flag=True, help="The fault does not show every time: weigh trials, repeat, hold some out.")
@click.option("--trial-cmd", metavar="CMD", help="Run CMD for each trial, on this machine, instead of a server.")
@click.option("--resume", "run_id", metavar="RUN", help="Go on with a run that was cut off (see: diag runs list).")
@click.option(
    "--dry-run", is_flag=True, help="Check the plan; show the first trials, how many, how long; start nothing."
)
@over_options
@slurm_options
@JSON
def bisect(
    names: tuple[str, ...],
    plan_name: str,
    sets: tuple[str, ...],
    check: bool,
    flaky: bool,
    trial_cmd: str | None,
    run_id: str | None,
    dry_run: bool,
    as_json: bool,
    over: Over,
    slurm: Callable[[], Options | None],
) -> int:
    """Find which factor of a plan, or which combination, breaks the output of a server on HOST.

    Starts the server over SSH once for each trial, asks it a suite of prompts one by one and all at once, judges
    every text against the good configuration's, and stops everything it started, whatever happens. On several hosts
    trials are made at once; each begins with the good configuration, and one where that fails is left out.

    With --trial-cmd no host is needed: CMD gets each factor as DIAG_FACTOR and says by its exit code what it saw
    (0 healthy, 1 to 124 broken, 125 cannot be tried); a line garbled=3/32 in its output gives counts.

    Without --flaky one trial is a proof: for a fault that shows every time. With it, rates of failure and of false
    alarms are learned, and it takes more trials (max_trials of the plan, else 200 at most).

    With --over versions or --over commits the plan's failing configuration is tried on released versions of a package,
    or on commits of a repository, between --good and --bad: which is the first bad one?

    With --executor slurm HOST is the login node of a Slurm cluster, and each trial a job there: Slurm places it, and it
    goes on when this computer is switched off (then: --resume). See docs/slurm.md.

    Exit code 1: the culprit is named; 3: it could not be named, and why is said. With --check, 0: the failing
    configuration is clean; 1: it fails.
    """
    from diag.bisect import session
    from diag.report import bisect as report

    given, options = set_values(sets), slurm()
    if options is not None and over.what is not None:
        raise UsageError("--over runs on a host, not as jobs.", next="Leave --executor slurm or --over out.")
    asked_over = over.asked(names, plan_name, trial_cmd, given, run_id=run_id, check=check, flaky=flaky)
    if asked_over is not None:
        return over.dry_run(asked_over, as_json) if dry_run else over.run(asked_over, as_json)
    asked = (
        session.resumed(run_id, names, given)
        if run_id is not None
        else session.new(names, plan_name, trial_cmd, given, check=check, flaky=flaky, slurm=options)
    )
    if dry_run:
        return _dry_run(asked, as_json)
    with _Show(console(stderr=True), asked) as show:
        done = session.conduct(asked, show, warn=lambda line: click.echo(line, err=True))
    plan, result, source = asked.plan, done.result, done.source
    if as_json:
        print_json(report.document(result, plan.space, asked.where, plan.name, source))
    else:
        out = console()
        for style, line in report.page(result, plan.space, asked.where, source):
            out.print(_safe(line), style=style)
    return report.EXIT[result.verdict.kind]


def set_values(sets: tuple[str, ...]) -> dict[str, str]:
    """What --set NAME=VALUE says. Raises UsageError."""
    given = {}
    for each in sets:
        key, equals, value = each.partition("=")
        if not equals or not key:
            raise UsageError(f"--set {each}: NAME=VALUE is expected.", next="For example: --set model=/models/x")
        given[key] = value
    return given


def _dry_run(asked: Session, as_json: bool) -> int:
    from diag.bisect.forecast import Cluster, forecast
    from diag.bisect.space import describe

    plan, space, options = asked.plan, asked.space, asked.slurm
    cluster = None if options is None else Cluster(options.jobs, (options.gpus or 0) * options.nodes)
    ahead = forecast(asked.search(), plan, asked.slots, on=cluster)
    ends = {"good": _command(asked, space.good), "failing": _command(asked, space.bad)}
    if as_json:
        told = {
            "schema": 1,
            "host": ", ".join(asked.slots) or None,
            "hosts": list(asked.slots),
            "plan": plan.name,
            "expected_trials": ahead.trials,
            "expected_minutes": None if ahead.minutes is None else round(ahead.minutes, 2),
            "minutes_from": ahead.minutes_from,
            "expected_rounds": ahead.rounds,
            "expected_jobs": ahead.jobs,
            "expected_gpu_hours": None if ahead.gpu_hours is None else round(ahead.gpu_hours, 2),
            "first_trials": [{"config": dict(step.config), "purpose": step.purpose} for step in ahead.first],
            "commands": ends,
        }
        print_json(told)
        return 0
    what = "trials" if plan.trial is None else "runs of the command"
    known = ahead.minutes is not None
    long = f"about {_duration(60 * (ahead.minutes or 0))} by" if known else "how long is not known:"
    click.echo(f"{plan.name}: {plan.spec.title or 'no title'}; about {ahead.trials} {what} on {asked.where}.")
    click.echo(f"{long} {ahead.minutes_from}")
    if ahead.jobs is not None:
        click.echo(_jobs(ahead, asked.at_once))
    click.echo("")
    for number, step in enumerate(ahead.first, 1):
        click.echo(f"trial {number}  {describe(step.config)}\n         {_safe(step.purpose)}")
    click.echo("")
    for end, words in ends.items():
        command = shlex.join(words).replace("'{port}'", "{port}")  # a placeholder, not something to quote
        click.echo(f"{end:8} {command}\n")
    return 0


def _jobs(ahead: Forecast, at_once: int) -> str:
    hours = "GPU-hours not known" if ahead.gpu_hours is None else f"about {ahead.gpu_hours:.1f} GPU-hours"
    return f"about {ahead.jobs} jobs, at most {at_once} at once, in {ahead.rounds} rounds; {hours}"


def _command(asked: Session, config: Config) -> list[str]:
    """What a trial of this configuration would run."""
    from diag.bisect.command import environment

    if asked.plan.trial is None:
        return asked.plan.argv(config, asked.fills[asked.slots[0]])
    return ["env", *(f"{name}={value}" for name, value in environment(config).items()), "sh", "-c", asked.plan.trial]


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _safe(line: str) -> str:
    from diag.report.text import visible

    return visible(line)


class _Show:
    """Tells on standard error what the run is doing: lines for a log, and a moving last line on a terminal."""

    def __init__(self, out: Console, asked: Session | Ready) -> None:
        self._out, self._space = out, asked.space
        self._hosts = asked.at_once
        self._several = self._hosts > 1
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

    def trial_starts(self, number: int, expected: int, step: Next, host: str = "") -> None:
        from diag.bisect.space import describe

        elapsed = time.monotonic() - self._began
        rest = ""
        if self._spent:
            ahead = sum(self._spent) / len(self._spent) * (expected - number + 1)
            rest = f", about {ahead:.0f} s to go"
        self._head = f"trial {number} of about {expected} · {elapsed:.0f} s{rest}"
        where = f" · {host}" if self._several else ""
        self._out.print(f"{self._head}{where} · {describe(step.config)}")
        self._out.print(f"    {step.purpose}", style="dim")

    def waits_for(self, what: str) -> None:
        if self._status is not None:
            from diag.report.text import one_line

            self._status.update(one_line(f"{self._head} · waiting for {what}", 110))

    def trial_done(self, trial: Trial) -> None:
        from diag.report.bisect import OUTCOME_STYLE, trial_line

        self._spent.append(trial.total_s)
        where = f"{trial.host}: " if self._several else ""
        line = f"    {where}{trial_line(trial, self._space.bad)}"
        self._out.print(line, style=OUTCOME_STYLE[trial.outcome])

    def outlook(self, leader: str, share: float, rest: int) -> None:
        """14 done · likeliest: topk=4 (92 %) · about 3 more, 20 min."""
        from diag.report.text import one_line

        done, each = len(self._spent), sum(self._spent) / max(1, len(self._spent)) / max(1, self._hosts)
        to_come = f"about {rest} more, {_duration(each * rest)}" if rest else "nothing more to ask"
        line = f"    {done} done · likeliest: {one_line(leader, 60)} ({share:.0%}) · {to_come}"
        self._out.print(_safe(line), style="dim")

    def host_leaves(self, host: str, why: str) -> None:
        self._out.print(_safe(f"    {host} is left out: {why}"), style="bold yellow")
