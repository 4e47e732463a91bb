"""Steps that start a server and stop it again: server.start, server.stop. A server lives no longer than the run."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from diag.errors import PreconditionFailed, UsageError
from diag.hosts import courier
from diag.playbook.kind import Foreseen, Kind, Params, Result, near, problems_of
from diag.playbook.stage import Held, Stage
from diag.report.text import one_line

if TYPE_CHECKING:
    from diag.hosts.transport import Transport
    from diag.serving.server import Launch, Progress

STOP = "server.stop"
REAP_TIMEOUT_S = 60.0


class StartParams(Params):
    """What starts it: `command`, or one end of a bisection's `plan`."""

    command: str | None = Field(default=None, min_length=1, description="one line; {port} is chosen for it")
    plan: str | None = Field(default=None, description="a shipped plan, or a file beside the playbook")
    end: Literal["good", "failing"] = Field(default="failing", description="which configuration of the plan")
    set: dict[str, str] = Field(default_factory=dict, description="fills {NAME} in the command")
    env: dict[str, str] = Field(default_factory=dict, description="of its environment")
    port: int | None = Field(default=None, ge=1, le=65535, description="a free one is chosen without it")
    ready_timeout_s: float | None = Field(default=None, gt=0, le=7200, description="until it has to be healthy")

    @model_validator(mode="after")
    def _one_of(self) -> StartParams:
        if (self.command is None) == (self.plan is None):
            raise ValueError("exactly one of command and plan says what is started")
        if self.command is not None and "{port}" not in self.command and self.port is None:
            raise ValueError("the command must take the port that is chosen for it: --port {port}")
        return self


def start(params: StartParams, stage: Stage) -> Result:
    from diag.serving import server as serving

    launch = _launch(params, stage)
    transport = stage.transport()
    change = stage.change(f"a server of this run, started by '{stage.step}'", do=STOP, mark=stage.mark)
    closing = contextlib.ExitStack()
    try:
        running = closing.enter_context(serving.start(transport, launch, lambda told: _progress(told, stage)))
    except PreconditionFailed:  # it did not start, and nothing of it is left
        stage.ended(change)
        raise
    stage.servers[stage.step] = Held(running, change, closing)
    values = {"port": running.port, "pid": running.pid, "ready_after_s": running.ready_after_s}
    return Result(
        f"healthy on port {running.port} after {running.ready_after_s:.1f} s (pid {running.pid})", values, changed=True
    )


def _progress(told: Progress, stage: Stage) -> None:
    if told.phase == "waiting":
        tail = f": {told.last_log}" if told.last_log else ""
        stage.say(one_line(f"the server to be healthy ({told.elapsed_s:.0f} s){tail}", 200))


def _launch(params: StartParams, stage: Stage) -> Launch:
    from diag.bisect import plan as plans
    from diag.bisect.bench import fills_for
    from diag.serving.server import Launch

    given = {**stage.fills, **params.set}
    if params.plan is None:
        argv, env, ready_timeout_s = _filled(params.command or "", stage, given), params.env, 600.0
    else:
        plan = plans.load(near(params.plan, stage.folder))
        config = plan.space.good if params.end == "good" else plan.space.bad
        argv = plan.argv(config, fills_for(plan, stage.host, given))
        env = {**plan.spec.env, **plan.space.env(config), **params.env}
        ready_timeout_s = plan.spec.ready_timeout_s
    return Launch(
        argv=argv,
        env=env,
        port=params.port,
        run_id=stage.mark,
        ready_timeout_s=params.ready_timeout_s or ready_timeout_s,
    )


def _filled(command: str, stage: Stage, given: Mapping[str, str]) -> list[str]:
    """The words of a command, its placeholders filled in; {port} stays for the host."""
    host = stage.host
    known = {**host.labels, **({"python": host.python} if host.python is not None else {}), **given, "port": "{port}"}
    missing = sorted(set(re.findall(r"\{([a-z][a-z0-9_]*)\}", command)) - set(known))
    if missing:
        raise UsageError(
            f"The command needs {{{missing[0]}}}, which nothing provides.",
            next=f"Give it in `set`, or as `labels.{missing[0]}` in the inventory entry of {host.name}.",
        )
    return [re.sub(r"\{([a-z][a-z0-9_]*)\}", lambda name: known[name[1]], word) for word in shlex.split(command)]


class StopParams(Params):
    main = "server"
    server: str = Field(description="the step that started it")


def stop(params: StopParams, stage: Stage) -> Result:
    held = stage.servers.pop(params.server, None)
    if held is None:
        return Result(f"nothing to do: the server of '{params.server}' is not up", {"clean": True, "seconds": 0.0})
    held.closing.close()
    stage.ended(held.change)
    proof = held.server.stopped
    left, seconds = proof.get("left") or [], float(proof.get("seconds") or 0.0)
    clean = not left and proof.get("port_free") is not False
    told = "all its processes are gone, its port is free" if clean else f"LEFT BEHIND: {len(left)} processes"
    if proof.get("died"):
        told = f"it had died before; {told}"
    return Result(
        f"{told}, after {seconds:.1f} s",
        {"clean": clean, "seconds": seconds},
        0 if clean else 1,
        dict(proof),
        changed=True,
    )


def undo_start(transport: Transport, undo: Mapping[str, Any]) -> None:
    """Stop whatever still carries the mark."""
    from diag.serving.server import STOP_GRACE_S

    args = {"reap": True, "run_id": undo["mark"], "stop_grace_s": STOP_GRACE_S}
    courier.call(transport, "supervise", args, timeout_s=REAP_TIMEOUT_S)


def _changes(params: Any, stage: Stage) -> Foreseen:
    return "change"


def _plan(params: StartParams, folder: Path) -> Iterator[tuple[str, str]]:
    from diag.bisect import plan as plans

    name = params.plan
    if name is not None:
        yield from problems_of("plan", lambda: plans.load(near(name, folder)))
    try:
        shlex.split(params.command or "")
    except ValueError as error:
        yield "command", f"not a command line: {error}"


KINDS = (
    Kind(
        "server.start",
        StartParams,
        "start a server and wait until it is healthy; undone by stopping it, with all that it started",
        {"port": "that it listens on", "pid": "of the server", "ready_after_s": "seconds until it was healthy"},
        start,
        _changes,
        changes=True,
        check=_plan,
    ),
    Kind(
        "server.stop",
        StopParams,
        "stop a server of this run, with proof",
        {"clean": "all its processes are gone, its port is free", "seconds": "that it took"},
        stop,
        _changes,
        changes=True,
        refers={"server": "server.start"},
    ),
)
