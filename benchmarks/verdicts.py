"""How many wrong texts do the layers find, and how many right ones do they accuse? Tables; exit status 1 where a target
is missed.

    python benchmarks/verdicts.py --cache DIR              texts: the corpus, outputs of the model, the H200's, timing
    python benchmarks/verdicts.py --cache DIR --lab        and the lab's server under every fault it can be given
    python benchmarks/verdicts.py --cache DIR --suites     and every shipped suite, on a healthy and a faulty server

Layer 2 is the look of a text alone; 3 adds what the prompt expects of an answer; 4 adds the scores of a healthy
server, token ids as emitted. Only what no rule was tuned on is counted: packages, prompts and damage that the training
(`verdict_train`) never reads. The corpus is fetched from Debian's packages into the cache (some 120 MB); outputs of the
model are made once (two hours on two busy cores).
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

from benchmarks import verdict_corpus, verdict_outputs, verdict_reader
from benchmarks.verdict_outputs import EXAM, TUNE
from benchmarks.verdict_train import visible, wrong_share
from diag.lab.layout import model_dir
from diag.verdict.compare import MARGIN_NATS, Score, judge_alone
from diag.verdict.reference import calibrate
from diag.verdict.statistics import rate
from diag.verdict.texts import Record, judge

H200 = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "h200-sglang-0.5.12.jsonl"
# Outputs of the broken configurations that read well: found only by who knows the right answer. By hand, all 24 read.
FLUENT = (
    "The sky is blue because of a process called Rayleigh scattering, where light encounters tiny molecules of air, "
    "causing them to scatter in different directions, resulting in the blue color.",
    "In the sky is blue.",
    "Here are the days ofnyder\n",
    "1. 2. 3. 5. 7. 11. 22. 2. 45.",
    "Here are the days of the week in order from the most significant",
)
SHARES = ((0.12, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.01))
"""Recall is told by how much of a text is wrong."""

NEAR_TIE_NATS = 0.05
"""Every token of an answer that another fault changed is this near to the reference's best: a coin came down on its
other side, in float32, and nothing that anybody could judge by is wrong."""

PROSE = ("manual", "guide", "verse")
VISIBLE = "visibly garbled, by the reader"


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
            f"{name:34} {self.texts:6} {self.garbled:7} {found.share:8.2%} ({found.low:.2%} to {found.high:.2%})"
            f" {self.suspect:8}"
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
    found: dict[str, Count] = defaultdict(Count)
    for sample in verdict_corpus.exam(cache):
        verdict = judge(Record(text=sample.text)).verdict
        prose = sample.kind in PROSE
        names = [f"language {sample.language}", f"kind {sample.kind}"] if prose else [f"kind {sample.kind}"]
        for name in (*names, "all texts of people" if prose else "all code and data"):
            found[name].add(verdict, f"{sample.name}: {sample.text[:80]!r}")
    return found


def clean_outputs(cache: Path, wanted: int) -> dict[str, Count]:
    found: dict[str, Count] = defaultdict(Count)
    for row in verdict_outputs.outputs(model_dir(), cache, wanted, EXAM):
        verdict = shape(row)
        for name in (f"temperature {row['temperature']}", f"length {row['max_new_tokens']}", "all clean outputs"):
            found[name].add(verdict, repr(row["text"][:80]))
    return found


def seen_by_the_reader(cache: Path, rows: Sequence[dict[str, Any]]) -> list[bool]:
    """Which of these outputs are visibly garbled (`verdict_reader`)."""
    above = verdict_reader.limit(model_dir(), cache)
    return [odd > above for odd in verdict_reader.oddness(model_dir(), cache, [row["text"] for row in rows])]


def damaged_outputs(cache: Path) -> dict[str, Count]:
    """The same model with its attention damaged: recall on those that the reader sees, and on all that its own scores
    call garbled, by the share of tokens that it would never have chosen."""
    found: dict[str, Count] = defaultdict(Count)
    rows = verdict_outputs.damaged(model_dir(), cache, 12, EXAM)
    for row, seen in zip(rows, seen_by_the_reader(cache, rows)):
        verdict, share = shape(row), wrong_share(row)
        if seen:
            found[VISIBLE].add(verdict, repr(row["text"][:80]))
        if not visible(row):
            continue
        low, high = next(bounds for bounds in SHARES if bounds[0] <= share < bounds[1])
        for name in (f"{low:.0%} to {min(high, 1):.0%} of tokens wrong", "garbled, by the model's scores"):
            found[name].add(verdict, repr(row["text"][:80]))
    return found


def h200(cache: Path) -> dict[str, Count]:
    found: dict[str, Count] = defaultdict(Count)
    rows = [json.loads(line) for line in H200.read_text().splitlines()]
    for row, seen in zip(rows, seen_by_the_reader(cache, rows)):
        wrong = "_d17_" in row["config"] and not row["config"].startswith("fix")
        fluent = any(row["text"].startswith(beginning) for beginning in FLUENT)
        verdict = shape({"text": row["text"], "prompt": row["prompt"]})
        name = "clean configurations" if not wrong else "broken, reads well" if fluent else "broken, by hand"
        for each in (name, VISIBLE) if wrong and seen else (name,):
            found[each].add(verdict, repr(row["text"][:80]))
    return found


def show(title: str, counts: dict[str, Count], only: Iterable[str] | None = None) -> None:
    print(f"\n{title}\n{HEAD}")
    for name in only if only is not None else sorted(counts):
        print(counts[name].row(name))


def healthy_runs(cache: Path) -> list[str]:
    """Healthy by healthy: greedy answers in bfloat16 and company, scored in float32 and alone. The margin is measured
    on answers to other prompts than are judged by it."""
    margin = calibrate(
        [[Score(gap) for gap in row["gaps"]] for row in verdict_outputs.scored(model_dir(), cache, 900, TUNE)]
    )
    judged = verdict_outputs.scored(model_dir(), cache, 1000, EXAM)
    kinds = [judge_alone([Score(gap) for gap in row["gaps"]], None, margin.nats)[0] for row in judged]
    found = rate(sum(kind == "garbled" for kind in kinds), len(kinds))
    ties = sum(max(row["gaps"]) > 0 for row in judged)
    by_constant = sum(max(row["gaps"]) > MARGIN_NATS for row in judged)
    print(
        f"\nHealthy runs in bfloat16, scored in float32: {found.garbled} of {found.tried} answers accused"
        f" ({found.low:.2%} to {found.high:.2%}), {ties} of them hold a near tie; margin {margin.nats:.3g} nats,"
        f" of a largest gap of {margin.largest_nats or 0:.3g} in {margin.tokens} tokens"
        f" (the constant {MARGIN_NATS} accuses {by_constant})"
    )
    return [f"{found.garbled} of {found.tried} healthy runs are accused"] if found.share > 0.001 else []


def lab(cache: Path, faults: list[str]) -> list[str]:
    """Recall by fault and layer; what was missed of the targets."""
    from benchmarks import verdict_lab

    by_fault: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in verdict_lab.collect(cache, faults):
        expect = verdict_lab.QUESTIONS[row["name"]][1] if "name" in row else None
        by_fault[row["fault"]].append({**row, "expect": expect})
    print(f"\nThe lab's server, {verdict_lab.NEW_TOKENS} new tokens, `probe prompts` with a healthy one beside it")
    print(f"{'':28} {'answers':>7} {'changed':>7} {'ties':>5} {'visible':>7} | {'2':>8} {'2, visible':>10} "
          f"{'2+3':>8} {'all':>8}")  # fmt: skip
    total, found, seen, in_sight = 0, 0, 0, 0
    read: list[bool] = []
    missed: list[str] = []
    for fault in faults:
        answers = by_fault[fault]
        changed = [row for row in answers if _changed(row)]
        wrong = [row for row in changed if not _tie(row)]
        looks = [shape({**row, "expect": None}) == "garbled" for row in wrong]
        sight = [told for row, told in zip(wrong, looks) if visible(row)]
        property_too = [shape(row) == "garbled" for row in wrong]
        layers = [row["verdict"] == "garbled" for row in wrong]
        print(
            f"{fault:28} {len(answers):7} {len(changed):7} {len(changed) - len(wrong):5} {len(sight):7} |"
            f" {_of(looks):>8} {_of(sight):>10} {_of(property_too):>8} {_of(layers):>8}"
        )
        total, found = total + len(wrong), found + sum(layers)
        read += [told for told, odd in zip(looks, seen_by_the_reader(cache, wrong)) if odd]
        seen, in_sight = seen + len(sight), in_sight + sum(sight)
        missed += [f"{fault}: changed no answer"] if not changed else []
    every = rate(found, total)
    print(
        f"all layers: {found} of {total} ({every.low:.2%} to {every.high:.2%}); looks: {in_sight} of {seen} that the"
        f" scores call garbled, {sum(read)} of {len(read)} that the reader sees"
    )
    if found < 0.995 * total:
        missed.append(f"all layers find {found} of {total} wrong answers of the lab's faults, wanted 99.5 %")
    return missed + _healthy_lab(by_fault) + _boots(by_fault)


def _healthy_lab(by_fault: dict[str, list[dict[str, Any]]]) -> list[str]:
    from benchmarks.verdict_lab import HEALTHY

    probed = [row["verdict"] == "garbled" for name in HEALTHY for row in by_fault[name]]
    many = [not row["healthy"] for row in by_fault["many"]]
    found = rate(sum(probed) + sum(many), len(probed) + len(many))
    tokens = sum(len(row["gaps"]) for row in by_fault["many"])
    parted = sum(row["kind"] == "near_tie" for row in by_fault["many"])
    print(
        f"healthy servers, plain and with speculation: {found.garbled} of {found.tried} answers accused"
        f" ({found.low:.2%} to {found.high:.2%}); {len(many)} of them short, {tokens} tokens, all scored, margin"
        f" {by_fault['many'][0]['margin']:g} nats, {parted} near ties"
    )
    return [f"{found.garbled} of {found.tried} healthy answers are accused"] if found.share > 0.001 else []


def _boots(by_fault: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Starts that drew the fault and starts that did not: each is found, or is not accused, by its answers together."""
    starts = {name: rows for name, rows in by_fault.items() if name.startswith("boot")}
    if not starts:
        return []
    told = {name: any(row["verdict"] == "garbled" for row in rows) for name, rows in starts.items()}
    drawn = {name: rows[0]["drawn"] for name, rows in starts.items()}
    right = sum(told[name] for name in starts if drawn[name])
    accused = sum(told[name] for name in starts if not drawn[name])
    print(
        f"a fault drawn at the start with chance 1/2: {len(starts)} starts, {sum(drawn.values())} drew it, "
        f"{right} of those found, {accused} of the others accused"
    )
    return [] if right == sum(drawn.values()) and not accused else ["a start of a server was judged wrongly"]


def _of(told: list[bool]) -> str:
    return f"{sum(told)}/{len(told)}"


def _changed(row: dict[str, Any]) -> bool:
    """Whether the answer is another one than the healthy server's: the truth that is known here. Not where the text and
    its end are the same and only the end-of-text token is missing."""
    same = row["text"] == row["reference_text"] and row["finish_reason"] == row["reference_finish"]
    if same and row["finish_reason"] == "stop":
        return False
    return not same or row["ids"] != row["reference_ids"]


def _tie(row: dict[str, Any]) -> bool:
    """Every token emitted is as good as the reference's best: such an answer is healthy, whatever flipped it."""
    return bool(row["gaps"]) and row["ids"] != row["reference_ids"] and max(row["gaps"]) <= NEAR_TIE_NATS


def suites(cache: Path, names: list[str]) -> list[str]:
    from benchmarks import verdict_lab

    rows = verdict_lab.suites(cache, names)
    print(f"\n{'suite':12} {'healthy: garbled of':>20} {'faulty: garbled of':>20}  fault")
    missed = []
    for row in rows:
        healthy, faulty = row["healthy"], row["faulty"]
        shown = " ".join(row["flags"][-4:])
        print(f"{row['suite']:12} {healthy[0]:>14} of {healthy[1]:>2} {faulty[0]:>14} of {faulty[1]:>2}  {shown}")
        missed += [f"suite {row['suite']}: a healthy answer is accused: {one}" for one in row["accused"]]
        missed += [f"suite {row['suite']} does not find its fault"] if not faulty[0] else []
    return missed


def timing(cache: Path) -> tuple[float, float]:
    """Seconds of one core for 1,000 texts of the corpus, the reading of word lists and tables included, and for 1,000
    more. Nothing may have been judged before."""
    samples = verdict_corpus.tuning(cache)
    random.Random(1).shuffle(samples)
    return _judged(samples[:1000]), _judged(samples[1000:2000])


def _judged(samples: list[verdict_corpus.Sample]) -> float:
    records = [Record(text=sample.text, expect="a") for sample in samples]
    began = time.process_time()
    for record in records:
        judge(record)
    return time.process_time() - began


def targets(
    people: dict[str, Count], clean: dict[str, Count], wrong: dict[str, Count], real: dict[str, Count], seconds: float
) -> list[str]:
    missed = []
    everything = people["all texts of people"]
    if everything.garbled > 0.003 * everything.texts:
        missed.append(f"{everything.garbled} of {everything.texts} texts of people are accused, wanted 0.3 %")
    for name, count in people.items():
        if name.startswith("language") and count.garbled > 0.01 * count.texts:
            missed.append(f"{name}: {count.garbled} of {count.texts} are accused, wanted 1 %")
    outputs = clean["all clean outputs"]
    if outputs.garbled > 0.003 * outputs.texts:
        missed.append(f"{outputs.garbled} of {outputs.texts} clean outputs are accused, wanted 0.3 %")
    for name, counts in (("H200", real), ("damaged", wrong)):
        for which in (VISIBLE, "broken, by hand", "garbled, by the model's scores"):
            if which in counts and (seen := counts[which]).garbled < 0.9 * seen.texts:
                missed.append(f"{name}, {which}: {seen.garbled} of {seen.texts} are found, wanted 90 %")
    if seconds > 2:
        missed.append(f"1,000 texts take {seconds:.1f} s, wanted 2 s")
    return missed


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--clean", type=int, default=1000, help="clean outputs to make, or to take")
    parser.add_argument("--lab", action="store_true")
    parser.add_argument("--fault", action="append", default=[])
    parser.add_argument("--suites", action="store_true")
    parser.add_argument("--suite", action="append", default=[])
    parser.add_argument("--no-texts", action="store_true", help="only what --lab and --suites ask for")
    parser.add_argument("--examples", action="store_true", help="show texts that were accused")
    options = parser.parse_args(argv)
    missed = [] if options.no_texts else texts(options)
    if options.lab:
        from benchmarks.verdict_lab import FAULTS

        missed += lab(options.cache, options.fault or list(FAULTS))
    if options.suites:
        missed += suites(options.cache, options.suite)
    for line in missed:
        print(f"missed: {line}")
    return 1 if missed else 0


def texts(options: argparse.Namespace) -> list[str]:
    cache = options.cache
    cold, warm = timing(cache)
    print(
        f"1,000 texts, layers 1 to 3: {cold:.2f} s of one core, tables read meanwhile; 1,000 more {warm:.2f} s",
        flush=True,
    )
    people, real = corpus(cache), h200(cache)
    clean, wrong = clean_outputs(cache, options.clean), damaged_outputs(cache)
    show("Texts of people: false alarms of the look alone (layer 2)", people)
    show("Clean outputs of the lab's model: false alarms of the look alone", clean)
    show("Outputs of the damaged model: recall of the look alone", wrong)
    show("SGLang 0.5.12 on an H200: the look alone", real)
    if options.examples:
        for counts in (people, clean, real):
            for name, count in counts.items():
                for example in count.examples:
                    print(f"  {name}: {example}")
    return targets(people, clean, wrong, real, cold) + healthy_runs(cache)


if __name__ == "__main__":
    sys.exit(main())
