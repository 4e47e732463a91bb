"""A bench that runs any command for each trial, in the manner of `git bisect run`: for engines we do not know.

Each factor's level is in the environment as DIAG_<FACTOR> (upper case; true and false are 1 and 0), the host it is
about, where there are any, as DIAG_HOST. The exit code says what was seen:

    0           healthy
    1 to 124    broken
    125         this configuration cannot be tried: skipped, which is evidence of nothing
    126, 127    the command itself cannot run, and above, or a signal: the run ends

A line `garbled=3/32` in its output says how many of how many texts were broken, where it knows; a line
`signature=TEXT` what kind of failure it is.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from typing import IO

from diag.bisect.decision import Next
from diag.bisect.executor import Cancelled
from diag.bisect.expr import Value
from diag.bisect.space import Space
from diag.bisect.trial import Outcome, Trial
from diag.errors import PreconditionFailed
from diag.verdict.compare import Kind, TextVerdict

SKIP = 125
TAIL_LINES = 20
KEPT_CHARS = 4000
READ_BYTES = 1 << 20
_COUNTS = re.compile(r"^garbled=(\d{1,4})/(\d{1,4})\s*$", re.MULTILINE)
_SIGNATURE = re.compile(r"^signature=(\S.{0,119}?)\s*$", re.MULTILINE)

# The command waits for a line before it begins, and the guard kills its group when the pipe to us ends without a word:
# so nothing of it outlives us, whenever we are killed.
_BEGIN = 'read -r go || exit 0; exec /bin/sh -c "$1" </dev/null'
_GUARD = 'read -r done || kill -s KILL -- "-$1"'


class CommandBench:
    """command: a line for /bin/sh. timeout_s: a trial that takes longer is ended, with all it started, and skipped."""

    def __init__(self, space: Space, command: str, timeout_s: float, host: str = "") -> None:
        """`cwd` may be set: where the command runs, if not where diag does."""
        self._space, self._command, self._timeout_s, self._host = space, command, timeout_s, host
        self.cwd: str | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._cancelled = threading.Event()

    def trial(self, number: int, step: Next) -> Trial:
        began = time.monotonic()
        env = {**environment(step.config), **({"DIAG_HOST": self._host} if self._host else {})}
        code, output = self._run(env)
        if self._cancelled.is_set():
            raise Cancelled
        outcome, reason = judge(code, output)
        if outcome is None:
            raise PreconditionFailed(
                f"The trial command {reason} in trial {number}: {self._command}",
                next="Run it by hand with the factors set (DIAG_...); 125 says that a configuration cannot be tried.",
                details=output.splitlines()[-TAIL_LINES:],
            )
        return Trial(
            number=number,
            purpose=step.purpose,
            config=step.config,
            effective=self._space.effective(step.config, {}),
            outcome=outcome,
            texts=texts_from(output, outcome),
            reason=reason,
            total_s=time.monotonic() - began,
            details={"command": self._command, "exit_code": code, "output": output[-KEPT_CHARS:]},
            host=self._host,
            signature=signature(output) if outcome is Outcome.FAIL else "",
        )

    def cancel(self) -> None:
        self._cancelled.set()
        child = self._child
        if child is not None:
            _end_group(child.pid)

    abandon = cancel

    def close(self) -> None:
        """Nothing is kept between trials."""

    def _run(self, env: Mapping[str, str]) -> tuple[int | None, str]:
        """(exit code or None after the time limit, what it printed). Its process group is gone when this returns."""
        with tempfile.TemporaryFile() as output, _started(self._command, env, output, self.cwd) as child:
            self._child = child
            try:
                if self._cancelled.is_set():
                    raise Cancelled
                _tell(child, b"go\n")
                code = child.wait(self._timeout_s)
            except subprocess.TimeoutExpired:
                return None, ""
            finally:
                self._child = None
            return code, _read(output)


def environment(config: Mapping[str, Value]) -> dict[str, str]:
    """DIAG_BUDGET=16 for budget: 16."""
    return {
        f"DIAG_{name.upper()}": str(int(level)) if isinstance(level, bool) else str(level)
        for name, level in config.items()
    }


def judge(code: int | None, output: str) -> tuple[Outcome | None, str]:
    """(what the exit code says, in words). Outcome None: the run cannot go on. code None: it took too long."""
    counts = _COUNTS.search(output)
    told = f"{counts[1]} of {counts[2]} texts garbled" if counts else f"exit code {code}"
    if code is None:
        return Outcome.SKIP, "it took longer than the time limit"
    if code == 0:
        return Outcome.PASS, "healthy"
    if code == SKIP:
        return Outcome.SKIP, "it says that this configuration cannot be tried"
    if 0 < code < SKIP:
        return Outcome.FAIL, told
    return None, f"ended by signal {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def signature(output: str) -> str:
    """What it says of itself. Exit codes are no signature: scripts pass on whatever code their last command gave."""
    said = _SIGNATURE.search(output)
    return said[1] if said is not None else "fails"


def texts_from(output: str, outcome: Outcome) -> tuple[TextVerdict, ...]:
    """As many verdicts as the command counted; none where it did not count."""
    counts = _COUNTS.search(output)
    if counts is None or outcome is Outcome.SKIP:
        return ()
    garbled, asked = min(int(counts[1]), int(counts[2])), int(counts[2])
    kinds: list[Kind] = ["garbled" if at < garbled else "identical" for at in range(asked)]
    why = "as the command counted"
    return tuple(TextVerdict(str(n), "alone", kind, "", None, why) for n, kind in enumerate(kinds, 1))


def _tell(child: subprocess.Popen[bytes], line: bytes) -> None:
    """One line, and no more. It may be gone already."""
    if child.stdin is not None:
        with contextlib.suppress(BrokenPipeError), child.stdin as pipe:
            pipe.write(line)


def _read(output: IO[bytes]) -> str:
    """What was printed; of very much the end."""
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - READ_BYTES))
    return output.read().decode(errors="replace")


@contextlib.contextmanager
def _started(
    command: str, env: Mapping[str, str], output: IO[bytes], cwd: str | None
) -> Iterator[subprocess.Popen[bytes]]:
    """Waiting for its line, in a process group of its own, which is gone afterwards. It writes to a file and not to a
    pipe: what it leaves running may hold its output open, and is not waited for."""
    with (
        subprocess.Popen(
            ["/bin/sh", "-c", _BEGIN, "sh", command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **env},
            cwd=cwd,
            start_new_session=True,
        ) as child,
        _guarded(child.pid),
    ):
        try:
            yield child
        finally:
            _end_group(child.pid)


@contextlib.contextmanager
def _guarded(group: int) -> Iterator[None]:
    """While this lasts, the end of this process is the end of that group."""
    with subprocess.Popen(
        ["/bin/sh", "-c", _GUARD, "sh", str(group)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as guard:
        try:
            yield
        finally:
            _tell(guard, b"done\n")


def _end_group(group: int) -> None:
    """Whatever the command left in its group ends with it, on Ctrl-C and time-out too."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
