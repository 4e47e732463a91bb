"""A stand-in for sglang.launch_server: tests put it into a package of one real file, the one that `mask-indptr` mends.

It garbles where the real one does: when the draft tree's budget is not one less than the block size and the installed
file is not mended. How it answers is tests/bisect/over/toy_launch_server.py, which lies beside it as `answers.py`.
"""

import argparse
import http.server
import sys
import types
from pathlib import Path

FILE = Path(__file__).parent / "srt/layers/attention/triton_backend.py"


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--speculative-ddtree-budget", type=int, default=7)
    parser.add_argument("--speculative-num-draft-tokens", type=int, default=8)
    parser.add_argument("--speculative-eagle-topk", type=int, default=1)
    parser.add_argument("--disable-cuda-graph", action="store_true")
    return parser.parse_known_args()[0]


GIVEN = parsed()
WIDE = GIVEN.speculative_ddtree_budget + 1 != GIVEN.speculative_num_draft_tokens
MENDED = "# The width of this verify step" in FILE.read_text()
STATE = types.ModuleType("sglang.state")
STATE.HOW = "garbled" if WIDE and not MENDED else "healthy"  # type: ignore[attr-defined]
STATE.VERSION = "0.5.12"  # type: ignore[attr-defined]
sys.modules["sglang.state"] = STATE

from sglang.answers import Handler  # noqa: E402


class Flags(Handler):
    def do_GET(self) -> None:
        info = {"version": STATE.VERSION, "model_path": "toy", **vars(GIVEN)}
        self.answer(info if "server_info" in self.path else {})


if __name__ == "__main__":
    http.server.ThreadingHTTPServer(("127.0.0.1", GIVEN.port), Flags).serve_forever()
