"""Train what the salad rule knows: diag/verdict/shape/junctions.json and salad.json.

    pip install scikit-learn      (in an environment of your own: the project itself does not need it)
    python benchmarks/verdict_train.py --cache DIR

Reads only the tuning half of the corpus (`verdict_corpus`), the tuning half of the clean outputs, and garbled texts
whose prompt is in the tuning half: damaged models, and outputs of the lab's faults if `benchmarks/verdicts.py` has left
them in the cache. Random tokens come from the lab's vocabulary and from Qwen's, which the package `dashscope` carries.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import re
import subprocess
import sys
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import verdict_corpus, verdict_outputs
from diag.lab.layout import model_dir
from diag.verdict.shape import features, junctions
from diag.verdict.shape.chunks import chunks
from diag.verdict.shape.salad import trimmed

SHAPE = Path(chunks.__code__.co_filename).parent
SEEN_OFTEN_ENOUGH = 3
VISIBLE_SHARE = 0.12
"""Share of tokens more than 3 nats off from which an output is taken to look garbled."""

SUSPECT_RATE, GARBLED_RATE = 0.006, 0.002
"""Clean texts that may pass each limit, in cross-validation."""

FOREIGN = 0.3
"""Added to the limit of suspect texts: the corpus has not every language, and what it lacks scores higher."""

Vocabulary = tuple[Callable[[list[int]], str], int]


def tuned_on(prompt: str) -> bool:
    """Whether outputs for this prompt may be tuned on; the benchmark shows the others."""
    return zlib.crc32(prompt.encode()) % 2 == 0


def sequence(text: str) -> Iterator[str]:
    end = 0
    for piece in chunks(text):
        symbols = piece.build.symbols
        if piece.start == end and end and piece.build.kind in ("dense", "dense-joined"):
            continue
        if piece.start > end and symbols not in (("n",), ("N",)):
            yield junctions.of_gap(text[end : piece.start])
        yield from symbols
        end = piece.end


def described(text: str, table: junctions.Costs) -> list[tuple[float, ...]]:
    pieces = chunks(trimmed(text))
    return [window.values for window in features.windows(text, pieces, features.spoken(pieces), table)]


def lab_vocabulary() -> Vocabulary:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_dir() / "tokenizer.json"))
    return tokenizer.decode, tokenizer.get_vocab_size()


def qwen_vocabulary(cache: Path) -> Vocabulary:
    if not list(cache.glob("dashscope*.whl")):
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(cache), "dashscope"]
        subprocess.run(command, check=True)
    with zipfile.ZipFile(next(cache.glob("dashscope*.whl"))) as archive:
        lines = archive.read("dashscope/resources/qwen.tiktoken").splitlines()
    tokens = [base64.b64decode(line.split()[0]) for line in lines]
    return lambda ids: b"".join(tokens[i] for i in ids).decode("utf-8", "replace"), len(tokens)


def random_salads(vocabularies: list[Vocabulary], human: list[str], number: int, rng: random.Random) -> Iterator[str]:
    """Tokens at random; few ones again and again; chains of them; among words of people, or after them."""
    for n in range(number):
        decode, size = vocabularies[n % len(vocabularies)]
        length = rng.choice([20, 40, 80, 160])
        skew = rng.choice([1.0, 1.5, 3.0])

        def pick() -> int:
            return int(size * rng.random() ** skew)  # noqa: B023

        style = rng.choice(["flat", "few", "chain", "mixed", "after"])
        if style == "flat":
            yield decode([pick() for _ in range(length)])
        elif style == "few":
            some = [pick() for _ in range(rng.randrange(4, 30))]
            yield decode([rng.choice(some) for _ in range(length)])
        elif style == "chain":
            some = [pick() for _ in range(rng.randrange(6, 30))]
            follows = {token: [rng.choice(some) for _ in range(3)] for token in some}
            ids = [rng.choice(some)]
            while len(ids) < length:
                ids.append(rng.choice(follows.get(ids[-1], some)) if rng.random() < 0.85 else pick())
            yield decode(ids)
        else:
            words = rng.choice(human).split(" ")[:length]
            if style == "mixed":
                kept = rng.uniform(0.2, 0.65)
                yield " ".join(w if rng.random() < kept else decode([pick() for _ in range(2)]) for w in words)
            else:
                tail = decode([pick() for _ in range(length)])
                yield " ".join(words[-rng.randrange(1, 8) :]) + tail


def repeated(texts: list[str], number: int, rng: random.Random) -> Iterator[str]:
    """Sentences of people that come again and again with small changes, as refrains and small models have them."""
    for _ in range(number):
        sentences = re.split(r"(?<=[.!?:,;])\s+", rng.choice(texts))
        some = [" ".join(sentence.split()[:12]) for sentence in sentences if 3 < sentence.count(" ") < 40][:6]
        if len(some) > 1:
            lines = [rng.choice(some[:4]) for _ in range(rng.randrange(6, 30))]
            yield rng.choice(["\n", "\n", " ", "\n\n"]).join(lines)


def other_tokens(rows: list[dict[str, Any]], vocabulary: Vocabulary, times: int, rng: random.Random) -> Iterator[str]:
    """The same garbled outputs with other tokens in the places of those that the model would not have chosen."""
    decode, size = vocabulary
    for row in rows:
        wrong = {token for token, gap in zip(row["ids"], row["gaps"]) if gap > 3}
        for _ in range(times):
            kept, skew = rng.choice([0.2, 0.5, 0.8]), rng.choice([1.0, 1.5, 2.5])
            swapped = {t: t if rng.random() < kept else 17 + int((size - 17) * rng.random() ** skew) for t in wrong}
            yield decode([swapped.get(token, token) for token in row["ids"]])


def visible(row: dict[str, Any]) -> bool:
    """By the model's own scores, not by looks: enough tokens that it would never have chosen."""
    wrong = sum(gap > 3 for gap in row["gaps"])
    return wrong >= 6 and wrong >= VISIBLE_SHARE * len(row["gaps"])


def garbled_rows(cache: Path) -> list[dict[str, Any]]:
    rows = verdict_outputs.damaged(model_dir(), cache)
    for name in ("lab-garbled.jsonl", "lab-faults.jsonl"):
        if (cache / name).is_file():
            more = [json.loads(line) for line in (cache / name).read_text().splitlines()]
            rows += [row for row in more if row.get("gaps")]
    return [row for row in rows if tuned_on(row["prompt"]) and visible(row)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--clean", type=int, default=1200, help="clean outputs of the model to make, or to take")
    options = parser.parse_args()
    cache = options.cache
    rng = random.Random(2)
    root = verdict_corpus.fetch(cache)
    samples = [s for s in verdict_corpus.samples(root) + verdict_corpus.structured() if not s.held_out]
    # The table of neighbourhoods and the trees are made of different files: on its own texts the table is too sure.
    first = [s for s in samples if zlib.crc32(s.name.split("#")[0].encode()) % 2]
    second = [s for s in samples if not zlib.crc32(s.name.split("#")[0].encode()) % 2]
    triples = junctions.count(sequence(s.text) for s in first)
    triples = Counter({triple: n for triple, n in triples.items() if n >= SEEN_OFTEN_ENOUGH})
    write_junctions(triples)
    table = junctions.Costs(triples)

    human = [described(s.text, table) for s in second]
    clean = [
        row["text"] for row in verdict_outputs.outputs(model_dir(), cache, options.clean) if tuned_on(row["prompt"])
    ]
    # Damage that did not show is a clean output as well.
    clean += [row["text"] for row in verdict_outputs.damaged(model_dir(), cache) if max(row["gaps"], default=9) < 0.3]
    human += [described(text, table) for text in clean]
    human += [described(text, table) for text in repeated([s.text for s in second if s.kind == "guide"], 300, rng)]
    prose = [s.text for s in second if s.kind in ("guide", "manual", "verse") and s.text.count(" ") > 20]
    vocabularies = [lab_vocabulary(), qwen_vocabulary(cache)]
    rows = garbled_rows(cache)
    made = [
        *((text, 0.5) for text in random_salads(vocabularies, prose, 4000, rng)),
        *((row["text"], 4.0) for row in rows),
        *((text, 1.0) for text in other_tokens(rows, vocabularies[0], 6, rng)),
    ]
    salad = [(described(text, table), weight) for text, weight in made]
    print(f"{len(human)} clean texts, {len(rows)} garbled outputs, {len(salad)} garbled texts in all", flush=True)
    fit(human, salad)
    return 0


def write_junctions(triples: Counter[tuple[str, str, str]]) -> None:
    after: dict[str, dict[str, int]] = {}
    for (a, b, c), n in sorted(triples.items()):
        after.setdefault(f"{a} {b}", {})[c] = n
    lines = ",\n".join(f"{json.dumps(pair)}: {json.dumps(followers)}" for pair, followers in after.items())
    (SHAPE / "junctions.json").write_text('{"schema": 1, "after": {\n' + lines + "\n}}\n")


def fit(human: list[list[tuple[float, ...]]], salad: list[tuple[list[tuple[float, ...]], float]]) -> None:
    from sklearn.ensemble import HistGradientBoostingClassifier

    def learned(some: Iterable[int], others: Iterable[int]) -> Any:
        clean = [values for n in some for values in human[n]]
        wrong = [(values, salad[n][1]) for n in others for values in salad[n][0]]
        x = np.array([*clean, *(values for values, _ in wrong)])
        y = np.array([0] * len(clean) + [1] * len(wrong))
        weights = np.array([1.0] * len(clean) + [weight for _, weight in wrong])
        trees = HistGradientBoostingClassifier(
            max_iter=160, max_leaf_nodes=12, learning_rate=0.1, l2_regularization=2.0, min_samples_leaf=40,
            random_state=0, early_stopping=False,
        )  # fmt: skip
        return trees.fit(x, y, sample_weight=weights)

    def worst(trees: Any, texts: list[list[tuple[float, ...]]]) -> list[float]:
        return [float(trees.decision_function(np.array(text)).max()) for text in texts if text]

    folds = 4
    scores, found = [], []
    for fold in range(folds):
        trees = learned(
            [n for n in range(len(human)) if n % folds != fold], [n for n in range(len(salad)) if n % folds != fold]
        )
        scores += worst(trees, [human[n] for n in range(len(human)) if n % folds == fold])
        found += worst(trees, [salad[n][0] for n in range(len(salad)) if n % folds == fold])
    suspect, garbled = (float(np.quantile(scores, 1 - rate)) for rate in (SUSPECT_RATE, GARBLED_RATE))
    suspect += FOREIGN
    for name, limit in (("suspect", suspect), ("garbled", garbled)):
        print(f"{name} above {limit:.2f}: finds {np.mean([s > limit for s in found]):.1%} of the garbled texts")
    trees = learned(range(len(human)), range(len(salad)))
    usual = np.quantile(np.array([values for text in human for values in text]), 0.99, axis=0)
    write_salad(trees, suspect, garbled, usual)


def write_salad(trees: Any, suspect: float, garbled: float, usual: Any) -> None:
    written = []
    for (predictor,) in trees._predictors:
        nodes = [
            [-1, round(float(n["value"]), 5), 0, 0] if n["is_leaf"]
            else [int(n["feature_idx"]), float(f"{n['num_threshold']:.6g}"), int(n["left"]), int(n["right"])]
            for n in predictor.nodes
        ]  # fmt: skip
        written.append(json.dumps(nodes, separators=(",", ":")))
    head = {
        "schema": 1,
        "base": float(np.ravel(trees._baseline_prediction)[0]),
        "suspect_above": round(suspect, 3),
        "garbled_above": round(garbled, 3),
        "names": list(features.NAMES),
        "usual": [float(f"{value:.4g}") for value in usual],
    }
    body = json.dumps(head)[:-1] + ', "trees": [\n' + ",\n".join(written) + "\n]}\n"
    (SHAPE / "salad.json").write_text(body)


if __name__ == "__main__":
    sys.exit(main())
