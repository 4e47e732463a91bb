"""A supervisor in a process of its own: argv[1] holds the arguments, JSON lines on stdin and stdout are the talk."""

from __future__ import annotations

import json
import os
import select
import sys
from typing import Any

from probes import supervise


class LineTalk:
    def emit(self, event: dict[str, Any]) -> None:
        print(json.dumps(event), flush=True)

    def receive(self, timeout_s: float | None) -> dict[str, Any] | None:
        if not select.select([0], [], [], timeout_s)[0]:
            return None
        line = os.read(0, 1 << 16)
        if not line:
            raise EOFError
        return json.loads(line)


if __name__ == "__main__":
    print(json.dumps(supervise.run(json.loads(sys.argv[1]), LineTalk())), flush=True)
