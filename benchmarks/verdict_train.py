"""Train what the salad rule knows: letters.npz, salad.json and salad.npz of diag/verdict/shape/.

    pip install scikit-learn      (in an environment of your own: the project itself does not need it)
    python benchmarks/verdict_train.py --cache DIR --texts FILE        the table, and the texts to learn from, into FILE
    python benchmarks/verdict_train.py --fit FILE                      the trees: some minutes on two cores

Reads only what is made for tuning: `verdict_corpus.tuning`, what programs say in many languages, English dictionaries,
clean outputs for the prompts of `verdict_outputs.TUNE` and `MORE`, and garbled texts for them: the damaged model's,
with what earlier runs of the lab's faults have left in the cache. Random tokens come from the lab's vocabulary and from
Qwen's, which the package `dashscope` carries. Of what is garbled by the model's own scores, that counts most which the
reader of `verdict_reader` sees to be. The table is counted from one half, and the trees learn from the other; some
languages are taken to be unheard of, with a table that was counted without them.
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
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import verdict_corpus, verdict_ngrams, verdict_outputs, verdict_reader
from benchmarks.verdict_outputs import MORE, TUNE
from diag.lab.layout import model_dir
from diag.verdict.shape import features, letters
from diag.verdict.shape.chunks import chunks
from diag.verdict.shape.salad import LEAST_PIECES, trimmed

SHAPE = Path(chunks.__code__.co_filename).parent
VISIBLE_SHARE = 0.12
"""Share of tokens more than 3 nats off from which an output is taken to look garbled."""

WRONG_NATS, LEAST_WRONG = 3.0, 3
"""A token is wrong that is so far below the model's best; a window is, that holds so many."""

ODD_WEIGHTS = ((5.3, 6.0), (4.3, 1.0), (0.0, 0.1))
"""The reader's nats from which on a damaged output weighs so much: what nobody can see is not to be learned."""

UNHEARD = frozenset(
    ("cs", "fi", "nl", "hu", "tr", "id", "vi", "pl", "ro", "ga", "eo", "it", "sv", "uk", "ja", "eu", "cy", "gl", "is")
) | {"sq", "lt", "hy", "ka", "he", "fa", "ko", "af", "br", "ms"}
"""Languages that the second table was not counted in."""

_SOUTH, _NORTH, _SLAVIC = {"es", "pt", "ca", "it"}, {"da", "nb", "sv"}, {"ru", "uk", "bg", "mk", "sh"}
_WEST, _YUGOSLAV = {"cs", "sk"}, {"sh", "sl"}
_RELATED = {
    **dict.fromkeys(("es", "pt", "ca", "it"), _SOUTH),
    **dict.fromkeys(("da", "nb", "sv"), _NORTH),
    **dict.fromkeys(("ru", "uk", "bg", "mk", "sr"), _SLAVIC),
    **dict.fromkeys(("cs", "sk"), _WEST),
    **dict.fromkeys(("hr", "bs"), _YUGOSLAV),
}

SUSPECT_RATE, GARBLED_RATE = 0.006, 0.002
"""Clean texts that may pass each limit, in cross-validation: of people, and of a model."""

UP_TO = (7, 15, 39)
"""Pieces of a text up to which it has a limit of its own: of few pieces less can be said, and clean ones score more."""

FOLDS = 3
HARD, HARDER = -0.5, 3.0
"""A clean text with such a score in the first round weighs so many times more in the second."""

GARBLED = ("damaged", "salad")
KINDS = ("people", "clean", "cut", *GARBLED)

FOREIGN = 0.3
"""Added to the limit of suspect texts: the corpus has not every language, and what it lacks scores higher."""

Vocabulary = tuple[Callable[[list[int]], str], int]


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

    def described(self, table: letters.Letters) -> tuple[Any, Any]:
        """([windows, features], [windows] whether each is learned from, or None where all are)."""
        pieces = chunks(trimmed(self.text))
        if len(pieces) < LEAST_PIECES:
            return np.zeros((0, len(features.NAMES)), np.float32), None
        lists = features.spoken(pieces, without=self.without)
        found = features.windows(self.text, pieces, lists, table)
        values = np.array([window.values for window in found], dtype=np.float32)
        if self.wrong is None:
            return values, None
        wrong = [sum(a >= w.start - 1 and b <= w.end + 1 for a, b in self.wrong) for w in found]
        return values, np.array(wrong) >= LEAST_WRONG


def spans(row: dict[str, Any], vocabulary: Vocabulary) -> tuple[tuple[int, int], ...]:
    """Characters of the wrong tokens of an output."""
    ends = [len(vocabulary[0](row["ids"][:n])) for n in range(len(row["ids"]) + 1)]
    return tuple((a, b) for a, b, gap in zip(ends, ends[1:], row["gaps"]) if gap > WRONG_NATS and b > a)


def spoken_elsewhere(sample: verdict_corpus.Sample) -> frozenset[str]:
    """The languages to forget, so that it is one that nobody has heard of."""
    code = re.split("[_@]", sample.language)[0]
    return frozenset(_RELATED.get(code, {code}))


def lab_encoding() -> Callable[[str], list[int]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_dir() / "tokenizer.json"))
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids)


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


def misread(
    vocabularies: list[Vocabulary],
    encode: Callable[[str], list[int]],
    texts: list[str],
    number: int,
    rng: random.Random,
) -> Iterator[str]:
    """Right token ids, another vocabulary's text: all are so many places off, or mixed up, or of another model, or only
    those above some number."""
    (decode, size), (other, other_size) = vocabularies
    while number:
        ids = encode(rng.choice(texts)[:900])
        length = rng.choice([10, 14, 18, 24, 24, 40, 80, 160])
        at = 0 if rng.random() < 0.6 else rng.randrange(max(1, len(ids) - length))
        ids = ids[at : at + length]
        off = rng.choice([-1, 1]) * rng.choice([2, 3, 5, 16, 64, 100, 256, 1000, 5000])  # the lab's fault is one off
        odd, above = 2 * rng.randrange(3, 9999) + 1, rng.randrange(3000)
        how = rng.choice(["off", "off", "mixed", "other", "some"])
        if how == "some" and 2 * sum(token > above for token in ids) < len(ids):
            continue
        text = {
            "off": lambda: decode([(token + off) % size for token in ids]),  # noqa: B023
            "mixed": lambda: decode([(token * odd + 17) % size for token in ids]),  # noqa: B023
            "other": lambda: other([token % other_size for token in ids]),  # noqa: B023
            "some": lambda: decode([(token + off) % size if token > above else token for token in ids]),  # noqa: B023
        }[how]()
        if len(text.split()) >= LEAST_PIECES:
            number -= 1
            yield text


def short_salads(vocabularies: list[Vocabulary], number: int, rng: random.Random) -> Iterator[str]:
    """A few tokens at random, some of them with one that comes again and again between them."""
    while number:
        decode, size = rng.choice(vocabularies)
        skew = rng.choice([1.0, 1.5, 2.0, 3.0])
        ids = [int(size * rng.random() ** skew) for _ in range(rng.choice([8, 10, 12, 16, 20, 24, 30]))]
        if rng.random() < 0.4:
            between = rng.choice(ids)
            ids = [between if rng.random() < 0.2 else token for token in ids]
        text = decode(ids)
        if len(text.split()) >= LEAST_PIECES:
            number -= 1
            yield text


def cut(texts: list[tuple[str, str]], number: int, rng: random.Random) -> Iterator[tuple[str, str]]:
    """(group, text) -> some words of it."""
    for group, text in rng.sample(texts, min(number, len(texts))):
        words = text.split(" ")
        length = rng.randrange(4, 16)
        at = 0 if rng.random() < 0.7 else rng.randrange(max(1, len(words) - length))
        some = " ".join(words[at : at + length])
        if len(some) > 12:
            yield group, some


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


def gather(cache: Path, folder: Path) -> list[Text]:
    """Write the tables; return the texts that the trees are grown on. Tables and trees are made of different files: on
    its own texts a table is too sure."""
    rng = random.Random(2)
    clean = verdict_outputs.outputs(model_dir(), cache, 900)
    clean += [row for asked in MORE for row in verdict_outputs.outputs(model_dir(), cache, 3600, asked)]
    cool = [row["text"] for row in clean if told(row["prompt"]) and row["temperature"] <= 0.8]
    by_language = verdict_ngrams.texts(cache, cool, counted)
    verdict_ngrams.write(SHAPE / "letters.npz", by_language)
    verdict_ngrams.write(folder / UNHEARD_TABLE, by_language, UNHEARD)
    rest = [s for s in verdict_corpus.tuning(cache) if not counted(s.name.split("#")[0])]
    said = {key: texts for key, texts in verdict_corpus.messages(cache).items() if not counted(key[1])}
    spoken = list(verdict_corpus.spoken(said, rng))
    clean = [row for row in clean if not told(row["prompt"])]
    return [*_of_people(rest, spoken, rng), *_of_models(clean, rest, cache, rng)]


def told(prompt: str) -> bool:
    """Whether outputs for a prompt are counted in the table; the trees learn from the others."""
    return zlib.crc32(prompt.encode()) % 4 == 0


def counted(file: str) -> bool:
    """Whether a file of the corpus is counted in the tables; the trees learn from the others."""
    return zlib.crc32(file.encode()) % 2 == 1


def _of_people(
    samples: list[verdict_corpus.Sample], spoken: list[verdict_corpus.Sample], rng: random.Random
) -> Iterator[Text]:
    for sample in spoken:
        group = sample.name.split("#")[0]
        yield Text("people", group, 1.0, sample.text)
        if rng.random() < 0.3:
            yield Text("foreign", group, 0.7, sample.text, spoken_elsewhere(sample))
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
    for group, text in cut([(row["prompt"], row["text"]) for row in clean], 3000, rng):
        yield Text("cut", group, 1.0, text)
    vocabularies = [lab_vocabulary(), qwen_vocabulary(cache)]
    garbled = garbled_rows(cache)
    seen = [row["text"] for row in garbled if visible(row)]
    odd = dict(zip(seen, verdict_reader.oddness(model_dir(), cache, seen)))
    for row in garbled:
        if max(row["gaps"], default=9) < 0.3:  # damage that did not show
            yield Text("unharmed", row["prompt"], 1.0, row["text"])
        elif visible(row):
            weight = next(weight for nats, weight in ODD_WEIGHTS if odd[row["text"]] >= nats)
            yield Text("damaged", row["prompt"], weight, row["text"], wrong=spans(row, vocabularies[0]))
    for number, texts in ((3000, [s.text for s in people]), (2000, [row["text"] for row in clean])):
        words = [text for text in texts if text.count(" ") > 20]
        for text in random_salads(vocabularies, words, number, rng):
            yield Text("salad", text, 0.5, text)
    plain = [row["text"] for row in clean] + [s.text for s in people if s.text.isascii()]
    for text in misread(vocabularies, lab_encoding(), plain, 4000, rng):
        yield Text("salad", text, 1.0, text)
    for text in short_salads(vocabularies, 2000, rng):
        yield Text("salad", text, 0.5, text)


UNHEARD_TABLE = "letters-unheard.npz"
"""Beside the texts."""


@lru_cache(maxsize=1)
def unheard_table(folder: Path) -> letters.Letters:
    return letters.read(dict(np.load(folder / UNHEARD_TABLE)))


def _described(folder: Path, text: Text) -> tuple[Any, Any]:
    return text.described(unheard_table(folder) if text.kind == "foreign" else letters.tables())


@dataclass
class Lesson:
    """A text as it is learned from. windows [W, features]; taught [W]: those that are."""

    text: Text
    fold: int
    windows: Any
    taught: Any
    weight: float
    pieces: int

    @property
    def learned(self) -> Any:
        return self.windows if self.taught is None else self.windows[self.taught]


def fit(texts: list[Text], folder: Path) -> None:
    with Pool() as pool:
        described = pool.map(partial(_described, folder), texts, chunksize=32)
    lessons = [
        Lesson(
            text, zlib.crc32(text.group.encode()) % FOLDS, windows, taught, text.weight, len(chunks(trimmed(text.text)))
        )
        for text, (windows, taught) in zip(texts, described)
        if len(windows)
    ]
    print(f"{len(lessons)} texts, {sum(each.text.garbled for each in lessons)} of them garbled", flush=True)
    # Clean texts that a first round finds odd are what the limit is set by: they weigh more in the second.
    for each, score in zip(lessons, crossed(lessons, max_iter=60, max_leaf_nodes=14, learning_rate=0.12)):
        each.weight *= HARDER if not each.text.garbled and score > HARD else 1.0
    best = {"max_iter": 300, "max_leaf_nodes": 16, "learning_rate": 0.09}
    scores = crossed(lessons, **best)
    counts = np.array([each.pieces for each in lessons])
    kinds, found = np.array([each.text.kind for each in lessons]), np.array(scores)
    suspect, garbled = [], []
    for low, high in zip((0, *UP_TO), (*UP_TO, 1 << 30)):
        mine = (counts > low) & (counts <= high)
        people, clean = (found[mine & (kinds == kind)] for kind in ("people", "clean"))
        garbled.append(max(limit(people, GARBLED_RATE), limit(clean, GARBLED_RATE)))
        odd = max(limit(people, SUSPECT_RATE) + FOREIGN, limit(clean, SUSPECT_RATE))
        suspect.append(min(odd, garbled[-1]))
        shown = ", ".join(f"{kind} {np.mean(found[mine & (kinds == kind)] > garbled[-1]):.2%}" for kind in KINDS)
        print(
            f"{low + 1} to {high} pieces: suspect above {suspect[-1]:.2f}, garbled above {garbled[-1]:.2f}: {shown}",
            flush=True,
        )
    np.savez_compressed(folder / "scores.npz", kinds=kinds, scores=found, pieces=counts)
    trees = grown(lessons, **best)
    usual = np.quantile(np.concatenate([each.windows for each in lessons if not each.text.garbled]), 0.99, axis=0)
    write_salad(trees, suspect, garbled, usual)


def limit(scores: Any, rate: float) -> float:
    """What so few of them pass; -inf where there are too few to say."""
    return float(np.quantile(scores, 1 - rate)) if len(scores) * rate >= 1 else float("-inf")


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


def write_salad(trees: Any, suspect: list[float], garbled: list[float], usual: Any) -> None:
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
        "up_to": UP_TO,
        "suspect_above": [round(limit, 3) for limit in suspect],
        "garbled_above": [round(limit, 3) for limit in garbled],
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
            fit(
                [Text(**{**row, "without": frozenset(row["without"])}) for row in map(json.loads, file)],
                options.fit.parent,
            )
    elif options.cache is None or options.texts is None:
        parser.error("give --cache and --texts, or --fit")
    else:
        with gzip.open(options.texts, "wt", encoding="utf-8", errors="surrogatepass") as file:
            for text in gather(options.cache, options.texts.parent):
                file.write(json.dumps({**asdict(text), "without": sorted(text.without)}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
