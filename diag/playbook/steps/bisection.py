"""The step that searches: bisect, over settings, versions or commits. It has a run of its own, and is gone on with."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from diag.errors import DiagError, UsageError
from diag.playbook.kind import Foreseen, Kind, Params, Result, near, problems_of
from diag.playbook.stage import Stage
from diag.playbook.steps.servers import STOP

if TYPE_CHECKING:
    from diag.bisect import resume
    from diag.bisect.decision import Next
    from diag.bisect.run import Result as Found
    from diag.bisect.trial import Trial


class OverParams(Params):
    """As --over and what goes with it."""

    what: Literal["versions", "commits"]
    good: str = Field(description="the older end, which works")
    bad: str = Field(description="the newer end, which fails")
    package: str = Field(default="", description="whose versions; the plan's engine without it")
    repo: str = Field(default=".", description="commits: a checkout on the host")
    source: str | None = Field(default=None, description="commits: where in the tree packages lie")
    ignore_changes: bool = Field(default=False, description="commits: go on although the checkout has changes")


class BisectParams(Params):
    """As the options of `diag bisect`."""

    main = "plan"
    plan: str | None = Field(default=None, description="a shipped plan, or a file beside the playbook")
    suspects: str | None = Field(
        default=None, description="instead of a plan: an earlier probe.host step that saw the server which garbles"
    )
    port: int = Field(default=0, ge=0, le=65535, description="suspects: of that server; 0: the only one that garbles")
    set: dict[str, str] = Field(default_factory=dict, description="fills {NAME} in the plan's command")
    check: bool = Field(default=False, description="only the two ends: does the failing configuration still fail?")
    flaky: bool = Field(default=False, description="the fault does not show every time")
    over: OverParams | None = Field(default=None, description="search versions or commits, not settings")

    @model_validator(mode="after")
    def _consistent(self) -> BisectParams:
        if (self.plan is None) == (self.suspects is None):
            raise ValueError("exactly one of plan and suspects says what is searched")
        if self.over is not None and (self.check or self.suspects is not None):
            raise ValueError("`over` goes with a plan, and without `check`")
        return self


def bisect(params: BisectParams, stage: Stage) -> Result:
    earlier = _earlier(stage.mark)
    # Its servers carry the run's id, whatever becomes of us.
    change = stage.change(f"servers of the bisection {stage.mark}", do=STOP, mark=stage.mark)
    result = _over(params, stage, earlier) if params.over is not None else _settings(params, stage, earlier)
    stage.ended(change)
    return result


def _earlier(run_id: str) -> resume.Earlier | None:
    """The run that this step had begun; one that had not even its first line is removed."""
    from diag.bisect import resume
    from diag.journal import Journal, read

    folder = resume.runs_folder() / run_id
    if not (folder / "journal.jsonl").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        return None
    with contextlib.suppress(ValueError):
        if not read(folder / "journal.jsonl"):
            with Journal.reopen(folder, run_id):
                shutil.rmtree(folder)
            return None
    return resume.load(run_id)


def _settings(params: BisectParams, stage: Stage, earlier: resume.Earlier | None) -> Result:
    from dataclasses import replace

    from diag.bisect import session
    from diag.report import bisect as report

    given = {**stage.fills, **params.set}
    if earlier is not None:
        asked = session.resumed(stage.mark, [], given)
    else:
        plan = _plan(params, stage)
        asked = session.new([stage.host.name], plan, None, given, check=params.check, flaky=params.flaky)
    done = session.conduct(replace(asked, holder=stage.run_id), Told(stage.say), run_id=stage.mark, warn=stage.say)
    document = report.document(done.result, asked.space, asked.where, asked.plan.name, done.source)
    page = report.page(done.result, asked.space, asked.where, done.source)
    return _result(done.result, document, [line for _, line in page])


def _over(params: BisectParams, stage: Stage, earlier: resume.Earlier | None) -> Result:
    from dataclasses import replace

    from diag.bisect.over import page, session

    if params.over is None:
        raise ValueError("a search over settings")
    over, given = params.over, {**stage.fills, **params.set}
    if earlier is not None:
        asked = session.resumed(earlier, [], given)
    else:
        question = session.Question(
            over.what, over.good, over.bad, over.package, over.repo, (), over.source, over.ignore_changes
        )
        asked = session.new([stage.host.name], question, _plan(params, stage), None, given, flaky=params.flaky)
    with session.opened(replace(asked, holder=stage.run_id)) as found:
        result = session.conduct(found, Told(stage.say), run_id=stage.mark, note=stage.say)
        ready = found.ready
    return _result(result, page.document(result, ready), [line for _, line in page.page(result, ready)])


def _result(found: Found, document: Mapping[str, Any], page: list[str]) -> Result:
    from diag.report import bisect as report

    verdict, code = found.verdict, report.EXIT[found.verdict.kind]
    culprit = verdict.culprit.name if verdict.culprit is not None else ""
    told = f"{verdict.kind.replace('_', ' ')}: {culprit or verdict.why}"
    return Result(
        f"{told}; {len(found.trials)} trials",
        {
            "verdict": verdict.kind,
            "culprit": culprit,
            "trials": len(found.trials),
            "failing": verdict.kind in ("culprit", "fails", "narrowed", "unexplained"),
            "exit_code": code,
        },
        code,
        document,
        tuple(page),
        run=found.run_id,
    )


def _plan(params: BisectParams, stage: Stage) -> str:
    """Its name, or the path of one that is written for the server which was seen."""
    if params.plan is not None:
        return near(params.plan, stage.folder)
    return str(_suspected(params, stage))


def _suspected(params: BisectParams, stage: Stage) -> Path:
    from diag import paths
    from diag.serving.suspects import plan_text, suspects

    seen = _seen(params, stage)
    version = (seen.get("effective") or {}).get("version")
    path = paths.state_dir() / "runs" / stage.run_id / f"{stage.mark}.yaml"
    path.write_text(plan_text(suspects(seen["engine"], version, seen["argv"], seen.get("env"))), encoding="utf-8")
    return path


def _seen(params: BisectParams, stage: Stage) -> Mapping[str, Any]:
    """The server that is meant, as the step that saw it tells of it."""
    result = stage.results.get(params.suspects or "")
    servers = (result.document or {}).get("servers", []) if result is not None else []
    wanted = [one for one in servers if one["port"] == params.port] if params.port else servers
    fitting = [one for one in wanted if params.port or one["verdict"] == "garbled"] or wanted
    if len(fitting) == 1:
        chosen: Mapping[str, Any] = fitting[0]
        return chosen
    ports = ", ".join(str(one["port"]) for one in fitting)
    raise UsageError(
        f"Step '{params.suspects}' saw {f'servers on ports {ports}' if fitting else 'no such server'} on "
        f"{stage.host.name}; whose settings are suspect?",
        next="Say which by `port`, or name a plan." if fitting else "Start the server that garbles, or name a plan.",
    )


class Told:
    """What a search says while it runs, as lines of progress."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._head = ""

    def trial_starts(self, number: int, expected: int, step: Next, host: str = "") -> None:
        from diag.bisect.space import describe

        self._head = f"trial {number} of about {expected}, {describe(step.config)}"
        self._say(self._head)

    def waits_for(self, what: str) -> None:
        self._say(f"{self._head}: {what}")

    def trial_done(self, trial: Trial) -> None:
        self._say(f"{self._head}: {trial.outcome.value}")

    def host_leaves(self, host: str, why: str) -> None:
        self._say(f"{host} is left out: {why}")

    def outlook(self, leader: str, share: float, rest: int) -> None:
        self._say(f"likeliest: {leader} ({share:.0%}), about {rest} more trials")


def _changes(params: BisectParams, stage: Stage) -> Foreseen:
    """It starts servers, and leaves nothing."""
    return "change"


def _loads(params: BisectParams, folder: Path) -> Iterator[tuple[str, str]]:
    from diag.bisect import plan as plans

    name = params.plan
    if name is None:
        return
    try:
        plan = plans.load(near(name, folder))
    except DiagError:
        yield from problems_of("plan", lambda: plans.load(near(name, folder)))
        return
    if plan.trial is not None:
        yield "plan", "its trial is a command, which runs here and not on the host; name a plan that starts a server"


KINDS = (
    Kind(
        "bisect",
        BisectParams,
        "which setting, version or commit breaks the output; starts servers, and stops each of them",
        {
            "verdict": "culprit, not_reproduced, environmental, narrowed, unexplained; with check: clean or fails",
            "culprit": "its name, empty where there is none",
            "trials": "how many were made",
            "failing": "the failing configuration was seen to fail",
            "exit_code": "0 clean, 1 the culprit is named or it fails, 3 not named",
        },
        bisect,
        _changes,
        changes=True,
        refers={"suspects": "probe.host"},
        check=_loads,
    ),
)
