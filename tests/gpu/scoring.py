"""How long scoring an answer takes on the running server, and how far healthy answers are from its own: a table.

    python tests/gpu/scoring.py ENGINE_PYTHON MODEL_FOLDER

Starts one SGLang server (NGRAM speculation on the Triton backend, nothing wrong with it), asks four prompts for 96
tokens each, alone and together, scores every answer on the same server, teacher-forced and by the token ids that it
emitted, twenty times over. Not collected by pytest: needs an NVIDIA GPU.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from diag.hosts.inventory import LOCAL, Host
from diag.hosts.transport import connect
from diag.serving import server, suites
from diag.verdict.prompts import load

TOKENS, TIMES = 96, 20
FLAGS = """
--attention-backend triton --sampling-backend pytorch --grammar-backend none --mem-fraction-static 0.3
--max-total-tokens 20000 --context-length 4096 --speculative-algorithm NGRAM --speculative-num-draft-tokens 8
--disable-piecewise-cuda-graph
"""


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    options.add_argument("python")
    options.add_argument("model")
    given = options.parse_args()
    base = (given.python, "-m", "sglang.launch_server", "--model-path", given.model, "--port", "{port}")
    launch = server.Launch((*base, *shlex.split(FLAGS)), "scoring", {"HF_HUB_OFFLINE": "1"}, ready_timeout_s=400)
    with connect(Host(name=LOCAL, address=LOCAL)) as transport, server.start(transport, launch) as running:
        suite = load("garble")
        asked = suites.ask(running.client, suite, TOKENS)
        score = suites.Scoring(running.client, suite)
        print(f"ready after {running.ready_after_s:.1f} s")
        print("| prompt | asked | tokens | largest gap, nats | scoring, ms, median | most |")
        for each in asked:
            score(each.answer)  # what is compiled or cached at first is not what a bisection pays
            took = []
            for _ in range(TIMES):
                began = time.perf_counter()
                scores = score(each.answer)
                took.append((time.perf_counter() - began) * 1e3)
            gap = max(s.gap_nats for s in scores or [])
            numbers = f"{gap:.3f} | {statistics.median(took):.1f} | {max(took):.1f}"
            print(f"| {each.answer.prompt} | {each.how} | {len(each.answer.token_ids)} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
