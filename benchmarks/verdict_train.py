"""Train what the salad rule knows: junctions.json, flow.json, pairs.npz, salad.json and salad.npz of
diag/verdict/shape/.

    pip install scikit-learn      (in an environment of your own: the project itself does not need it)
    python benchmarks/verdict_train.py --cache DIR --texts FILE        tables, and the texts to learn from, into FILE
    python benchmarks/verdict_train.py --fit FILE                      the trees, on any machine: minutes on 16 cores

Reads only what is made for tuning: `verdict_corpus.tuning`, English dictionaries, clean outputs for the prompts of
`verdict_outputs.TUNE` and `MORE`, and garbled texts for them: the damaged model's, with what earlier runs of the lab's
faults have left in the cache. Random tokens come from the lab's vocabulary and from Qwen's, which the package
`dashscope` carries.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import json
import random
import re
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import verdict_corpus, verdict_outputs, verdict_pairs
from benchmarks.verdict_outputs import MORE, TUNE
from diag.lab.layout import model_dir
from diag.verdict.shape import features, flow, junctions, pairs
from diag.verdict.shape.chunks import chunks
from diag.verdict.shape.salad import LEAST_PIECES, trimmed

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

SUSPECT_RATE, GARBLED_RATE, GARBLED_CLEAN_RATE = 0.006, 0.0013, 0.002
"""Clean texts that may pass each limit, in cross-validation; of people, and for the last of a model."""

FOLDS = 4
HARD, HARDER = -0.5, 3.0
"""A clean text with such a score in the first round weighs so many times more in the second."""

GARBLED = ("damaged", "salad")
KINDS = ("people", "clean", *GARBLED)

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


@dataclass(frozen=True)
class Text:
    """One text to learn from. group: texts of one group are learned from together, or not at all, in cross-validation;
    without: languages that are taken to have no word list; wrong: characters of the wrong tokens of a garbled output,
    which may well begin as a healthy one; None: it is of one kind throughout."""

    kind: str
    group: str
    weight: float
    text: str
    without: frozenset[str] = frozenset()
    wrong: tuple[tuple[int, int], ...] | None = None

    @property
    def garbled(self) -> bool:
        return self.kind in GARBLED

    def describe(self, tables: features.Tables) -> list[tuple[float, ...]]:
        """[windows, features] that are learned from."""
        pieces = chunks(trimmed(self.text))
        if len(pieces) < LEAST_PIECES:
            return []
        found = features.windows(self.text, pieces, features.spoken(pieces, without=self.without), tables)
        return [window.values for window in found]

    def taught(self, tables: features.Tables) -> list[bool]:
        """Of each window, whether it is learned from."""
        pieces = chunks(trimmed(self.text))
        found = features.windows(self.text, pieces, features.spoken(pieces, without=self.without), tables)
        wrong = self.wrong or ()
        return [sum(a >= w.start - 1 and b <= w.end + 1 for a, b in wrong) >= LEAST_WRONG for w in found]


def spans(row: dict[str, Any], vocabulary: Vocabulary) -> tuple[tuple[int, int], ...]:
    """Characters of the wrong tokens of an output."""
    ends = [len(vocabulary[0](row["ids"][:n])) for n in range(len(row["ids"]) + 1)]
    return tuple((a, b) for a, b, gap in zip(ends, ends[1:], row["gaps"]) if gap > WRONG_NATS and b > a)


def spoken_elsewhere(sample: verdict_corpus.Sample) -> frozenset[str]:
    """The languages to forget, so that it is one that nobody has heard of."""
    return frozenset(_RELATED.get(sample.language, {sample.language.split("_")[0]}))


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
    wrong: int = sum(gap > WRONG_NATS for gap in row["gaps"])
    return wrong / max(1, len(row["gaps"]))


def visible(row: dict[str, Any]) -> bool:
    """By the model's own scores, not by looks: enough tokens that it would never have chosen."""
    return wrong_share(row) >= VISIBLE_SHARE and sum(gap > WRONG_NATS for gap in row["gaps"]) >= 6


def garbled_rows(cache: Path) -> list[dict[str, Any]]:
    rows = [row for asked in (TUNE, *MORE) for row in verdict_outputs.damaged(model_dir(), cache, 40, asked)]
    for name in ("lab-garbled.jsonl", "lab-faults.jsonl"):
        if (cache / name).is_file():
            more = [json.loads(line) for line in (cache / name).read_text().splitlines()]
            rows += [row for row in more if row.get("gaps")]
    return rows


def gather(cache: Path) -> list[Text]:
    """Write the tables; return the texts that the trees are grown on. Tables and trees are made of different files: on
    its own texts a table is too sure."""
    rng = random.Random(2)
    samples = verdict_corpus.tuning(cache)
    first = [s for s in samples if counted(s.name.split("#")[0])]
    second = [s for s in samples if not counted(s.name.split("#")[0])]
    clean = verdict_outputs.outputs(model_dir(), cache, 900)
    cool = [row["text"] for row in clean if zlib.crc32(row["prompt"].encode()) % 2 and row["temperature"] <= 0.8]
    _written("junctions.json", (sequence(s.text) for s in first), 3)
    _written("flow.json", (words_of(text) for text in [*(s.text for s in first), *cool]), 2)
    verdict_pairs.write(cache, SHAPE / "pairs.npz", counted)
    clean += [row for asked in MORE for row in verdict_outputs.outputs(model_dir(), cache, 3600, asked)]
    return [*_of_people(second, rng), *_of_models(clean, second, cache, rng)]


def counted(file: str) -> bool:
    """Whether a file of the corpus is counted in the tables; the trees learn from the others."""
    return zlib.crc32(file.encode()) % 2 == 1


def _of_people(samples: list[verdict_corpus.Sample], rng: random.Random) -> Iterator[Text]:
    prose = [s for s in samples if s.kind in ("guide", "manual", "verse")]
    short = [s.text for s in prose if 60 < len(s.text) < 700]
    for sample in rng.sample(samples, min(10_000, len(samples))):
        yield Text("people", sample.name, 1.0, sample.text)
    for sample in rng.sample(prose, 2000):
        if sample.language != "en":
            yield Text("foreign", sample.name, 0.7, sample.text, spoken_elsewhere(sample))
    guides = [s.text for s in samples if s.kind == "guide"]
    for text in (*repeated(guides, 300, rng), *exclaimed(short, 240, rng), *ruled(short, 240, rng)):
        yield Text("made", text, 1.0, text)


def _of_models(
    clean: list[dict[str, Any]], people: list[verdict_corpus.Sample], cache: Path, rng: random.Random
) -> Iterator[Text]:
    for row in clean:
        yield Text("clean", row["prompt"], 1.5, row["text"])
    vocabularies = [lab_vocabulary(), qwen_vocabulary(cache)]
    for row in garbled_rows(cache):
        if max(row["gaps"], default=9) < 0.3:  # damage that did not show
            yield Text("unharmed", row["prompt"], 1.0, row["text"])
        elif visible(row):
            yield Text("damaged", row["prompt"], 4.0, row["text"], wrong=spans(row, vocabularies[0]))
    for number, texts in ((3000, [s.text for s in people]), (2000, [row["text"] for row in clean])):
        words = [text for text in texts if text.count(" ") > 20]
        for text in random_salads(vocabularies, words, number, rng):
            yield Text("salad", text, 0.5, text)


def _written(name: str, sequences: Iterable[Iterable[str]], least: int) -> None:
    """least: how often a triple was seen that is kept."""
    triples = {triple: n for triple, n in junctions.count(sequences).items() if n >= least}
    after: dict[str, dict[str, int]] = {}
    for (a, b, c), n in sorted(triples.items()):
        after.setdefault(f"{a} {b}", {})[c] = n
    lines = ",\n".join(f"{json.dumps(pair)}: {json.dumps(followers)}" for pair, followers in after.items())
    (SHAPE / name).write_text('{"schema": 1, "after": {\n' + lines + "\n}}\n")


def _described(text: Text) -> tuple[Any, Any]:
    values = np.array(text.describe(tables()), dtype=np.float32)
    return values, np.array(text.taught(tables())) if text.wrong is not None and len(values) else None


@lru_cache(maxsize=1)
def tables() -> features.Tables:
    return features.Tables(junctions.costs(), flow.costs(), pairs.tables())


@dataclass
class Lesson:
    """A text as it is learned from. windows [W, features]; taught [W]: those that are."""

    text: Text
    fold: int
    windows: Any
    taught: Any
    weight: float

    @property
    def learned(self) -> Any:
        return self.windows if self.taught is None else self.windows[self.taught]


def fit(texts: list[Text]) -> None:
    with Pool() as pool:
        told = pool.map(_described, texts, chunksize=32)
    lessons = [
        Lesson(text, zlib.crc32(text.group.encode()) % FOLDS, windows, taught, text.weight)
        for text, (windows, taught) in zip(texts, told)
        if len(windows)
    ]
    print(f"{len(lessons)} texts, {sum(each.text.garbled for each in lessons)} of them garbled", flush=True)
    # Clean texts that a first round finds odd are what the limit is set by: they weigh more in the second.
    for each, score in zip(lessons, crossed(lessons, max_iter=100, max_leaf_nodes=14, learning_rate=0.1)):
        each.weight *= HARDER if not each.text.garbled and score > HARD else 1.0
    best = {"max_iter": 400, "max_leaf_nodes": 16, "learning_rate": 0.07}
    scores = crossed(lessons, **best)
    by_kind = {kind: [s for s, each in zip(scores, lessons) if each.text.kind == kind] for kind in KINDS}
    people, clean = np.array(by_kind["people"]), np.array(by_kind["clean"])
    suspect = max(np.quantile(people, 1 - SUSPECT_RATE) + FOREIGN, np.quantile(clean, 1 - SUSPECT_RATE))
    garbled = max(np.quantile(people, 1 - GARBLED_RATE), np.quantile(clean, 1 - GARBLED_CLEAN_RATE))
    for name, limit in (("suspect", suspect), ("garbled", garbled)):
        shares = ", ".join(f"{kind} {np.mean(np.array(found) > limit):.2%}" for kind, found in by_kind.items())
        print(f"{name} above {limit:.2f}: {shares}", flush=True)
    trees = grown(lessons, **best)
    usual = np.quantile(np.concatenate([each.windows for each in lessons if not each.text.garbled]), 0.99, axis=0)
    write_salad(trees, float(suspect), float(garbled), usual)


def crossed(lessons: list[Lesson], **settings: Any) -> list[float]:
    """The score of the worst window of each text, by trees that were grown on other texts."""
    scores = [0.0] * len(lessons)
    for fold in range(FOLDS):
        trees = grown([each for each in lessons if each.fold != fold], **settings)
        mine = [n for n, each in enumerate(lessons) if each.fold == fold]
        found = trees.decision_function(np.concatenate([lessons[n].windows for n in mine]))
        ends = np.cumsum([len(lessons[n].windows) for n in mine])
        for n, some in zip(mine, np.split(found, ends[:-1])):
            scores[n] = float(some.max())
    return scores


def grown(lessons: list[Lesson], **settings: Any) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier  # type: ignore[import-not-found, unused-ignore]

    some = [each for each in lessons if len(each.learned)]
    counts = [len(each.learned) for each in some]
    trees = HistGradientBoostingClassifier(
        l2_regularization=2.0, min_samples_leaf=20, random_state=0, early_stopping=False, **settings
    )
    return trees.fit(
        np.concatenate([each.learned for each in some]),
        np.repeat([each.text.garbled for each in some], counts),
        sample_weight=np.repeat([each.weight for each in some], counts),
    )


def write_salad(trees: Any, suspect: float, garbled: float, usual: Any) -> None:
    grown_ones = [predictor.nodes for (predictor,) in trees._predictors]
    shape = len(grown_ones), max(map(len, grown_ones))
    feature, value = np.full(shape, -1, np.int8), np.zeros(shape, np.float32)
    left, right = np.zeros(shape, np.uint8), np.zeros(shape, np.uint8)
    for at, nodes in enumerate(grown_ones):
        leaf, n = nodes["is_leaf"].astype(bool), len(nodes)
        feature[at, :n] = np.where(leaf, -1, nodes["feature_idx"])
        value[at, :n] = np.where(leaf, nodes["value"], nodes["num_threshold"])
        left[at, :n], right[at, :n] = (np.where(leaf, 0, nodes[side]) for side in ("left", "right"))
    np.savez_compressed(SHAPE / "salad.npz", feature=feature, value=value, left=left, right=right)
    head = {
        "schema": 2,
        "base": float(np.ravel(trees._baseline_prediction)[0]),
        "depth": max(int(nodes["depth"].max()) for nodes in grown_ones),
        "suspect_above": round(suspect, 3),
        "garbled_above": round(garbled, 3),
        "names": list(features.NAMES),
        "usual": [float(f"{number:.4g}") for number in usual],
    }
    (SHAPE / "salad.json").write_text(json.dumps(head, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--texts", type=Path, help="where the texts go that are to be learned from")
    parser.add_argument("--fit", type=Path, help="what --texts wrote")
    options = parser.parse_args()
    if options.fit is not None:
        with gzip.open(options.fit, "rt", encoding="utf-8") as file:
            fit([Text(**{**row, "without": frozenset(row["without"])}) for row in map(json.loads, file)])
    elif options.cache is None or options.texts is None:
        parser.error("give --cache and --texts, or --fit")
    else:
        with gzip.open(options.texts, "wt", encoding="utf-8", errors="surrogatepass") as file:
            for text in gather(options.cache):
                file.write(json.dumps({**asdict(text), "without": sorted(text.without)}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
