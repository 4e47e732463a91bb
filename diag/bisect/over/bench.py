"""A trial of one place of an axis: a server on a host, or a command, on what a layer puts there."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from diag.bisect.asking import Reference
from diag.bisect.bench import ServerBench
from diag.bisect.command import CommandBench
from diag.bisect.decision import Next
from diag.bisect.link import Link
from diag.bisect.over.axis import Axis
from diag.bisect.over.layers import Kept, Laid
from diag.bisect.plan import Plan
from diag.bisect.run import Listener
from diag.bisect.space import Config
from diag.bisect.trial import Outcome, Trial
from diag.errors import HostError, PreconditionFailed
from diag.hosts.transport import Transport
from diag.serving.server import Launch, Server
from diag.verdict.compare import TextVerdict

VERSION = "version"


class PlaceServerBench(ServerBench):
    """The plan's failing configuration, on a version or commit laid before the host's environment."""

    def __init__(
        self,
        axis: Axis,
        layers: Kept,
        plan: Plan,
        link: Link,
        mark: str,
        listener: Listener,
        fills: Mapping[str, str],
        done: Sequence[Trial] = (),
        *,
        resumed: bool = False,
        run: str | None = None,
        reports_version: bool = False,
    ) -> None:
        """reports_version: what is varied is the engine itself, whose server says in /server_info what it is."""
        super().__init__(plan, link, mark, listener, fills, done, resumed=resumed, run=run)
        self._axis, self._layers, self._reports_version = axis, layers, reports_version
        self._laid = Laid("", "")
        self._told: str | None = None
        self._connected = False

    def _tried(self, number: int, step: Next) -> Trial:
        began = time.monotonic()
        name = self._axis.name
        self._connected = False
        self._transport()
        try:
            self._laid, self._told = self._layers.lay(str(step.config[name]), self._say), None
        except HostError:
            self._layers.close()
            raise
        if self._laid.lacking:
            error = PreconditionFailed(self._laid.lacking, next="Name the folder that it lies in: --source PATH")
            return self._not_started(number, step, error, began)
        trial = super()._tried(number, Next(self._plan.space.bad, step.purpose))
        asked = str(step.config[name])
        at, warnings = _in_force(self._axis, asked, self._laid, self._told)
        return replace(
            trial,
            config=step.config,
            effective={name: at},
            warnings=(*self._laid.warnings, *warnings, *trial.warnings),
            total_s=time.monotonic() - began,
            details={**trial.details, **self._laid.details, "in_force": dict(trial.effective)},
        )

    def close(self) -> None:
        super().close()
        self._layers.close()

    def _transport(self) -> Transport:
        """Waited for once a trial: what is laid there needs it before the server does."""
        if self._connected:
            return self._link.transport()
        transport = super()._transport()
        self._connected = True
        return transport

    def _launch(self, config: Config) -> Launch:
        launch = super()._launch(config)
        return replace(launch, env={**launch.env, **self._laid.env})

    def _may_stay(self, texts: Sequence[TextVerdict]) -> bool:
        return False

    def _ask(self, server: Server, config: Config) -> tuple[list[TextVerdict], Reference, dict[str, Any]]:
        texts, reference, info = super()._ask(server, config)
        version = info.get(VERSION)
        if self._reports_version and isinstance(version, str):
            self._told = version
        return texts, reference, info

    def _not_started(self, number: int, step: Next, error: PreconditionFailed, began: float) -> Trial:
        """Raises for the two ends: without both there is nothing to find. Else a skipped trial."""
        places = self._axis.places
        for end, name in ((places[0], "good"), (places[-1], "bad")):
            if self._laid.at == end.id:
                error.what = f"The {name} end, {self._axis.name} {end.id}, does not start. {error.what}"
                raise error
        return Trial(
            number=number,
            purpose=step.purpose,
            config=step.config,
            effective=dict(step.config),
            outcome=Outcome.SKIP,
            reason=f"does not start: {error.details[-1]}" if error.details else error.what,
            total_s=time.monotonic() - began,
            details={"log": error.details},
            signature="does not start",
        )


def _in_force(axis: Axis, asked: str, laid: Laid, told: str | None) -> tuple[str, tuple[str, ...]]:
    """(what ran, warnings). What the server says of itself goes before what lies there, if it is a place at all."""
    if told is not None and told in axis.index:
        return told, () if told == asked else (f"{axis.name}: asked for {asked}, in force is {told}",)
    other = () if laid.at == asked else (f"{axis.name}: asked for {asked}, there is {laid.at}",)
    strange = () if told is None else (f"the server calls itself {told}; its files are those of {laid.at}",)
    return laid.at, (*other, *strange)


class PlaceCommandBench(CommandBench):
    """A command in the tree of a commit, on this machine. more: factors of a plan, at their failing level."""

    def __init__(
        self, axis: Axis, layers: Kept, command: str, timeout_s: float, listener: Listener, host: str, more: Config
    ) -> None:
        super().__init__(axis.space, command, timeout_s, host)
        self._axis, self._layers, self._listener, self._more = axis, layers, listener, more

    def trial(self, number: int, step: Next) -> Trial:
        name = self._axis.name
        laid = self._layers.lay(str(step.config[name]), self._listener.waits_for)
        self.cwd = laid.folder
        try:
            trial = super().trial(number, Next({**self._more, **step.config}, step.purpose))
        except PreconditionFailed as error:
            error.next = (
                'It runs in the tree of a commit, which has no untracked files: call those as "$DIAG_REPO/NAME". '
                "125 says that a commit cannot be tried."
            )
            raise
        return replace(
            trial,
            config=step.config,
            effective={name: laid.at},
            warnings=(*laid.warnings, *trial.warnings),
            details={**trial.details, **laid.details},
        )

    def close(self) -> None:
        self._layers.close()
