"""The toy engine of tests/bisect/over with flags: garbled at --batch 8, dead at its first question with --dies 1.

It parses its command line with argparse, as engines do, and reports its flags under /server_info.
"""

from __future__ import annotations

import argparse
import http.server
import os
import sys
import types
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser("toy_flags_server.py")
    for flag in ("--port", "--batch", "--graph", "--dies", *(f"--f{i}" for i in range(8))):
        parser.add_argument(flag, type=int, default=0)
    return parser.parse_args()


GIVEN = parsed()
STATE = types.ModuleType("sglang.state")
STATE.HOW = "garbled" if GIVEN.batch == 8 else "healthy"  # type: ignore[attr-defined]
STATE.VERSION = "toy"  # type: ignore[attr-defined]
sys.modules.update({"sglang": types.ModuleType("sglang"), "sglang.state": STATE})

from tests.bisect.over.toy_launch_server import Handler  # noqa: E402


class Flags(Handler):
    def do_GET(self) -> None:
        self.answer(vars(GIVEN) if "server_info" in self.path else {})

    def do_POST(self) -> None:
        if GIVEN.dies:
            print("RuntimeError: CUDA error: misaligned address 0x7f01", flush=True)
            os._exit(3)
        super().do_POST()


if __name__ == "__main__":
    http.server.ThreadingHTTPServer(("127.0.0.1", GIVEN.port), Flags).serve_forever()
