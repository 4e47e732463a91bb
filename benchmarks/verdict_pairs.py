"""Count which words stand next to each other, by language, for diag/verdict/shape/pairs.npz (`verdict_train` calls it).

From the tuning half of the corpus, whole files, and for English also from two dictionaries and a help system in
Debian's packages: a language's usual words, and of these the pairs that were seen often enough to say something.
"""

from __future__ import annotations

import gzip
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import regex

from benchmarks import verdict_corpus
from diag.verdict.shape.pairs import MOST_NATS, STEPS

ENGLISH = ("dict-gcide", "dict-jargon", "dict-foldoc", "libreoffice-help-en-us", "debian-reference-en")
LEAST = {"en": (30, 5)}
OTHERS = (12, 4)
"""How often a word, and a pair of them, was seen that is kept."""

LEAST_WORDS = 150
LEAST_NATS, LEAST_EXPECTED = 0.7, 1.0
"""A pair is kept that is so much more frequent than by chance, or that chance alone would have shown."""

_DENSE = frozenset({"ja", "zh", "zh_CN", "zh_TW", "ko"})
_LISTED_AS = {"pt_BR": "pt", "sr": "sh"}
_WORD = regex.compile(r"\p{L}[\p{L}\p{M}]*(?:['’][\p{L}\p{M}]+)*")
_BEFORE, _AFTER = "([{\"'“‘«*_`", ".,;:!?)]}\"'”’»…*_`"
_LONGEST = 25


class Counts:
    """Of one language."""

    def __init__(self) -> None:
        self.words: Counter[str] = Counter()
        self.pairs: Counter[tuple[str, str]] = Counter()

    def read(self, text: str) -> None:
        before: str | None = None
        for piece in text.split():
            core = piece.rstrip(_AFTER)
            bare = core.lstrip(_BEFORE)
            if len(bare) >= _LONGEST or _WORD.fullmatch(bare) is None:
                before = None
                continue
            word = bare.lower().replace("’", "'")
            self.words[word] += 1
            if before is not None and len(bare) == len(core):
                self.pairs[before, word] += 1
            before = word if len(core) == len(piece) else None


def write(cache: Path, target: Path, counted: Callable[[str], bool]) -> None:
    """counted: whether a file of the corpus, by its name, is to be."""
    found: defaultdict[str, Counts] = defaultdict(Counts)
    root = verdict_corpus.fetch(cache / "tune", verdict_corpus.TUNE)
    for language, kind, path in verdict_corpus._files(root):
        if kind != "code" and language not in _DENSE and counted(str(path.relative_to(root))):
            found[_LISTED_AS.get(language, language)].read(verdict_corpus._text(path, kind))
    for text in _english(verdict_corpus.fetch(cache / "english", ENGLISH)):
        found["en"].read(text)
    tables: dict[str, Any] = {}
    codes = [code for code in sorted(found) if _add(tables, code, found[code])]
    np.savez_compressed(target, codes=np.frombuffer(" ".join(codes).encode(), np.uint8), **tables)


def _english(root: Path) -> list[str]:
    books = [gzip.decompress(path.read_bytes()).decode("utf-8", "replace") for path in sorted(root.rglob("*.dz"))]
    pages = [path.read_text(encoding="utf-8", errors="replace") for path in sorted(root.rglob("*.html"))]
    said = [re.sub(r"\\[^\\\n]*\\|\[[^\]\n]*\]|[{}]", " ", book) for book in books]  # pronunciations and sources
    return said + [verdict_corpus._plain_html(page) for page in pages]


def _add(tables: dict[str, Any], code: str, counts: Counts) -> bool:
    least_word, least_pair = LEAST.get(code, OTHERS)
    words = [word for word, n in counts.words.most_common() if n >= least_word]
    if len(words) < LEAST_WORDS:
        return False
    number = {word: at for at, word in enumerate(words)}
    total = sum(counts.words.values())
    kept: list[tuple[int, int]] = []
    for (first, second), n in counts.pairs.items():
        if n >= least_pair and first in number and second in number:
            expected = counts.words[first] * counts.words[second] / total
            nats = math.log((n + 1) / (expected + 1))
            if nats >= LEAST_NATS or expected >= LEAST_EXPECTED:
                cost = round(-STEPS * max(-MOST_NATS, min(MOST_NATS, nats)))
                kept.append((number[first] * len(words) + number[second], cost))
    kept.sort()
    tables |= {
        f"{code}.words": np.frombuffer(" ".join(words).encode(), np.uint8),
        f"{code}.logs": np.round(np.log([counts.words[word] for word in words]) * 256).astype(np.uint16),
        f"{code}.total": np.array(float(total)),
        f"{code}.steps": np.diff([key for key, _ in kept], prepend=0).astype(np.uint32),
        f"{code}.costs": np.array([cost for _, cost in kept], np.int8),
    }
    return True
