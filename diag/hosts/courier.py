"""Run one probe on a host: one exec, one program by stdin, records back (docs/host-protocol.md).

    document = call(transport, "facts", {"packages": ["sglang"]})

    with converse(transport, "supervise", {...}) as conversation:
        for event in conversation.events(timeout_s=30): ...
        conversation.send({"cmd": "stop"})

A probe's expected failure is raised as the DiagError of its kind. An answer that is not complete is never a
success: LinkLost when the connection went, HostProgramFailed when the program did.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from diag import errors
from diag.errors import DiagError, HostProgramFailed, LinkLost, NoPythonOnHost, PreconditionFailed
from diag.hosts import narrate, payload
from diag.hosts.records import Record, RecordParser
from diag.hosts.transport import RemoteProcess, Transport

PING_S = 5.0
LEAVE_S = 2.0  # a call that is left early (Ctrl-C) waits this long; the host's own limit does the rest
GRACE_S = 10.0  # beyond the host's own limit, before the laptop stops waiting for its end record


@dataclass(frozen=True)
class Event:
    """A progress record of a probe."""

    data: dict[str, Any]


@dataclass(frozen=True)
class End:
    """The probe's result; nothing comes after it."""

    document: dict[str, Any]


def call(
    transport: Transport,
    module: str,
    args: Mapping[str, object] | None = None,
    *,
    timeout_s: float = 60,
    on_event: Callable[[dict[str, Any]], None] | None = None,
    python: str | None = None,
    sudo: bool = False,
    meanwhile: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """The document that the probe returns.

    module:    "facts" is probes/facts.py; "kernels.x" is kernels/x.py.
    timeout_s: also holds on the host: the probe is ended there, and nothing of it stays.
    python:    this interpreter and no other (the engine's, for `kernels`), with its own environment.
    sudo:      as root, by `sudo -n`. Raises PreconditionFailed when that is refused.
    meanwhile: done here while the host is at work.
    """
    deadline = time.monotonic() + timeout_s + GRACE_S
    with _start(transport, module, args, limit_s=timeout_s, python=python, sudo=sudo) as conversation:
        meanwhile()
        while True:
            item = conversation.next(max(0.0, deadline - time.monotonic()))
            if isinstance(item, End):
                return item.document
            if item is None:
                raise conversation.failed(f"did not answer within {timeout_s:g} s")
            if on_event is not None:
                on_event(item.data)


def converse(
    transport: Transport,
    module: str,
    args: Mapping[str, object] | None = None,
    *,
    python: str | None = None,
    close_timeout_s: float = 60,
) -> Conversation:
    """Start a probe that talks; use it in a `with`, so that it is told to finish whatever happens here."""
    conversation = _start(transport, module, args, limit_s=None, python=python)
    conversation.close_timeout_s = close_timeout_s
    conversation.keep_alive()
    return conversation


def open_relay(transport: Transport, host: str, port: int, timeout_s: float) -> RemoteProcess:
    """A program on the host whose stdin and stdout are a TCP stream to host:port as seen from there.

    Raises ConnectionRefusedError, TimeoutError, and what `call` raises.
    """
    args = {"host": host, "port": port, "timeout_s": timeout_s}
    conversation = _start(transport, "relay", args, limit_s=None, python=None)
    try:
        item = conversation.next(timeout_s + GRACE_S)
        if isinstance(item, Event):
            conversation.send({"cmd": "go"})
            return conversation.process
        if item is None or item.document.get("timed_out"):
            raise TimeoutError(f"{host} port {port}: no answer within {timeout_s:g} s")
        raise ConnectionRefusedError(f"{host} port {port}: {item.document.get('refused')}")
    except BaseException:
        conversation.process.close()
        raise


def _start(
    transport: Transport,
    module: str,
    args: Mapping[str, object] | None,
    *,
    limit_s: float | None,
    python: str | None,
    sudo: bool = False,
) -> Conversation:
    host = transport.host
    full_name = module if module.startswith(("probes.", "kernels.")) else f"probes.{module}"
    # The one place where the values leave their wrapping; they cross on standard input.
    env = {name: value.get_secret_value() for name, value in host.env.items()}
    request = {"args": dict(args or {}), "env": env, "limit_s": limit_s}
    narrate.program(host, full_name, args or {})
    program = payload.payload(full_name, request)
    given = python or host.helper_python
    candidates = (given,) if given is not None else _candidates(host.python)
    command = payload.command(candidates, isolated=python is None, sudo=sudo)
    process = transport.popen(command)
    conversation = Conversation(process, host.name, module)
    if host.container is not None:
        conversation.next_step = f"See above what it printed, and that {host.container} runs there and is yours to use."
    conversation.close_timeout_s = LEAVE_S
    try:
        process.write(program)
    except BrokenPipeError:
        pass  # it ended before it read all; why, is seen when reading
    except BaseException:
        process.close()
        raise
    return conversation


def _candidates(engine_python: str | None) -> tuple[str, ...]:
    return (*payload.CANDIDATES, engine_python) if engine_python is not None else payload.CANDIDATES


class Conversation:
    """A running probe. One thread reads (`next`, `events`, `close`); any may `send`."""

    def __init__(self, process: RemoteProcess, host_name: str, module: str) -> None:
        self.end: End | None = None
        self.close_timeout_s = 60.0
        self.process = process
        self._host_name = host_name
        self._module = module
        self._parser = RecordParser()
        self._records: deque[Record] = deque()
        self._stopped = threading.Event()
        self._sending = threading.Lock()
        self._closed = False
        self.next_step = "See above what it printed; if that says nothing, look at memory, limits and disk of the host."
        self._dead = False  # it ended without an answer, or the link did: there is nothing to wait for

    def next(self, timeout_s: float | None) -> Event | End | None:
        """What comes next; None when nothing came within timeout_s seconds. After `End`, the same `End` again.

        Raises the DiagError that the probe returned, LinkLost, HostProgramFailed or NoPythonOnHost.
        """
        if self.end is not None:
            return self.end
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._records:
            try:
                data = self.process.read(None if deadline is None else max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                return None
            except LinkLost:
                self._dead = True
                raise
            self._records += self._parser.feed(data) if data else self._parser.finish()
            if not data and not self._records:
                self._dead = True
                raise self._unfinished()
        return self._deliver(self._records.popleft())

    def _deliver(self, record: Record) -> Event | End:
        if record.kind == "event":
            return Event(record.document)
        self._stopped.set()
        self.end = End(record.document)
        if "error" in record.document:
            raise error_from(record.document["error"], f"{self._module} on {self._host_name}")
        return self.end

    def events(self, timeout_s: float) -> Iterator[Event]:
        """Each event until the end (then see `.end`). HostProgramFailed after timeout_s seconds of silence."""
        while True:
            item = self.next(timeout_s)
            if item is None:
                raise self.failed(f"was silent for {timeout_s:g} s")
            if isinstance(item, End):
                return
            yield item

    def send(self, message: Mapping[str, object]) -> None:
        """Raises LinkLost; HostProgramFailed when the probe has ended and reads no more."""
        line = json.dumps(message).encode() + b"\n"
        try:
            with self._sending:  # a long message goes out in steps, and a ping must not come between them
                self.process.write(line)
        except BrokenPipeError:
            raise self.failed("no longer reads") from None

    def keep_alive(self) -> None:
        """Send {"cmd": "ping"} every PING_S seconds from a thread, until the end."""
        threading.Thread(target=self._ping, name="diag-ping", daemon=True).start()

    def _ping(self) -> None:
        while not self._stopped.wait(PING_S):
            try:
                self.send({"cmd": "ping"})
            except (DiagError, OSError):
                return  # the reader says what happened

    def close(self) -> dict[str, Any] | None:
        """Tell the probe that we are done (end of stdin), wait until it has cleaned up, return its document.

        Raises what it returned as an error, or that it did not finish within close_timeout_s seconds.
        A second close does nothing.
        """
        if self._closed:
            return self.end.document if self.end is not None else None
        self._closed = True
        self._stopped.set()
        try:
            with contextlib.suppress(OSError):
                self.process.close_stdin()
            if self.end is None and not self._dead:
                self._await_end()
            # Its answer is complete; only give the interpreter the time to leave.
            self.process.exit_status(2.0)
        finally:
            self.process.close()
        return self.end.document if self.end is not None else None

    def _await_end(self) -> None:
        deadline = time.monotonic() + self.close_timeout_s
        while not isinstance(item := self.next(max(0.0, deadline - time.monotonic())), End):
            if item is None:
                raise self.failed(f"did not finish within {self.close_timeout_s:g} s of being told to")

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except DiagError as second:
            error.add_note(str(second))

    def failed(self, what: str) -> HostProgramFailed:
        return HostProgramFailed(
            f"Our program {self._module} on {self._host_name} {what}.",
            next=self.next_step,
            details=self.process.stderr().lines(),
        )

    def _unfinished(self) -> DiagError:
        status = self.process.exit_status(2.0)
        lines = self.process.stderr().lines()
        if status == payload.NO_PYTHON_STATUS and any(payload.NO_PYTHON_MARK in line for line in lines):
            return NoPythonOnHost(
                f"No usable Python (3.8 or newer) was found on {self._host_name}.",
                next="Set helper_python for this host in the inventory to one that exists there.",
                details=[line for line in lines if line.startswith("diag: ")],
            )
        if status == payload.NO_SUDO_STATUS and any(payload.NO_SUDO_MARK in line for line in lines):
            return PreconditionFailed(
                f"sudo on {self._host_name} did not let us run a program as root without a password.",
                next="Let this user run Python there with NOPASSWD in sudoers; or set sudo = false for this host in "
                "the inventory, and connect as the user who owns the environment.",
                details=lines,
            )
        how = "ended by a signal, or without a status" if status is None else f"exit status {status}"
        return self.failed(f"ended without an answer ({how})")


def error_from(error: object, where: str) -> DiagError:
    """The DiagError for the "error" of a document: {"kind", "what", "next", "details"}."""
    if not isinstance(error, dict):
        return HostProgramFailed(f"{where}: an error of unknown form: {error!r}")
    cls = _kinds().get(str(error.get("kind")), HostProgramFailed)
    what = str(error.get("what", "unknown"))
    if cls is HostProgramFailed:
        what = f"{where}: {what}"
    details = [str(line) for line in error.get("details") or []]
    return cls(what, next=str(error.get("next", "")), details=details)


def _kinds() -> dict[str, type[DiagError]]:
    found: dict[str, type[DiagError]] = {}
    waiting: list[type[DiagError]] = [DiagError]
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        if cls is not errors.PlanError:  # its constructor asks for more; no probe returns it
            found[cls.kind] = cls
    return found
