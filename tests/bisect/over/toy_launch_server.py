"""A stand-in for sglang.launch_server, as small as a release can be: it becomes `sglang/launch_server.py` of wheels and
commits that tests make. Beside it lies `sglang/state.py`: HOW = "healthy", "garbled" or "dead", and VERSION.
"""

import argparse
import http.server
import json
import sys

from sglang.state import HOW, VERSION

HEALTHY = "The river runs past the old mill and on to the sea, and nobody there remembers who built it."
GARBLED = "river mill nobody " * 7


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.answer({"version": VERSION, "file": __file__} if "server_info" in self.path else {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        if "return_logprob" in body:
            self.answer({"text": "", "output_ids": [1], "meta_info": scores(body)})
            return
        text = GARBLED if HOW == "garbled" else HEALTHY
        words = text.split()
        ids = [900 + at for at in range(len(words))] if HOW == "garbled" else list(range(10, 10 + len(words)))
        meta = {"finish_reason": {"type": "stop"}, "completion_tokens": len(ids)}
        self.answer({"text": text, "output_ids": ids, "meta_info": meta})

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
    if HOW == "dead":
        sys.exit("ImportError: libcudart.so.12: cannot open shared object file")
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--batch", type=int)
    given = parser.parse_args()
    http.server.ThreadingHTTPServer(("127.0.0.1", given.port), Handler).serve_forever()
