"""A bench that runs any command for each trial, in the manner of `git bisect run`: for engines we do not know.

Each factor's level is in the environment as DIAG_<FACTOR> (upper case; true and false are 1 and 0). The exit code
says what was seen:

    0           healthy
    1 to 124    broken
    125         this configuration cannot be tried: skipped, which is evidence of nothing
    126, 127    the command itself cannot run, and above, or a signal: the run ends

A line `garbled=3/32` in its output says how many of how many texts were broken, where it knows.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping

from diag.bisect.decision import Next
from diag.bisect.expr import Value
from diag.bisect.space import Space
from diag.bisect.trial import Outcome, Trial
from diag.errors import PreconditionFailed
from diag.verdict.compare import Kind, TextVerdict

SKIP = 125
TAIL_LINES = 20
KEPT_CHARS = 4000
_COUNTS = re.compile(r"^garbled=(\d{1,4})/(\d{1,4})\s*$", re.MULTILINE)


class CommandBench:
    """command: a line for /bin/sh. timeout_s: a trial that takes longer is ended, with all it started, and skipped."""

    def __init__(self, space: Space, command: str, timeout_s: float) -> None:
        self._space, self._command, self._timeout_s = space, command, timeout_s

    def trial(self, number: int, step: Next) -> Trial:
        began = time.monotonic()
        code, output = _run(self._command, environment(step.config), self._timeout_s)
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
        )


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


def texts_from(output: str, outcome: Outcome) -> tuple[TextVerdict, ...]:
    """As many verdicts as the command counted; none where it did not count."""
    counts = _COUNTS.search(output)
    if counts is None or outcome is Outcome.SKIP:
        return ()
    garbled, asked = min(int(counts[1]), int(counts[2])), int(counts[2])
    kinds: list[Kind] = ["garbled" if at < garbled else "identical" for at in range(asked)]
    why = "as the command counted"
    return tuple(TextVerdict(str(n), "alone", kind, "", None, why) for n, kind in enumerate(kinds, 1))


def _run(command: str, env: Mapping[str, str], timeout_s: float) -> tuple[int | None, str]:
    """(exit code or None after the time limit, what it printed). Its process group is gone when this returns."""
    with subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **env},
        start_new_session=True,
    ) as child:
        try:
            raw, _ = child.communicate(timeout=timeout_s)
            return child.returncode, raw.decode(errors="replace")
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            _end_group(child)


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """Whatever the command left in its group ends with it, on Ctrl-C and time-out too."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
    if child.poll() is None:
        child.communicate()
