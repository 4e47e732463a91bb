"""Outputs of the lab's server under every fault that it can be given, each scored by a healthy server beside it."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diag.hosts import inventory
from diag.hosts.transport import Transport, connect
from diag.lab import control
from diag.lab.layout import Lab, model_dir
from diag.serving import server
from diag.serving.client import Answer, Client, Prompt
from diag.serving.suites import Scoring, ask
from diag.verdict.compare import ending
from diag.verdict.judging import Judge, with_end
from diag.verdict.prompts import Suite

TREE = (
    *("--speculative-algorithm", "DDTREE", "--speculative-ddtree-budget", "7"),
    *("--speculative-eagle-topk", "2", "--speculative-num-draft-tokens", "8"),
)
# name -> (flags, how it may show: alone, together)
FAULTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "mask-offsets": (control.STORY_FLAGS, ("alone", "together")),
    "stale-mask": ((*TREE, "--lab-fault", "stale-mask"), ("alone", "together")),
    "uninitialised-rows": (("--lab-fault", "uninitialised-rows"), ("alone", "together")),
    "uninitialised-rows, above 1": (("--lab-fault", "uninitialised-rows", "--lab-fault-above", "1"), ("together",)),
    "uninitialised-rows, past 36": (("--lab-fault", "uninitialised-rows", "--lab-fault-past", "36"), ("alone",)),
    "nan-layer": (("--lab-fault", "nan-layer", "--lab-fault-past", "40"), ("alone", "together")),
    "swapped-block": (("--lab-fault", "swapped-block"), ("together",)),
    "stale-prefix": (("--lab-fault", "stale-prefix"), ("alone",)),
    "early-end": (("--lab-fault", "early-end"), ("alone", "together")),
    "detokeniser": (("--lab-fault", "detokeniser"), ("alone", "together")),
    "wrong-dtype": (("--lab-fault", "wrong-dtype"), ("alone", "together")),
    "at boot, chance 1/2": (("--lab-fault", "uninitialised-rows", "--lab-fault-chance", "0.5"), ("alone", "together")),
}
HEALTHY = {"plain": (), "tree, graph": TREE}
NEW_TOKENS = 32

QUESTIONS: dict[str, tuple[str, str | None]] = {
    "poem": ("Write a short poem about the ocean.", None),
    "weekdays": ("List the days of the week.", "(?s)Monday.*Tuesday.*Wednesday"),
    "capital": ("What is the capital of France? Answer in one sentence.", "Paris"),
    "bread": ("Explain in two sentences how bread is made.", "(?i)flour|dough|bake"),
    "story": ("Tell a short story about an old lighthouse.", "(?i)light"),
    "json": ("Give a JSON object with the fields name and age.", r'"name"'),
    "dogs": ("Name three kinds of dogs.", "(?i)retriever|shepherd|poodle|bulldog|terrier|labrador|dog"),
    "moon": ("What is the moon?", "(?i)moon"),
}
SUITE = Suite.model_validate(
    {
        "schema": 1,
        "name": "benchmark",
        "prompts": [
            {"name": name, "user": user, **({} if expect is None else {"expect": expect})}
            for name, (user, expect) in QUESTIONS.items()
        ],
    }
)


@dataclass(frozen=True)
class Bench:
    transport: Transport
    python: str

    @contextmanager
    def serving(self, *flags: str) -> Iterator[server.Server]:
        command = (self.python, "-m", "sglang.launch_server", "--model-path", str(model_dir()), "--port", "{port}")
        launch = server.Launch(argv=(*command, *flags), run_id=f"v-{secrets.token_hex(4)}", ready_timeout_s=300)
        with server.start(self.transport, launch) as running:
            yield running


@contextmanager
def lab(cache: Path) -> Iterator[Bench]:
    """A lab of the benchmark's own, below the cache; gone afterwards."""
    os.environ["DIAG_STATE_DIR"], os.environ["DIAG_CONFIG_DIR"] = str(cache / "state"), str(cache / "config")
    where = Lab.default()
    control.up(where, lambda line: None)
    try:
        with connect(inventory.load().get("lab")) as transport:
            yield Bench(transport, str(where.python))
    finally:
        control.down(where, lambda line: None)


def collect(cache: Path, faults: list[str]) -> list[dict[str, Any]]:
    """One row an answer; kept in the cache, and only what is missing there is asked for."""
    kept = cache / "lab-faults.jsonl"
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.is_file() else []
    there = {row["fault"] for row in rows}
    wanted = [name for name in (*HEALTHY, *faults) if name not in there]
    if not wanted:
        return rows
    with ExitStack() as stack, kept.open("a") as out:
        bench = stack.enter_context(lab(cache))
        good = stack.enter_context(bench.serving())
        reference = _reference(good.client)
        for name in wanted:
            flags = HEALTHY.get(name, ()) if name in HEALTHY else FAULTS[name][0]
            print(f"lab: {name}", flush=True)
            with bench.serving(*flags) as running:
                made = list(_rows(name, running.client, good.client, reference))
            rows += made
            out.writelines(json.dumps(row) + "\n" for row in made)
            out.flush()
    return rows


def _reference(good: Client) -> dict[str, Answer]:
    prompts = [Prompt(p.name, SUITE.rendered(p)) for p in SUITE.prompts]
    return {prompt.name: good.generate(prompt, NEW_TOKENS) for prompt in prompts}


def _rows(fault: str, client: Client, good: Client, reference: dict[str, Answer]) -> Iterator[dict[str, Any]]:
    asked = ask(client, SUITE, NEW_TOKENS)
    info = client.server_info()
    end = ending((r.token_ids, r.finish_reason == "stop") for r in reference.values())
    score = Scoring(good, SUITE)
    verdicts = Judge(SUITE, score).against(asked, reference)
    for each, verdict in zip(asked, verdicts):
        answer, right = each.answer, reference[each.answer.prompt]
        scores = score(with_end(answer, end), None) if answer.token_ids else None
        yield {
            "fault": fault,
            "drawn": info.get("lab_fault_drawn", False) or fault == "mask-offsets",
            "prompt": QUESTIONS[answer.prompt][0],
            "name": answer.prompt,
            "how": each.how,
            "text": answer.text,
            "ids": list(answer.token_ids),
            "finish_reason": answer.finish_reason,
            "error": answer.error,
            "accept_length": answer.accept_length,
            "gaps": [score.gap_nats for score in scores or []],
            "reference_text": right.text,
            "reference_ids": list(right.token_ids),
            "reference_finish": right.finish_reason,
            "kind": verdict.kind,
            "why": verdict.why,
            "worst_gap_nats": verdict.worst_gap_nats,
            "diverges_at": verdict.diverges_at,
        }
