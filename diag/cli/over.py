"""`diag bisect --over versions | commits`: its options, and the run from asking to telling."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from diag.cli.common import console, print_json
from diag.errors import UsageError

if TYPE_CHECKING:
    from diag.bisect.over.session import Asked, Question, Ready

OPTIONS = (
    click.option("--over", "what", type=click.Choice(["versions", "commits"]), help="Search these, not settings."),
    click.option("--good", metavar="END", help="--over: the older end, which works: a version, or a commit."),
    click.option("--bad", metavar="END", help="--over: the newer end, which fails."),
    click.option("--package", metavar="NAME", help="--over: whose versions. [the plan's engine]"),
    click.option("--repo", metavar="PATH", help="--over commits: a checkout, on HOST or here. [.]"),
    click.option("--build-paths", multiple=True, metavar="PATH", help="--over commits: what a build is made of."),
    click.option("--source", metavar="PATH", help="--over commits: where in the tree packages lie. [python, src or .]"),
    click.option("--ignore-changes", is_flag=True, help="--over commits: go on although the checkout has changes."),
)
SHOWN = 6
_NAMES = ("what", "good", "bad", "package", "repo", "build_paths", "source", "ignore_changes")


def over_options(command: Callable[..., int]) -> Callable[..., int]:
    """Adds the options; the command gets them as one `over`."""

    @functools.wraps(command)
    def collected(**words: Any) -> int:
        return command(over=Over(**{name: words.pop(name) for name in _NAMES}), **words)

    for option in reversed(OPTIONS):
        collected = option(collected)
    return collected


@dataclass(frozen=True)
class Over:
    """The options as they were typed."""

    what: str | None
    good: str | None
    bad: str | None
    package: str | None
    repo: str | None
    build_paths: tuple[str, ...]
    source: str | None
    ignore_changes: bool

    def asked(
        self,
        names: tuple[str, ...],
        plan_name: str,
        trial_cmd: str | None,
        given: Mapping[str, str],
        *,
        run_id: str | None,
        check: bool,
        flaky: bool,
    ) -> Asked | None:
        """None where settings are searched, as without --over. Raises UsageError, PlanError; connects to nothing."""
        from diag.bisect import resume
        from diag.bisect.over import session

        if run_id is not None:
            if any(getattr(self, name) for name in _NAMES):
                raise UsageError(
                    "A run that is gone on with knows what it is about.", next=f"diag bisect --resume {run_id}"
                )
            earlier = resume.load(run_id)
            return session.resumed(earlier, names, given) if session.is_over(earlier) else None
        if self.what is None:
            self._refuse_alone()
            return None
        if check:
            raise UsageError("--check and --over do not go together.", next="Leave one of them out.")
        if self.what == "commits" and self.repo is None and names and trial_cmd is None:
            raise UsageError(
                f"Which checkout on {', '.join(names)}?", next="Name its folder there: --repo PATH; it is not touched."
            )
        typed = click.get_current_context().get_parameter_source("plan_name")
        named = typed is click.core.ParameterSource.COMMANDLINE or trial_cmd is None
        return session.new(names, self._question(), plan_name if named else None, trial_cmd, given, flaky=flaky)

    def _refuse_alone(self) -> None:
        for name in _NAMES[1:]:
            if getattr(self, name):
                option = f"--{name.replace('_', '-')}"
                raise UsageError(
                    f"{option} says something about --over, which is not there.",
                    next="Add --over versions or --over commits.",
                )

    def _question(self) -> Question:
        from diag.bisect.over.session import Question

        if self.good is None or self.bad is None:
            raise UsageError(
                f"--over {self.what} needs both ends.", next="--good: an older one that works; --bad: one that fails."
            )
        for name in ("repo", "build_paths", "source", "ignore_changes") if self.what == "versions" else ():
            if getattr(self, name):
                raise UsageError(
                    f"--{name.replace('_', '-')} goes with --over commits.", next="Leave it out, or search commits."
                )
        return Question(
            "versions" if self.what == "versions" else "commits",
            self.good,
            self.bad,
            self.package or "",
            self.repo or ".",
            tuple(path.strip("/") for path in self.build_paths),
            self.source,
            self.ignore_changes,
        )

    def run(self, asked: Asked, as_json: bool) -> int:
        from diag.bisect.over import page, session
        from diag.cli.bisect import _Show
        from diag.report import bisect as report
        from diag.report.text import visible

        err = console(stderr=True)
        with session.opened(asked) as opened, _Show(err, opened.ready) as show:
            result, ready = session.conduct(opened, show, note=err.print), opened.ready
        if as_json:
            print_json(page.document(result, ready))
        else:
            out = console()
            for style, line in page.page(result, ready):
                out.print(visible(line), style=style)
        return report.EXIT[result.verdict.kind]

    def dry_run(self, asked: Asked, as_json: bool) -> int:
        """Asks for the range, which takes the host, the index or the repository; tries nothing."""
        from diag.bisect.over import session

        with session.opened(asked) as opened:
            ready = opened.ready
        axis, search = ready.axis, ready.search()
        expected, command = search.expected_trials(()), _command(ready)
        if as_json:
            ids = [place.id for place in axis.places]
            print_json(
                {
                    "schema": 1,
                    "host": ", ".join(asked.slots) or None,
                    "plan": asked.name,
                    "expected_trials": expected,
                    "commands": {"good": command, "failing": command},
                    "over": {"what": asked.question.what, "places": ids, "notes": list(ready.notes)},
                }
            )
            return 0
        ends = f"{axis.called(0)} (good) to {axis.called(axis.bad)} (bad)"
        click.echo(f"{asked.name}: {len(axis.places)} {asked.question.what}, {ends}; about {expected} trials.\n")
        for at, place in enumerate(axis.places):
            if at < SHOWN or at >= len(axis.places) - SHOWN:
                click.echo(f"    {axis.called(at)}  {place.title}".rstrip())
            elif at == SHOWN:
                click.echo(f"    ... {len(axis.places) - 2 * SHOWN} more")
        for note in ready.notes:
            click.echo(f"note: {note}")
        click.echo("\neach trial: " + shlex.join(command).replace("'{port}'", "{port}"))
        return 0


def _command(ready: Ready) -> list[str]:
    asked = ready.asked
    if asked.command is not None or asked.plan is None:
        return ["sh", "-c", asked.command or ""]
    return asked.plan.argv(asked.plan.space.bad, asked.fills[asked.slots[0]])
