"""Outputs of the lab's server under every fault that it can be given, judged by `probe prompts` with a healthy server
beside it as the reference.

Three questions: is every changed answer found (FAULTS); is a healthy server's answer ever accused, plain or with
speculation, alone or in company (HEALTHY); does a fault that is drawn at the start of a server show (BOOTS)?
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from benchmarks import verdict_outputs
from diag.hosts import inventory
from diag.hosts.transport import Transport, connect
from diag.lab import control
from diag.lab.layout import Lab, model_dir
from diag.serving import server
from diag.serving.client import Client, Prompt
from diag.serving.endpoint import Endpoint, opened
from diag.serving.probing import Probe, probe
from diag.serving.suites import Scoring, margin
from diag.verdict.answers import Answer, Asked
from diag.verdict.compare import ending
from diag.verdict.judging import Judge, with_end
from diag.verdict.prompts import Suite, load

TREE = (
    *("--speculative-algorithm", "DDTREE", "--speculative-ddtree-budget", "7"),
    *("--speculative-eagle-topk", "2", "--speculative-num-draft-tokens", "8"),
)
EAGER = "--disable-cuda-graph"
BOOT = ("--lab-fault", "uninitialised-rows", "--lab-fault-chance", "0.5")
FAULTS: dict[str, tuple[str, ...]] = {
    "mask-offsets": control.STORY_FLAGS,
    "stale-mask": (*TREE, "--lab-fault", "stale-mask"),
    "uninitialised-rows": ("--lab-fault", "uninitialised-rows"),
    "uninitialised-rows, above 1": ("--lab-fault", "uninitialised-rows", "--lab-fault-above", "1"),
    "uninitialised-rows, past 36": ("--lab-fault", "uninitialised-rows", "--lab-fault-past", "36"),
    "nan-layer": ("--lab-fault", "nan-layer"),
    "nan-layer, past 40": ("--lab-fault", "nan-layer", "--lab-fault-past", "40"),
    "swapped-block": ("--lab-fault", "swapped-block"),
    "stale-prefix": ("--lab-fault", "stale-prefix"),
    "early-end": ("--lab-fault", "early-end"),
    "detokeniser": ("--lab-fault", "detokeniser"),
    "wrong-dtype": ("--lab-fault", "wrong-dtype"),
    "wrong-template": ("--lab-fault", "wrong-template"),
}
SUITES: dict[str, tuple[str, ...]] = {
    "smoke": FAULTS["nan-layer"],
    "quick": FAULTS["uninitialised-rows"],
    "garble": FAULTS["mask-offsets"],
    "batch": FAULTS["uninitialised-rows, above 1"],
    "leak": FAULTS["swapped-block"],
    "length": ("--lab-fault", "uninitialised-rows", "--lab-fault-past", "128"),
    "needle": FAULTS["stale-prefix"],
    "cache": FAULTS["stale-prefix"],
    "languages": FAULTS["stale-mask"],
    "code-json": FAULTS["early-end"],
    "cancel": FAULTS["wrong-dtype"],
    "stress": ("--lab-fault", "uninitialised-rows", "--lab-fault-above", "4"),
}
"""Shipped suites, each with a fault that it was made to show."""

HEALTHY: dict[str, tuple[str, ...]] = {"plain": (), "tree, graph": TREE, "tree, eager": (*TREE, EAGER)}
BOOTS = 8
NEW_TOKENS = 24
LONE = 8
"""Questions that are asked alone as well; one at a time takes long here."""
SHORT, GROUP = 16, 56
"""New tokens of the many answers of healthy servers, and how many are asked for at the same moment."""

MANY = (*verdict_outputs.EXAM.prompts, *verdict_outputs.TUNE.prompts[::8][:36])
"""What they are asked; no rule of the scores was tuned on any prompt."""

QUESTIONS: dict[str, tuple[str, str | None]] = {
    "planets": ("Name the planets of the solar system.", "(?i)mars|earth|jupiter"),
    "italy": ("What is the capital of Italy? Answer in one sentence.", "Rome"),
    "soup": ("Explain in two sentences how soup is cooked.", "(?i)water|heat|boil|ingredient|pot"),
    "dragon": ("Tell a short story about a small dragon.", "(?i)dragon"),
    "colours": ("Give a JSON object with the fields colour and size.", r'"?colou?r'),
    "cats": ("Name three kinds of cats.", "(?i)cat|persian|siamese|maine"),
    "sun": ("What is the sun?", "(?i)sun|star"),
    "months": ("List the months of the year.", "(?s)January.*February.*March"),
    "river": ("Write a short poem about a river.", None),
    "letter": ("Write a letter to a friend about a new house.", None),
    "loop": ("Write a Python function that adds two numbers.", "(?i)def |return|python"),
    "table": ("Write a Markdown table with two columns and three rows.", r"\|"),
    "winter": ("Why is it cold in winter?", "(?i)winter|cold|temperature|sun"),
    "bicycle": ("Explain in three sentences what a bicycle is.", "(?i)bicycle|wheel"),
    "proverb": ("Tell me a proverb and explain it.", None),
    "count": ("Count from 1 to 20, separated by commas.", "(?s)1.*2.*3"),
    "french": ("Ecris deux phrases sur le pain.", None),
    "german": ("Schreibe zwei Sätze über den Mond.", None),
    "shop": ("Write a dialogue between a baker and a customer.", None),
    "tips": ("Give three tips for a good night's sleep.", "(?i)sleep|bed|night"),
    "shell": ("Write a shell command that lists all files.", "(?i)ls|list|file"),
    "history": ("Summarise the history of the printing press.", "(?i)print"),
    "maths": ("What is seven times eight?", None),
    "sea": ("Describe the sea to somebody who has never seen it.", None),
}


def suite(questions: dict[str, tuple[str, str | None]], ways: tuple[str, ...], new_tokens: int) -> Suite:
    prompts = [
        {"name": name, "user": user, **({} if expect is None else {"expect": expect})}
        for name, (user, expect) in questions.items()
    ]
    document = {"schema": 1, "name": "benchmark", "ways": ways, "max_new_tokens": new_tokens, "prompts": prompts}
    return Suite.model_validate(document)


@dataclass(frozen=True)
class Bench:
    transport: Transport
    python: str

    @contextmanager
    def serving(self, *flags: str) -> Iterator[Endpoint]:
        command = (self.python, "-m", "sglang.launch_server", "--model-path", str(model_dir()), "--port", "{port}")
        launch = server.Launch(argv=(*command, *flags), run_id=f"v-{secrets.token_hex(4)}", ready_timeout_s=300)
        with server.start(self.transport, launch) as running, opened(f"lab:{running.port}") as endpoint:
            yield endpoint


class Remembering(Client):
    """The same question is answered once: what the healthy server says of one fault's prompts, it says of all."""

    def __init__(self, http: httpx.Client) -> None:
        super().__init__(http)
        self._answers: dict[tuple[str, int], Answer] = {}
        self._together: dict[tuple[str, ...], list[Answer]] = {}
        self._tokens: dict[str, list[int] | None] = {}

    def generate(self, prompt: Prompt, max_new_tokens: int) -> Answer:
        key = prompt.text, max_new_tokens
        if key not in self._answers:
            self._answers[key] = super().generate(prompt, max_new_tokens)
        return replace(self._answers[key], prompt=prompt.name)

    def generate_together(self, prompts: Sequence[Prompt], max_new_tokens: int) -> list[Answer]:
        key = (*(prompt.text for prompt in prompts), str(max_new_tokens))
        if key not in self._together:
            with ThreadPoolExecutor(len(prompts)) as pool:
                ask = super().generate
                self._together[key] = list(pool.map(lambda prompt: ask(prompt, max_new_tokens), prompts))
        return self._together[key]

    def tokenize(self, prompt: Prompt) -> list[int] | None:
        if prompt.text not in self._tokens:
            self._tokens[prompt.text] = super().tokenize(prompt)
        return self._tokens[prompt.text]


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
    kept = cache / "exam-lab.jsonl"
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.is_file() else []
    there = {row["fault"] for row in rows}
    boots = [f"boot {n}" for n in range(1, BOOTS + 1)]
    wanted = [name for name in (*HEALTHY, *faults, *boots, "many") if name not in there]
    if not wanted:
        return rows
    with lab(cache) as bench, kept.open("a") as out:
        for name, made in _collected(bench, wanted):
            print(f"lab: {name}", flush=True)
            rows += made
            out.writelines(json.dumps(row) + "\n" for row in made)
            out.flush()
    return rows


def _collected(bench: Bench, wanted: list[str]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    if "many" in wanted:
        yield "many", list(_many(bench))
    beside = [name for name in wanted if name != "many"]
    if beside:
        with bench.serving() as good:
            good = replace(good, client=Remembering(good.http))
            for name in beside:
                yield name, list(_rows(bench, good, name))


def suites(cache: Path, names: list[str]) -> list[dict[str, Any]]:
    """Each shipped suite asked of a healthy server and of one with the fault it was made for, a healthy one beside
    both; kept in the cache."""
    kept = cache / "suites.jsonl"
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.is_file() else []
    wanted = [name for name in names or SUITES if name not in {row["suite"] for row in rows}]
    if not wanted:
        return rows
    with ExitStack() as stack, kept.open("a") as out:
        bench = stack.enter_context(lab(cache))
        good, healthy = (stack.enter_context(bench.serving()) for _ in range(2))
        good = replace(good, client=Remembering(good.http))
        for name in wanted:
            print(f"suite: {name}", flush=True)
            right = probe(healthy, load(name), reference=good)
            with bench.serving(*SUITES[name]) as endpoint:
                wrong = probe(endpoint, load(name), reference=good)
            found = {"healthy": right, "faulty": wrong}
            counts = {which: [one.summary.rate.garbled, len(one.answers)] for which, one in found.items()}
            accused = [f"{a.prompt} ({a.how}): {a.evidence[0].why}" for a in right.answers if a.verdict == "garbled"]
            rows.append({"suite": name, "flags": SUITES[name], **counts, "accused": accused})
            out.write(json.dumps(rows[-1]) + "\n")
            out.flush()
    return rows


def _rows(bench: Bench, good: Endpoint, name: str) -> Iterator[dict[str, Any]]:
    flags = BOOT if name.startswith("boot") else {**HEALTHY, **FAULTS}[name]
    few = dict(list(QUESTIONS.items())[:LONE])
    asked = [suite(few, ("alone",), NEW_TOKENS), suite(QUESTIONS, ("together",), NEW_TOKENS)]
    if name.startswith("boot"):
        asked = [suite(few, ("together",), NEW_TOKENS)]
    elif name == "wrong-template":
        asked = [suite(QUESTIONS, ("chat",), NEW_TOKENS)]
    with bench.serving(*flags) as endpoint:
        drawn = bool(endpoint.client.server_info().get("lab_fault_drawn", name == "mask-offsets"))
        for one in asked:
            yield from _told(name, probe(endpoint, one, reference=good), one, good, drawn)


def _told(name: str, found: Probe, asked: Suite, good: Endpoint, drawn: bool) -> Iterator[dict[str, Any]]:
    chat = asked.ways == ("chat",)
    right = {p.name: _right(good, asked, p.name, chat) for p in asked.prompts}
    score = Scoring(good.client, asked)
    end = ending((r.token_ids, r.finish_reason == "stop") for r in right.values())
    for each in found.answers:
        answer = Answer(each.prompt, each.text, each.token_ids, each.finish_reason)
        scores = score(with_end(answer, end), None) if each.token_ids else None
        yield {
            "fault": name,
            "drawn": drawn,
            "prompt": QUESTIONS[each.prompt][0],
            "name": each.prompt,
            "how": each.how,
            "verdict": each.verdict,
            "rules": [evidence.rule for evidence in each.evidence],
            "why": [evidence.why for evidence in each.evidence],
            "text": each.text,
            "ids": list(each.token_ids),
            "finish_reason": each.finish_reason,
            "margin": found.margin.nats,
            "gaps": [round(one.gap_nats, 4) for one in scores or []],
            "reference_text": right[each.prompt].text,
            "reference_ids": list(right[each.prompt].token_ids),
            "reference_finish": right[each.prompt].finish_reason,
        }


def _right(good: Endpoint, asked: Suite, name: str, chat: bool) -> Answer:
    prompt = next(p for p in asked.prompts if p.name == name)
    if chat:
        return good.chat(name, prompt.asked, asked.tokens(prompt))
    return good.client.generate(Prompt(name, asked.rendered(prompt)), asked.tokens(prompt))


def _many(bench: Bench) -> Iterator[dict[str, Any]]:
    """Many short answers of healthy servers, each token of each scored by another healthy server; one server runs at a
    time."""
    everything = [(f"q{n}", (question, None)) for n, question in enumerate(MANY)]
    suites = [suite(dict(everything[at : at + GROUP]), ("together",), SHORT) for at in range(0, len(everything), GROUP)]
    asked = []
    for name, flags in HEALTHY.items():
        with bench.serving(*flags) as endpoint:
            asked.append((name, [_together(endpoint, one) for one in suites]))
    with bench.serving() as good:
        right = [{answer.prompt: answer for answer in _together(good, one)} for one in suites]
        within = margin(good.client, suites[0], right[0].values())
        for name, answers in asked:
            for one, group, reference in zip(suites, answers, right):
                score = Scoring(good.client, one)
                judge = Judge(one, score, within.nats)
                for answer in group:
                    verdict = judge.against([Asked("together", answer)], reference)[0]
                    yield {
                        "fault": "many",
                        "flags": name,
                        "healthy": verdict.healthy,
                        "kind": verdict.kind,
                        "ids": list(answer.token_ids),
                        "margin": within.nats,
                        "gaps": [round(each.gap_nats, 5) for each in score(answer) or []],
                        "why": verdict.why,
                    }


def _together(endpoint: Endpoint, one: Suite) -> list[Answer]:
    return endpoint.client.generate_together([Prompt(p.name, one.rendered(p)) for p in one.prompts], SHORT)
