"""Train what the salad rule knows: diag/verdict/shape/junctions.json, flow.json and salad.json.

    pip install scikit-learn      (in an environment of your own: the project itself does not need it)
    python benchmarks/verdict_train.py --cache DIR

Reads only what is made for tuning: `verdict_corpus.tuning`, clean outputs for the prompts of `verdict_outputs.TUNE`,
and garbled texts for them: the damaged model's, with what earlier runs of the lab's faults have left in the cache.
Random tokens come from the lab's vocabulary and from Qwen's, which the package `dashscope` carries.
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
VISIBLE_SHARE = 0.12
"""Share of tokens more than 3 nats off from which an output is taken to look garbled."""

WRONG_NATS, LEAST_WRONG = 3.0, 3
"""A token is wrong that is so far below the model's best; a window is, that holds so many."""

_SOUTH, _NORTH, _SLAVIC = {"es", "pt", "ca", "it"}, {"da", "nb", "sv"}, {"ru", "uk", "bg", "mk", "sh"}
_RELATED = {
    **dict.fromkeys(("es", "pt", "pt_BR", "ca", "it"), _SOUTH),
    **dict.fromkeys(("da", "nb", "sv"), _NORTH),
    **dict.fromkeys(("ru", "uk", "bg", "mk", "sr"), _SLAVIC),
    "cs": {"cs", "sk"},
}

SUSPECT_RATE, GARBLED_RATE = 0.006, 0.002
"""Clean texts that may pass each limit, in cross-validation."""

FOLDS = 2

FOREIGN = 0.3
"""Added to the limit of suspect texts: the corpus has not every language, and what it lacks scores higher."""

Vocabulary = tuple[Callable[[list[int]], str], int]


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


def words_of(text: str) -> list[str]:
    pieces = chunks(trimmed(text))
    return features.flow_symbols(text, pieces, features.spoken(pieces))


def windows(text: str, tables: features.Tables) -> list[features.Window]:
    pieces = chunks(trimmed(text))
    return features.windows(text, pieces, features.spoken(pieces), tables) if pieces else []


def described(text: str, tables: features.Tables) -> list[tuple[float, ...]]:
    return [window.values for window in windows(text, tables)]


def foreign(sample: verdict_corpus.Sample, tables: features.Tables) -> list[tuple[float, ...]]:
    """As of a language that has no word list: what the trees are told of languages that nobody has heard of."""
    pieces = chunks(trimmed(sample.text))
    gone = frozenset(_RELATED.get(sample.language, {sample.language.split("_")[0]}))
    lists = features.spoken(pieces, without=gone)
    return [window.values for window in features.windows(sample.text, pieces, lists, tables)] if pieces else []


def wrong_windows(row: dict[str, Any], tables: features.Tables, vocabulary: Vocabulary) -> list[tuple[float, ...]]:
    """Those windows of a garbled output that hold wrong tokens: it may well begin as a healthy one."""
    ends = [len(vocabulary[0](row["ids"][:n])) for n in range(len(row["ids"]) + 1)]
    wrong = [(a, b) for a, b, gap in zip(ends, ends[1:], row["gaps"]) if gap > WRONG_NATS and b > a]
    return [
        window.values
        for window in windows(row["text"], tables)
        if sum(a >= window.start - 1 and b <= window.end + 1 for a, b in wrong) >= LEAST_WRONG
    ]


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


CRIES = "Ha ha ha!|No, no, no.|Oh no no no!|La la la la la,|very very very|Bla bla bla.|Tick tick tick.|Yes yes yes!"


def exclaimed(texts: list[str], number: int, rng: random.Random) -> Iterator[str]:
    """Words that people say again and again, in sentences of people."""
    for _ in range(number):
        words = rng.choice(texts).split(" ")
        at = rng.choice([0, 0, len(words) // 2, len(words)])
        yield " ".join([*words[:at], rng.choice(CRIES.split("|")), *words[at : at + rng.randrange(6, 60)]])


def ruled(texts: list[str], number: int, rng: random.Random) -> Iterator[str]:
    """Lines of people with rulers between them."""
    for _ in range(number):
        lines = [line.strip() for line in re.split(r"[.\n]", rng.choice(texts)) if len(line.strip()) > 3][:4]
        ruler = rng.choice("=-*_~") * rng.randrange(8, 80)
        cut = [line[: rng.choice([12, 30, 60])] for line in lines]
        yield rng.choice(["\n", "\n\n"]).join(part for line in cut for part in (line, ruler)[: rng.choice([1, 2])])


def wrong_share(row: dict[str, Any]) -> float:
    return sum(gap > WRONG_NATS for gap in row["gaps"]) / max(1, len(row["gaps"]))


def visible(row: dict[str, Any]) -> bool:
    """By the model's own scores, not by looks: enough tokens that it would never have chosen."""
    return wrong_share(row) >= VISIBLE_SHARE and sum(gap > WRONG_NATS for gap in row["gaps"]) >= 6


def garbled_rows(cache: Path) -> list[dict[str, Any]]:
    rows = verdict_outputs.damaged(model_dir(), cache)
    for name in ("lab-garbled.jsonl", "lab-faults.jsonl", "damaged2.jsonl"):
        if (cache / name).is_file():
            more = [json.loads(line) for line in (cache / name).read_text().splitlines()]
            rows += [row for row in more if row.get("gaps")]
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--clean", type=int, default=900, help="clean outputs of the model to make, or to take")
    parser.add_argument("--texts", type=int, default=9000, help="texts of people that the trees are grown on")
    options = parser.parse_args()
    cache, rng = options.cache, random.Random(2)
    samples = verdict_corpus.tuning(cache)
    # The tables and the trees are made of different files: on its own texts a table is too sure.
    first = [s for s in samples if zlib.crc32(s.name.split("#")[0].encode()) % 2]
    second = [s for s in samples if not zlib.crc32(s.name.split("#")[0].encode()) % 2]
    clean = verdict_outputs.outputs(model_dir(), cache, options.clean)
    cool = [row["text"] for row in clean if zlib.crc32(row["prompt"].encode()) % 2 and row["temperature"] <= 0.8]
    tables = features.Tables(
        _written("junctions.json", (sequence(s.text) for s in first), 3),
        _written("flow.json", (words_of(text) for text in [*(s.text for s in first), *cool]), 2),
    )
    human = [described(s.text, tables) for s in rng.sample(second, min(options.texts, len(second)))]
    prose = [s for s in second if s.kind in ("guide", "manual", "verse")]
    human += [foreign(s, tables) for s in rng.sample(prose, len(human) // 6) if s.language != "en"]
    human += [described(text, tables) for text in repeated([s.text for s in second if s.kind == "guide"], 300, rng)]
    healthy = [row["text"] for row in clean]
    short = [s.text for s in prose if 60 < len(s.text) < 700]
    human += [described(text, tables) for text in (*exclaimed(short, 240, rng), *ruled(short, 240, rng))]
    rows = garbled_rows(cache)
    # Damage that did not show is a clean output as well.
    healthy += [row["text"] for row in rows if max(row["gaps"], default=9) < 0.3]
    # Twice, and both in the same fold: they are few, and what is to be judged most often.
    described_clean = [described(text, tables) for text in healthy]
    described_clean += [[]] * (len(described_clean) % FOLDS)
    human += described_clean * 2
    vocabularies = [lab_vocabulary(), qwen_vocabulary(cache)]
    words = [s.text for s in prose if s.text.count(" ") > 20]
    made = [(described(text, tables), 0.5) for text in random_salads(vocabularies, words, 3000, rng)]
    rows = [row for row in rows if visible(row)]
    made += [(wrong_windows(row, tables, vocabularies[0]), 4.0) for row in rows]
    print(f"{len(human)} clean texts, {len(rows)} garbled outputs, {len(made)} garbled texts in all", flush=True)
    fit(human, [(values, weight) for values, weight in made if values])
    return 0


def _written(name: str, sequences: Iterable[Iterable[str]], least: int) -> junctions.Costs:
    """least: how often a triple was seen that is kept."""
    triples = {triple: n for triple, n in junctions.count(sequences).items() if n >= least}
    after: dict[str, dict[str, int]] = {}
    for (a, b, c), n in sorted(triples.items()):
        after.setdefault(f"{a} {b}", {})[c] = n
    lines = ",\n".join(f"{json.dumps(pair)}: {json.dumps(followers)}" for pair, followers in after.items())
    (SHAPE / name).write_text('{"schema": 1, "after": {\n' + lines + "\n}}\n")
    return junctions.Costs(triples)


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

    scores, found = [], []
    for fold in range(FOLDS):
        trees = learned(
            [n for n in range(len(human)) if n % FOLDS != fold], [n for n in range(len(salad)) if n % FOLDS != fold]
        )
        scores += worst(trees, [human[n] for n in range(len(human)) if n % FOLDS == fold])
        found += worst(trees, [salad[n][0] for n in range(len(salad)) if n % FOLDS == fold])
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
