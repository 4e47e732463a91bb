"""Count what follows what, for diag/verdict/shape/letters.npz (`verdict_train` calls it).

From one half of the tuning corpus, whole files; from English dictionaries and a help system; from what programs of
Debian say in a hundred languages; and from a healthy model's answers to one prompt in four. Languages are evened out,
English, code and outputs weigh more: they are what servers write most.

Sequences are counted by the hashes that the table is looked up by. Probabilities are interpolated after Witten and
Bell; of the sequences those are kept that say most beside their shorter ends, and what they begin with, which says
what is left over for others.
"""

from __future__ import annotations

import gzip
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import verdict_corpus
from diag.verdict.shape.alphabets import Alphabet, Building, Spelling
from diag.verdict.shape.ngrams import BACKOFF_BITS, BACKOFF_STEPS, COST_BITS, COST_STEPS, FREE, LOWEST_BACKOFF, hashes

ENGLISH = ("dict-gcide", "dict-jargon", "dict-foldoc", "libreoffice-help-en-us", "debian-reference-en")
MOST = {"en": 6_000_000, "code": 4_000_000, "outputs": 1 << 30}
MOST_OTHERS = 700_000
"""Characters of a language that are counted."""

WEIGHTS = {"en": 1.0, "code": 1.0, "outputs": 4.0}
MOST_WEIGHT = 3.0
"""Of a language with few texts; those with MOST_OTHERS have 1."""

LEAST_SEEN, CHARACTERS = 60, 4000
BEFORE = 8
"""Symbols between two texts that belong to neither."""


@dataclass(frozen=True)
class Size:
    """longest: symbols of a sequence; slot_bits: of the hash table; kept: sequences that are chosen; least: how often
    one was seen that is kept."""

    longest: int
    slot_bits: int
    kept: int
    least: int


SPELLING, BUILDING = Size(8, 21, 650_000, 3), Size(7, 17, 50_000, 4)

Symbols = npt.NDArray[np.uint32]
Array = npt.NDArray[np.float64]


@dataclass
class Grams:
    """Of one order, each [n]: hashes, probabilities, those of the shorter ends, what they say, and the hashes of the
    beginnings."""

    keys: Symbols
    probability: Array
    shorter: Array
    gain: Array
    beginnings: Symbols

    def only(self, wanted: npt.NDArray[np.bool_]) -> Grams:
        return Grams(*(values[wanted] for values in vars(self).values()))


def texts(cache: Path, outputs: Sequence[str], counted: Callable[[str], bool]) -> dict[str, list[str]]:
    """language -> texts; "code" and "outputs" are such. counted: whether a file, by its name, is to be."""
    found: dict[str, list[str]] = {"outputs": list(outputs)}
    for (language, catalogue), messages in verdict_corpus.messages(cache).items():
        if counted(catalogue):
            found.setdefault(language, []).append("\n".join(messages))
    root = verdict_corpus.fetch(cache / "tune", verdict_corpus.TUNE)
    for language, kind, path in verdict_corpus._files(root):
        if counted(str(path.relative_to(root))):
            name, most = ("code", 60_000) if kind == "code" else (language, 200_000)
            found.setdefault(name, []).append(verdict_corpus._text(path, kind)[:most])
    found.setdefault("en", []).extend(_english(verdict_corpus.fetch(cache / "english", ENGLISH)))
    return {language: _some(of_it, MOST.get(language, MOST_OTHERS)) for language, of_it in sorted(found.items())}


def _english(root: Path) -> list[str]:
    books = [gzip.decompress(path.read_bytes()).decode("utf-8", "replace") for path in sorted(root.rglob("*.dz"))]
    pages = [path.read_text(encoding="utf-8", errors="replace") for path in sorted(root.rglob("*.html"))]
    said = [re.sub(r"\\[^\\\n]*\\|\[[^\]\n]*\]|[{}]", " ", book) for book in books]  # pronunciations and sources
    return said + [verdict_corpus._plain_html(page) for page in pages]


def _some(of_it: list[str], most: int) -> list[str]:
    """In a random order, each at most a twentieth of what is wanted, until there is enough."""
    random.Random(1).shuffle(of_it)
    some: list[str] = []
    count = 0
    for text in of_it:
        some.append(text[: max(20_000, most // 20)])
        count += len(some[-1])
        if count >= most:
            break
    return some


def write(target: Path, by_language: Mapping[str, list[str]], without: Collection[str] = ()) -> None:
    """without: languages, by the first part of their codes, that are taken to be unheard of."""
    chosen = {name: of_it for name, of_it in by_language.items() if re.split("[_@]", name)[0] not in without}
    seen: Counter[str] = Counter()
    for of_it in chosen.values():
        for character, n in Counter("".join(of_it)).items():
            small = character.lower()
            seen[small if len(small) == 1 else character] += min(n, 20_000)
    characters = "".join(c for c, n in seen.most_common(CHARACTERS) if n >= LEAST_SEEN and not c.isdigit())
    tables = {"characters": np.frombuffer(characters.encode(), np.uint8)}
    for name, alphabet, size in (("spelling", Spelling(characters), SPELLING), ("building", Building(), BUILDING)):
        tables |= {f"{name}.{key}": value for key, value in _table(alphabet, chosen, size).items()}
    np.savez_compressed(target, **tables)


def _table(alphabet: Alphabet, by_language: Mapping[str, list[str]], size: Size) -> dict[str, Any]:
    symbols, weights = _symbols(alphabet, by_language)
    single = np.bincount(symbols, weights=weights, minlength=alphabet.size) + 0.5
    single /= single.sum()
    found = pruned(counted(symbols, weights, single, size), size.kept)
    print(f"{len(symbols)} symbols, {sum(len(grams.keys) for grams in found)} sequences", flush=True)
    return {
        "entries": hashed(found, size.slot_bits),
        "single": np.clip(np.round(-np.log(single) * COST_STEPS), 1, 127).astype(np.uint8),
        "longest": np.array(size.longest),
    }


def _symbols(alphabet: Alphabet, by_language: Mapping[str, list[str]]) -> tuple[Symbols, Array]:
    parts, weights = [], []
    for language, of_it in by_language.items():
        even = min(MOST_WEIGHT, MOST_OTHERS / max(1, sum(map(len, of_it))))
        for text in of_it:
            symbols, _ = alphabet("\n" + text)
            parts += [np.zeros(BEFORE, np.uint32), symbols]
            weights.append(np.full(BEFORE + len(symbols), WEIGHTS.get(language, even)))
    return np.concatenate(parts), np.concatenate(weights)


def counted(symbols: Symbols, weights: Array, single: Array, size: Size) -> list[Grams]:
    """By order, two symbols first."""
    found = []
    keys = hashes(symbols, size.longest)
    shorter = single[symbols]
    for order in range(2, size.longest + 1):
        own, at, which = np.unique(keys[order - 1], return_index=True, return_inverse=True)
        begun = np.concatenate([keys[order - 2][:1] * np.uint32(0), keys[order - 2][:-1]])
        beginnings, of_place = np.unique(begun, return_inverse=True)
        total = np.bincount(of_place, weights=weights)
        kinds = np.bincount(of_place[at], minlength=len(beginnings))
        kinds = kinds * np.minimum(total / np.maximum(1, np.bincount(of_place)), 1.0)
        n, t = total[of_place[at]], kinds[of_place[at]]
        weight, before = np.bincount(which, weights=weights), shorter[at]
        probability = (weight + t * before) / (n + t)
        often = np.bincount(which) >= size.least
        gain = weight * np.abs(np.log(probability) - np.log(before))
        found.append(Grams(own, probability, before, gain, begun[at]).only(often))
        shorter = probability[which]
    return found


def pruned(found: list[Grams], kept: int) -> list[Grams]:
    """Those that say most, and whatever they begin with."""
    gains = np.concatenate([grams.gain for grams in found])
    least = np.partition(gains, -kept)[-kept] if kept < len(gains) else 0.0
    some: list[Grams] = []
    for grams in reversed(found):
        wanted = grams.gain >= least
        if some:
            wanted |= np.isin(grams.keys, some[-1].beginnings)
        some.append(grams.only(wanted))
    return some[::-1]


def hashed(found: list[Grams], slot_bits: int) -> Symbols:
    """The entries of `ngrams.Table`. Where several fall into a slot the shortest has it, of these the most telling."""
    entries = np.full(1 << slot_bits, FREE, np.uint32)
    telling_bits = np.uint32(32 - slot_bits)
    for grams, longer in zip(found, [*found[1:], None]):
        backoff = np.zeros(len(grams.keys)) if longer is None else _backoff(grams, longer)
        most_cost, most_backoff = (1 << COST_BITS) - 1, (1 << BACKOFF_BITS) - 1
        cost = np.clip(np.round(-np.log(grams.probability) * COST_STEPS), 1, most_cost).astype(np.uint32)
        adds = np.clip(np.round((backoff - LOWEST_BACKOFF) * BACKOFF_STEPS), 0, most_backoff).astype(np.uint32)
        telling = grams.keys & np.uint32((1 << int(telling_bits)) - 1)
        made = (telling << np.uint32(COST_BITS + BACKOFF_BITS)) | (cost << np.uint32(BACKOFF_BITS)) | adds
        by_gain = np.argsort(-grams.gain, kind="stable")
        slots, first = np.unique((grams.keys >> telling_bits)[by_gain], return_index=True)
        free = entries[slots] == FREE
        entries[slots[free]] = made[by_gain][first[free]]
    return entries


def _backoff(grams: Grams, longer: Grams) -> Array:
    """Nats that each of `grams` adds for what follows it and is not kept: what is left over, of what there would be."""
    beginnings, which = np.unique(longer.beginnings, return_inverse=True)
    left = 1 - np.bincount(which, weights=longer.probability, minlength=len(beginnings))
    would_be = 1 - np.bincount(which, weights=longer.shorter, minlength=len(beginnings))
    nats = -np.log(np.clip(left, 0.002, 1) / np.clip(would_be, 0.002, 1))
    at = np.minimum(np.searchsorted(beginnings, grams.keys), max(0, len(beginnings) - 1))
    if not len(beginnings):
        return np.zeros(len(grams.keys))
    return np.where(beginnings[at] == grams.keys, nats[at], 0.0)
