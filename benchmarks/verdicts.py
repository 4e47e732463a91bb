"""How many wrong texts do the layers find, and how many right ones do they accuse? Tables; exit status 1 where a target
is missed.

    python benchmarks/verdicts.py --cache DIR              texts: the corpus, clean outputs, the H200 outputs, timing
    python benchmarks/verdicts.py --cache DIR --lab        and the lab's server under every fault it can be given
    python benchmarks/verdicts.py --cache DIR --lab --fault nan-layer

Layer 2 is the look of a text alone; 3 adds what the prompt expects of an answer; 4 adds the scores of a healthy
server, token ids as emitted. Only texts that no rule was tuned on are counted: the held-out half of the corpus (by a
hash of the file's name), and outputs for the prompts that `verdict_train.tuned_on` leaves out. The corpus is fetched
from Debian's packages into the cache (some 75 MB), the model's outputs are made once (about an hour on two cores).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import verdict_corpus, verdict_outputs
from benchmarks.verdict_train import tuned_on, visible
from diag.lab.layout import model_dir
from diag.verdict.compare import Score
from diag.verdict.reference import calibrate
from diag.verdict.statistics import rate
from diag.verdict.texts import Record, judge

H200 = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "h200-sglang-0.5.12.jsonl"
# Outputs of the broken configurations that read well: found only by who knows the right answer. (batch, beginning)
FLUENT = (
    "The sky is blue because of a process called Rayleigh scattering, where light encounters tiny molecules of air, "
    "causing them to scatter in different directions, resulting in the blue color.",
    "In the sky is blue.",
    "Here are the days ofnyder\n",
    "1. 2. 3. 5. 7. 11. 22. 2. 45.",
    "Here are the days of the week in order from the most significant",
)


@dataclass
class Count:
    """Texts of one kind: how many were called garbled, how many suspect."""

    texts: int = 0
    garbled: int = 0
    suspect: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, verdict: str, example: str = "") -> None:
        self.texts += 1
        self.garbled += verdict == "garbled"
        self.suspect += verdict == "suspect"
        if verdict == "garbled" and len(self.examples) < 3:
            self.examples.append(example)

    def row(self, name: str) -> str:
        found = rate(self.garbled, self.texts)
        return (
            f"{name:34} {self.texts:6} {self.garbled:5} {found.share:8.2%} ({found.low:.2%} to {found.high:.2%})"
            f" {self.suspect:5}"
        )


HEAD = f"{'':34} {'texts':>6} {'garbled':>7} {'share, 95 % interval':>24} {'suspect':>8}"


def shape(row: dict[str, Any]) -> str:
    return judge(
        Record(
            text=row["text"],
            prompt=row.get("prompt", ""),
            token_ids=tuple(row.get("ids") or row.get("token_ids") or ()),
            finish_reason=row.get("finish_reason", ""),
            expect=row.get("expect"),
        )
    ).verdict


def corpus(cache: Path) -> dict[str, Count]:
    """False alarms on texts of people, by language and by kind."""
    root = verdict_corpus.fetch(cache)
    found: dict[str, Count] = defaultdict(Count)
    for sample in verdict_corpus.samples(root) + verdict_corpus.structured():
        if not sample.held_out:
            continue
        verdict = judge(Record(text=sample.text)).verdict
        structured = sample.language == "-" or sample.kind == "code"
        names = [f"kind {sample.kind}"] if structured else [f"language {sample.language}", f"kind {sample.kind}"]
        for name in (*names, "all texts of people" if not structured else "all code and data"):
            found[name].add(verdict, f"{sample.name}: {sample.text[:80]!r}")
    return found


def clean_outputs(cache: Path, wanted: int) -> dict[str, Count]:
    found: dict[str, Count] = defaultdict(Count)
    for row in verdict_outputs.outputs(model_dir(), cache, wanted):
        if tuned_on(row["prompt"]):
            continue
        verdict = shape(row)
        for name in (f"temperature {row['temperature']}", f"length {row['max_new_tokens']}", "all clean outputs"):
            found[name].add(verdict, repr(row["text"][:80]))
    return found


def h200() -> dict[str, Count]:
    found: dict[str, Count] = defaultdict(Count)
    for line in H200.read_text().splitlines():
        row = json.loads(line)
        wrong = "_d17_" in row["config"] and not row["config"].startswith("fix")
        fluent = any(row["text"].startswith(beginning) for beginning in FLUENT)
        name = "clean configurations" if not wrong else "broken, reads well" if fluent else "broken, visibly"
        found[name].add(shape({"text": row["text"], "prompt": row["prompt"]}), repr(row["text"][:80]))
    return found


def show(title: str, counts: dict[str, Count], only: Iterable[str] | None = None) -> None:
    print(f"\n{title}\n{HEAD}")
    for name in only if only is not None else sorted(counts):
        print(counts[name].row(name))


def lab(cache: Path, faults: list[str]) -> list[str]:
    """Recall by fault and layer; what was missed of the targets."""
    from benchmarks import verdict_lab

    rows = verdict_lab.collect(cache, faults)
    by_fault: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_fault[row["fault"]].append({**row, "expect": verdict_lab.QUESTIONS[row["name"]][1]})
    print(f"\nThe lab's server, {verdict_lab.NEW_TOKENS} new tokens, scored by a healthy one beside it")
    print(f"{'':30} {'answers':>7} {'changed':>7} {'visible':>7} | {'2':>9} {'2, visible':>10} {'2+3':>9} {'2+3+4':>9}")
    healthy = [row["gaps"] for fault in verdict_lab.HEALTHY for row in by_fault[fault]]
    margin = calibrate([[Score(gap) for gap in gaps] for gaps in healthy])
    missed: list[str] = []
    total, found, looks, visible_found = 0, 0, 0, 0
    for fault, answers in by_fault.items():
        wrong = [row for row in answers if _wrong(row)]
        # By looks only prompts count that nothing was tuned on; scores have no such half.
        apart = [row for row in wrong if not tuned_on(row["prompt"])]
        seen = [row for row in apart if visible(row) or "detokeniser" in row["why"]]
        alone = [shape({**row, "expect": None}) == "garbled" for row in apart]
        in_sight = sum(shape({**row, "expect": None}) == "garbled" for row in seen)
        property_too = [shape(row) == "garbled" for row in wrong]
        scored = [_accused(row, margin.nats) for row in wrong]
        layers = [a or b for a, b in zip(property_too, scored)]
        print(
            f"{fault:30} {len(answers):7} {len(wrong):7} {len(seen):7} | {sum(alone):4}/{len(apart):<4} "
            f"{in_sight:5}/{len(seen):<4} {sum(property_too):4}/{len(wrong):<4} {sum(layers):4}/{len(wrong):<4}"
        )
        if fault in verdict_lab.HEALTHY:
            accused = [row for row in answers if _accused(row, margin.nats)]
            looked = [row for row in answers if shape({**row, "expect": None}) == "garbled"]
            print(f"{'':30} healthy: {len(accused)} accused by scores, {len(looked)} by looks")
            missed += [f"{fault}: a healthy answer is accused by its scores"] if accused else []
            continue
        total, found = total + len(wrong), found + sum(layers)
        looks, visible_found = looks + len(seen), visible_found + in_sight
        if not wrong and answers[0]["drawn"]:
            missed.append(f"{fault}: changed no answer")
    print(f"margin {margin.nats:.3g} nats: {margin.why}")
    print(f"all layers: {found} of {total} changed answers; looks alone: {visible_found} of {looks} visible ones")
    if total and found < 0.995 * total:
        missed.append(f"all layers find {found} of {total} changed answers of the lab's faults, wanted 99.5 %")
    return missed


def _wrong(row: dict[str, Any]) -> bool:
    """Whether the answer is another one than the healthy server's: the truth that is known here. Not where the text and
    its end are the same and only the end-of-text token is missing."""
    same = row["text"] == row["reference_text"] and row["finish_reason"] == row["reference_finish"]
    if same and row["finish_reason"] == "stop":
        return False
    return not same or row["ids"] != row["reference_ids"]


def _accused(row: dict[str, Any], margin_nats: float) -> bool:
    """By the healthy server's scores, within the margin that its own kind of runs gave."""
    if row["kind"] == "identical":
        return False
    return row["kind"] != "near_tie" or max(row["gaps"], default=0.0) > margin_nats


def timing(cache: Path) -> float:
    """Seconds of one core for 1,000 texts of the corpus, after the word lists were read for other texts."""
    samples = [s for s in verdict_corpus.samples(verdict_corpus.fetch(cache)) if s.held_out]
    random.Random(1).shuffle(samples)
    for sample in samples[1000:1400]:
        judge(Record(text=sample.text))
    records = [Record(text=s.text, expect="a") for s in samples[:1000]]
    began = time.process_time()
    for record in records:
        judge(record)
    return time.process_time() - began


def targets(people: dict[str, Count], clean: dict[str, Count], real: dict[str, Count], seconds: float) -> list[str]:
    missed = []
    everything = people["all texts of people"]
    if everything.garbled > 0.003 * everything.texts:
        missed.append(f"{everything.garbled} of {everything.texts} texts of people are accused, wanted 0.3 %")
    for name, count in people.items():
        if name.startswith("language") and count.garbled > 0.01 * count.texts:
            missed.append(f"{name}: {count.garbled} of {count.texts} are accused, wanted 1 %")
    if clean and clean["all clean outputs"].garbled > 0.003 * clean["all clean outputs"].texts:
        missed.append(f"{clean['all clean outputs'].garbled} clean outputs are accused, wanted 0.3 %")
    seen = real["broken, visibly"]
    if seen.garbled < 0.9 * seen.texts:
        missed.append(f"{seen.garbled} of {seen.texts} visibly garbled H200 outputs are found, wanted 90 %")
    if seconds > 2:
        missed.append(f"1,000 texts take {seconds:.1f} s, wanted 2 s")
    return missed


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--clean", type=int, default=2400, help="clean outputs to make, or to take; half are counted")
    parser.add_argument("--lab", action="store_true")
    parser.add_argument("--fault", action="append", default=[])
    parser.add_argument("--examples", action="store_true", help="show texts that were accused")
    options = parser.parse_args(argv)
    people, real, clean = corpus(options.cache), h200(), clean_outputs(options.cache, options.clean)
    show("Texts of people, held out: false alarms of the look alone (layer 2)", people)
    show("Clean outputs of the lab's model, held out: false alarms of the look alone", clean)
    show("SGLang 0.5.12 on an H200: the look alone", real)
    seconds = timing(options.cache)
    print(f"\n1,000 texts, layers 1 to 3: {seconds:.2f} s of one core")
    if options.examples:
        for counts in (people, clean, real):
            for name, count in counts.items():
                for example in count.examples:
                    print(f"  {name}: {example}")
    missed = targets(people, clean, real, seconds)
    if options.lab:
        from benchmarks.verdict_lab import FAULTS

        missed += lab(options.cache, options.fault or list(FAULTS))
    for line in missed:
        print(f"missed: {line}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
