"""The story in the commands that a person would type, on the embedded host: `make demo`, `python -m diag.lab.demo`.

Every step is a command of its own in a process of its own, and must end with the exit code that the story says;
anything else stops the demo with exit code 1. Whatever happens, the lab is taken down at the end.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Step:
    """expects: the exit code that the story needs here."""

    title: str
    says: str
    argv: tuple[str, ...]
    expects: int = 0


STORY = (
    Step(
        "A host",
        "A GPU host in small, on this machine: an SSH server, an environment with the real SGLang 0.5.12 wheel, and a "
        "real 135M model. Everything below goes over SSH, as it would to a machine far away.",
        ("lab", "up"),
    ),
    Step(
        "What runs there, and is it what it says it is?",
        "One connection reads the host. The installed files match their wheel; one of them holds a known fault.",
        ("probe", "host", "lab"),
        expects=1,
    ),
    Step(
        "Which setting breaks the output?",
        "With a draft tree of budget 7 the server writes a poem, with budget 16 garbage. Branching, padding and CUDA "
        "graphs are the usual suspects. Each trial starts a server, asks it, compares with the good configuration, "
        "and stops it.",
        ("bisect", "lab", "--plan", "ddtree-garble"),
        expects=1,
    ),
    Step(
        "Mend the installed source",
        "The verify step's own width instead of the server setting; nothing else in the file changes.",
        ("fix", "apply", "lab", "mask-indptr", "--yes"),
    ),
    Step(
        "The failing configuration again",
        "The same command line that wrote garbage, on the mended file.",
        ("bisect", "lab", "--check"),
    ),
    Step(
        "Undo it",
        "The original file comes back, to the byte.",
        ("fix", "revert", "lab", "mask-indptr"),
    ),
    Step(
        "And the garbage comes back",
        "A, B, A: it was this file, and nothing else.",
        ("bisect", "lab", "--check"),
        expects=1,
    ),
    Step(
        "The file is the wheel's again",
        "Exit code 1 says that the fault is there again, `pristine` that the file is the wheel's own.",
        ("fix", "status", "lab", "mask-indptr"),
        expects=1,
    ),
)

DOWN = Step("Gone", "The lab's folder is removed; nothing is left running.", ("lab", "down"))


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="diag-demo-") as scratch:
        environment = {
            **os.environ,
            # The demo's lab must not meet the one that the person may have up.
            "DIAG_STATE_DIR": str(Path(scratch) / "state"),
            "DIAG_CONFIG_DIR": str(Path(scratch) / "config"),
        }
        timings: list[tuple[Step, float]] = []
        try:
            complete = all(_told(step, environment, timings) for step in STORY)
        except KeyboardInterrupt:
            complete = False
        finally:
            down = _told(DOWN, environment, timings)
    _summary(timings)
    return 0 if complete and down else 1


def _told(step: Step, environment: dict[str, str], timings: list[tuple[Step, float]]) -> bool:
    number = len(timings) + 1
    print(f"\n── {number}. {step.title} " + "─" * max(0, 90 - len(step.title)))
    print(f"{step.says}\n\n$ diag {' '.join(step.argv)}\n", flush=True)
    began = time.monotonic()
    code = _run(step.argv, environment)
    timings.append((step, time.monotonic() - began))
    if code != step.expects:
        print(f"\nThe story expected exit code {step.expects} here and got {code}: it ends.", flush=True)
        return False
    return True


def _run(argv: Sequence[str], environment: dict[str, str]) -> int:
    command = [sys.executable, "-c", "from diag.cli import main; main()", *argv]
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL) as child:
        try:
            return child.wait()
        except KeyboardInterrupt:
            # The terminal has interrupted the command too; it cleans up behind itself before it ends.
            child.wait()
            raise


def _summary(timings: Sequence[tuple[Step, float]]) -> None:
    print("\n── How long it took " + "─" * 72)
    for step, seconds in timings:
        print(f"{seconds:7.1f} s  diag {' '.join(step.argv)}")
    print(f"{sum(seconds for _, seconds in timings):7.1f} s  in all", flush=True)


if __name__ == "__main__":
    sys.exit(main())
