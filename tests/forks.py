"""`diag` commands in forked processes, so that a kill falls on what they do and not on what Python does before it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

SERVER = Path(__file__).parent / "cli" / "fork_server.py"


class Forks:
    """The process that forks, and the one command that it runs at a time."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self.child: int | None = None

    def start(self, arguments: list[str], folder: Path) -> None:
        request = json.dumps({"arguments": arguments, "folder": str(folder)})
        self._server.stdin.write(request.encode() + b"\n")  # type: ignore[union-attr]
        self.child = int(self._server.stdout.readline())  # type: ignore[union-attr]

    def ends_within(self, seconds: float) -> bool:
        if self.child is not None and select.select([self._server.stdout], [], [], seconds)[0]:
            assert self._server.stdout.readline() == b"ended\n"  # type: ignore[union-attr]
            self.child = None
        return self.child is None

    def kill(self) -> None:
        if self.child is not None:
            os.kill(self.child, signal.SIGKILL)
            assert self.ends_within(20)

    def close(self) -> None:
        self.kill()
        self._server.stdin.close()  # type: ignore[union-attr]
        self._server.wait(20)
        self._server.stdout.close()  # type: ignore[union-attr]
