"""Are healthy answers of a real SGLang on a real GPU ever accused, and are garbled ones found? A table.

    python tests/gpu/healthy.py ENGINE_PYTHON MODEL_FOLDER [--part speculation|plain|fault] [--out FILE] [--chunks N]

Everything goes the way of a bisection: the first start of the good configuration gives the reference and the margin,
and each later start is judged by them. `speculation`: NGRAM as in ngram-width.yaml, good twice, then its failing end,
which is lossless on an engine that nobody has changed. `plain`: no speculation, twice, then with graph, prefix cache
and chunks changed. `fault`: the failing end with the injection `inject-pinned-count` in ENGINE_PYTHON's file, which is
taken back. FILE gets every answer as a line of JSON. Not collected by pytest: needs an NVIDIA GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from diag.bisect import asking
from diag.bisect import plan as plans
from diag.bisect.plan import Plan
from diag.fixes import catalogue
from diag.hosts.inventory import LOCAL, Host
from diag.hosts.transport import connect
from diag.serving import server
from diag.verdict.compare import TextVerdict

HERE = Path(__file__).resolve().parent
TOKENS, CHUNK = 24, 64
TASKS = (
    "Write two sentences about {}.",
    "What is {} made of?",
    "Explain to a child how {} works.",
    "List three things that have to do with {}.",
    "Tell a short story that begins with {}.",
    "Why do people like {}?",
    "Describe the colour and the sound of {}.",
    "Give one reason for and one against {}.",
    "Translate into French: I saw {} yesterday.",
    "Write a line of Python that prints the words {}.",
)
THINGS = (
    *(
        "a lighthouse",
        "the tide",
        "a steam engine",
        "winter",
        "a violin",
        "bread",
        "the moon",
        "a border town",
        "chess",
    ),
    *("an old map", "rain", "a bicycle", "the alphabet", "a market", "honey", "a bridge", "silence", "a train station"),
    *("coal", "a garden", "glass", "a letter", "the north wind", "a clock", "salt", "a library", "paper", "a harbour"),
    *("copper", "a festival", "fog", "a school"),
)
PLAIN = """\
command: >-
  {python} -m sglang.launch_server --model-path {model} --host 127.0.0.1 --port {port}
  --attention-backend triton --sampling-backend pytorch --grammar-backend none
  --mem-fraction-static 0.3 --max-total-tokens 20000 --context-length 4096 --disable-piecewise-cuda-graph
env: {HF_HUB_OFFLINE: "1"}
ready_timeout_s: 400
prompts: garble
factors:
  cuda_graph: {switch_off: --disable-cuda-graph, good: true, bad: false}
  radix_cache: {switch_off: --disable-radix-cache, good: true, bad: false}
  chunked_prefill: {flag: --chunked-prefill-size, good: 8192, bad: 64}
"""


def chunks(count: int, size: int) -> list[list[str]]:
    prompts = [task.format(thing) for thing, task in itertools.product(THINGS, TASKS)]
    return [prompts[at * size : (at + 1) * size] for at in range(count)]


def written(folder: Path, text: str, count: int, size: int) -> list[Plan]:
    """The plan once for each chunk of the prompts, which is its suite."""
    made = []
    for number, prompts in enumerate(chunks(count, size)):
        listed = [{"name": f"p{number}-{at}", "user": prompt} for at, prompt in enumerate(prompts)]
        suite = {"schema": 1, "name": f"chunk{number}", "max_new_tokens": TOKENS, "prompts": listed}
        (folder / f"chunk{number}.yaml").write_text(json.dumps(suite))
        path = folder / f"plan{number}.yaml"
        path.write_text(text.replace("prompts: garble", f"prompts: ./chunk{number}.yaml"))
        made.append(plans.load(str(path)))
    return made


class Bench:
    """Starts servers one after the other; keeps the reference of each chunk."""

    def __init__(self, made: Sequence[Plan], fills: Mapping[str, str], out: Path | None) -> None:
        self.plans, self.fills, self.out = made, fills, out
        self.references: dict[int, asking.Reference] = {}

    def boot(self, name: str, config: Mapping[str, Any]) -> list[TextVerdict]:
        """Every chunk, judged; the first boot's answers are the reference, and are judged by themselves."""
        first, began = self.plans[0], time.monotonic()
        env = {**first.spec.env, **first.space.env(config)}
        launch = server.Launch(
            first.argv(config, self.fills), re.sub(r"\W+", "-", f"healthy-{name}"), env, ready_timeout_s=400
        )
        found: list[TextVerdict] = []
        with connect(Host(name=LOCAL, address=LOCAL)) as transport, server.start(transport, launch) as running:
            for number, plan in enumerate(self.plans):
                known = self.references.get(number)
                texts, reference = asking.ask(running.client, plan, config, known, lambda what: None)
                self.references.setdefault(number, reference)
                found += texts
        self.tell(name, found, running.ready_after_s, time.monotonic() - began)
        return found

    def tell(self, name: str, found: Sequence[TextVerdict], start_s: float, total_s: float) -> None:
        kinds = Counter(text.kind for text in found)
        margins = sorted({one.margin.nats for one in self.references.values()})
        accused = [text for text in found if not text.healthy]
        told = ", ".join(f"{many} {kind}" for kind, many in kinds.most_common())
        worst = max((text.worst_gap_nats or 0.0 for text in found if text.healthy), default=0.0)
        print(f"| {name} | {len(found)} | {len(accused)} | {told} | {margins[0]:.3f} to {margins[-1]:.3f} |", end="")
        print(f" {worst:.3f} | {start_s:.0f} | {total_s:.0f} |", flush=True)
        if self.out is not None:
            with self.out.open("a") as file:
                for text in found:
                    file.write(json.dumps({"boot": name, **text.to_json()}) + "\n")


@contextlib.contextmanager
def injected(python: str) -> Iterator[None]:
    """The backend's count pinned to 8, as long as it lasts."""
    from tests.gpu.story import changed_file

    file = changed_file(python, "sglang")
    original = file.read_bytes()
    try:
        file.write_text(catalogue.get("inject-pinned-count").rewrite(original.decode()))
        yield
    finally:
        file.write_bytes(original)


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    options.add_argument("python")
    options.add_argument("model")
    options.add_argument("--part", choices=["speculation", "plain", "fault"], action="append")
    options.add_argument("--out", type=Path)
    options.add_argument(
        "--chunks", type=int, default=5, help=f"of {CHUNK} prompts, at most {len(THINGS) * 10 // CHUNK}"
    )
    options.add_argument("--size", type=int, default=CHUNK, help="prompts of a chunk")
    given = options.parse_args()
    parts = given.part or ["speculation", "plain", "fault"]
    fills = {"python": given.python, "model": given.model}
    print("| start | answers | accused | as | margin, nats | healthy ones' worst gap | start, s | in all, s |")
    with tempfile.TemporaryDirectory(prefix="diag-gpu-") as scratch:
        for folder, text in (("ngram", (HERE / "ngram-width.yaml").read_text()), ("plain", PLAIN)):
            Path(scratch, folder).mkdir()
            made = written(Path(scratch, folder), text, given.chunks, given.size)
            bench, space = Bench(made, fills, given.out), made[0].space
            if folder == "plain" and "plain" in parts:
                bench.boot("plain, first", space.good)
                bench.boot("plain, again", space.good)
                bench.boot("plain, without graph, cache, chunks", space.bad)
            if folder == "ngram" and {"speculation", "fault"} & set(parts):
                bench.boot("speculation, first", space.good)
                if "speculation" in parts:
                    bench.boot("speculation, again", space.good)
                    bench.boot("speculation, failing end, nothing wrong", space.bad)
                if "fault" in parts:
                    with injected(given.python):
                        bench.boot("speculation, failing end, injected", space.bad)


if __name__ == "__main__":
    main()
