"""A stand-in for sglang.launch_server: tests put it into a package of one real file, the one that `mask-indptr` mends.

It garbles where the real one does: when the draft tree's budget is not one less than the block size and the installed
file is not mended. As quick as a process can start, so that a whole story takes seconds.
"""

import argparse
import http.server
import json
import sys
from pathlib import Path

HEALTHY = "The river runs past the old mill and on to the sea, and nobody there remembers who built it."
GARBLED = "river mill nobody " * 7
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


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        info = {"version": "0.5.12", "model_path": "toy", **vars(GIVEN)}
        self.answer(info if "server_info" in self.path else {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        if "return_logprob" in body:
            self.answer({"text": "", "output_ids": [1], "meta_info": scores(body)})
            return
        garbled = WIDE and not MENDED
        words = (GARBLED if garbled else HEALTHY).split()
        ids = [900 + at for at in range(len(words))] if garbled else list(range(10, 10 + len(words)))
        meta = {"finish_reason": {"type": "stop"}, "completion_tokens": len(ids)}
        self.answer({"text": " ".join(words), "output_ids": ids, "meta_info": meta})

    def answer(self, document: object) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        pass


def scores(body: dict) -> dict:
    """Token ids from 900 on are what no model would say."""
    ids = body.get("input_ids") or [5, 6]
    start = max(body.get("logprob_start_len", 0), 0)
    told = [[-25.0 if one >= 900 else -0.1, one, None] for one in ids[start:]]
    best = [[[-0.1, one if one < 900 else 7, None]] for one in ids[start:]]
    return {"input_token_logprobs": told, "input_top_logprobs": best, "finish_reason": {"type": "length"}}


if __name__ == "__main__":
    http.server.ThreadingHTTPServer(("127.0.0.1", GIVEN.port), Handler).serve_forever()
    sys.exit(0)
