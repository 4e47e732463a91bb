"""A bench that starts a server on a host for each trial, asks it, judges its texts, and stops it.

Where a plan has factors that go with the request, the server stays up between trials that differ in nothing else; a
configuration once more takes a new one, since what is decided at start-up would only be seen again.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from diag.bisect import asking, seen
from diag.bisect.decision import Next
from diag.bisect.executor import Cancelled
from diag.bisect.link import Link
from diag.bisect.ours import is_ours
from diag.bisect.plan import Plan
from diag.bisect.run import Listener
from diag.bisect.space import Config
from diag.bisect.trial import Outcome, Trial
from diag.errors import DiagError, HostError, PreconditionFailed, ServerDied, ServerNotHealthy, UsageError
from diag.hosts import courier
from diag.hosts.holding import held
from diag.hosts.inventory import Host
from diag.hosts.transport import Transport
from diag.records import telling
from diag.serving.server import STOP_GRACE_S, Launch, Progress, Server, start
from diag.verdict.compare import TextVerdict

RETRY_WAIT_S = 5.0
"""Before a lost connection is made again; twice as long the second time."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
DEATH_WAIT_S = 0.5
"""After a request without an answer: its supervisor looks five times a second whether the server still lives."""


def fills_for(plan: Plan, host: Host, given: Mapping[str, str]) -> dict[str, str]:
    """Values for the command's placeholders: --set first, then the host's labels and its interpreter."""
    known = {**host.labels, **({"python": host.python} if host.python is not None else {}), **given}
    missing = sorted(plan.placeholders() - set(known))
    if missing:
        first = missing[0]
        where = "`python`" if first == "python" else f"`labels.{first}`"
        raise UsageError(
            f"The plan's command needs {', '.join('{' + name + '}' for name in missing)}, which nothing provides.",
            next=f"Give it: --set {first}=VALUE, or {where} in the inventory entry of {host.name}.",
        )
    return {name: known[name] for name in plan.placeholders()}


def visible(host: Host) -> dict[str, str]:
    """What a server there is started with so that it sees the GPUs of its slot and no others."""
    return {VISIBLE: ",".join(host.gpus)} if host.gpus else {}


def refuse_two_masters(plan: Plan, hosts: Sequence[Host]) -> None:
    """Raises UsageError where both the plan and a host say which GPUs a server sees."""
    told = VISIBLE in plan.spec.env or VISIBLE in plan.space.env(plan.space.bad)
    named = next((host.name for host in hosts if host.gpus), None)
    if told and named is not None:
        raise UsageError(
            f"The plan sets {VISIBLE}, and the host of {named} has gpu_sets: which GPUs a server gets is not clear.",
            next="Take one of the two away.",
        )


@dataclass
class _Running:
    """A server that is up. asked: configurations it was tried with; a full stop is `closing.close()`."""

    server: Server
    launch: Launch
    config: Config
    closing: contextlib.ExitStack
    asked: list[Config] = field(default_factory=list)


class ServerBench:
    """Runs single trials; keeps the good configuration's answers, which all others are judged by."""

    def __init__(
        self,
        plan: Plan,
        link: Link,
        mark: str,
        listener: Listener,
        fills: Mapping[str, str],
        done: Sequence[Trial] = (),
        *,
        resumed: bool = False,
        run: str | None = None,
    ) -> None:
        """mark: on every process that is started on the host; what carries it is this run's to stop.
        run: whose the lock of the host is; None: of the mark.
        done: trials of an earlier session of this run; the first healthy one of this host holds the reference.
        resumed: a server of the earlier session may still be there."""
        self._plan, self._link, self._mark = plan, link, mark
        self._listener, self._fills = listener, fills
        self._reference = asking.reference_of([t for t in done if t.host in ("", link.host.name)])
        self._unsure = resumed
        self._lost = 0
        self._running: _Running | None = None
        self._first_info: Mapping[str, Any] | None = None
        self._run = run if run is not None else mark
        self._lock: tuple[Transport, contextlib.ExitStack] | None = None
        self._cancelled = threading.Event()

    # what an executor calls

    def trial(self, number: int, step: Next) -> Trial:
        self._stay()
        try:
            trial = self._tried(number, step)
        except HostError:
            self._lost, self._unsure = self._lost + 1, True
            self._link.drop()
            self._unlock()
            raise
        self._lost = 0
        return trial

    def cancel(self) -> None:
        self._cancelled.set()
        running = self._running
        if running is not None:
            running.server.halt()

    def abandon(self) -> None:
        self._link.cut()

    def close(self) -> None:
        with contextlib.suppress(DiagError):  # its supervisor stops it when it hears nothing more
            self._stop()
        self._unlock()

    # one trial

    def _tried(self, number: int, step: Next) -> Trial:
        began = time.monotonic()
        try:
            running = self._server_for(step.config)
        except (ServerDied, ServerNotHealthy) as error:
            if is_ours(error):
                raise
            return self._not_started(number, step, error, began)
        try:
            texts, reference, info = self._ask(running.server, step.config)
        except BaseException as error:
            self._stop_after(error)
            raise
        if any(text.kind == "no_answer" for text in texts):
            self._cancelled.wait(DEATH_WAIT_S)
        if not self._may_stay(texts):
            self._stop()
        return self._trial(number, step, running, texts, reference, info, began)

    def _trial(
        self,
        number: int,
        step: Next,
        running: _Running,
        texts: list[TextVerdict],
        reference: asking.Reference,
        info: Mapping[str, Any],
        began: float,
    ) -> Trial:
        plan, server = self._plan, running.server
        if self._reference is None and seen.outcome(texts, server.stopped, plan.space, step.config)[0] is Outcome.PASS:
            self._reference = reference  # of the first healthy trial, and kept from then on
        told = {**seen.told(running.launch), **self._in_force(info), asking.MARGIN: reference.margin.to_json()}
        return seen.trial(
            plan,
            step,
            texts,
            info,
            server.stopped,
            number=number,
            start_s=server.ready_after_s if len(running.asked) == 1 else 0.0,
            total_s=time.monotonic() - began,
            details=told,
        )

    def _in_force(self, info: Mapping[str, Any]) -> dict[str, Any]:
        """For the report."""
        told = telling.in_force(info, self._first_info)
        self._first_info = told.get("server_info", self._first_info)
        return told

    def _ask(self, server: Server, config: Config) -> tuple[list[TextVerdict], asking.Reference, dict[str, Any]]:
        """(texts, reference, effective configuration). The first trial of a run is the good configuration: its own
        lone answers are the reference."""
        texts, reference = asking.ask(server.client, self._plan, config, self._reference, self._say)
        # Read last: counters then show which paths the prompts really took.
        return texts, reference, _effective(server)

    def _not_started(self, number: int, step: Next, error: PreconditionFailed, began: float) -> Trial:
        return seen.not_started(self._plan, step, error, number=number, total_s=time.monotonic() - began)

    # the server

    def _server_for(self, config: Config) -> _Running:
        """The one that is up, if only the request differs; else a new one."""
        running, space = self._running, self._plan.space
        if running is not None and config not in running.asked and not space.restarts(config, running.config):
            running.asked.append(config)
            with contextlib.suppress(httpx.HTTPError):
                running.server.client.flush_cache()
            return running
        self._stop()
        launch = self._launch(config)
        closing = contextlib.ExitStack()
        server = closing.enter_context(start(self._transport(), launch, self._progress))
        self._running = _Running(server, launch, config, closing, [config])
        return self._running

    def _may_stay(self, texts: Sequence[TextVerdict]) -> bool:
        """Of use for another request, and not in trouble: whether it died is seen when it is stopped."""
        per_request = any(f.apply == "request" for f in self._plan.space.factors)
        return per_request and all(text.kind != "no_answer" for text in texts)

    def _stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.closing.close()

    def _stop_after(self, error: BaseException) -> None:
        try:
            self._stop()
        except DiagError as second:
            error.add_note(str(second))

    def _launch(self, config: Config) -> Launch:
        launch = seen.launch(self._plan, config, self._mark, self._fills)
        return replace(launch, env={**launch.env, **visible(self._link.host)})

    def _transport(self) -> Transport:
        """Connected, and the host locked; if a server of this run may have been left there, it is stopped first."""
        if self._lost:
            self._say(f"a new connection, the old one was lost ({self._lost})")
            self._cancelled.wait(RETRY_WAIT_S * self._lost)
            self._stay()
        transport = self._link.transport()
        self._hold(transport)
        if self._unsure:
            args = {"reap": True, "run_id": self._mark, "stop_grace_s": STOP_GRACE_S}
            courier.call(transport, "supervise", args, timeout_s=60)
            self._unsure = False
        return transport

    def _hold(self, transport: Transport) -> None:
        """The lock goes with the connection, so there is one for each."""
        if self._lock is not None and self._lock[0] is transport:
            return
        self._unlock()
        closing = contextlib.ExitStack()
        gpus = self._link.host.gpus
        where = f" on GPU {', '.join(gpus)}" if gpus else ""
        closing.enter_context(held(transport, f"diag bisect, run {self._run}{where}", self._run, gpus))
        self._lock = transport, closing

    def _unlock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock[1].close()

    # what is said meanwhile, and whether to go on

    def _progress(self, progress: Progress) -> None:
        self._stay()
        if progress.phase == "waiting":
            tail = f": {progress.last_log}" if progress.last_log else ""
            self._say(f"the server to be healthy ({progress.elapsed_s:.0f} s){tail}")

    def _say(self, what: str) -> None:
        self._stay()
        self._listener.waits_for(what)

    def _stay(self) -> None:
        if self._cancelled.is_set():
            raise Cancelled


def _effective(server: Server) -> dict[str, Any]:
    """What it says is in force; {} where it says nothing any more, which the texts then show, or how it ended."""
    try:
        return server.client.server_info()
    except httpx.HTTPError:
        return {}
