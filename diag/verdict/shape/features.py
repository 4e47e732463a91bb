"""Numbers of a stretch of text, by which prose, code and data of people differ from salad. Pure; see `salad`.

A window is `WINDOW` pieces (`chunks`). Most features are shares of its pieces that are no line breaks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diag.verdict.shape import junctions
from diag.verdict.shape.chunks import Chunk, Word
from diag.verdict.shape.words import SPACED, frequent, known, languages, of_script

WINDOW, STRIDE = 40, 20

PART = 12
"""Pieces of the part of a window that a sentence or a line is."""

RARE, VERY_RARE = 4.0, 6.0
"""Nats of a neighbourhood: one in 55, one in 400."""

COLUMNS = (
    *("word", "joined", "odd-joined", "digit-joined", "number", "odd-number", "mark", "odd-mark", "symbol", "opaque"),
    *("dense", "dense-joined", "mixed-script", "line", "lines"),
    *("frequent", "known", "unknown", "unknown-again", "unknown-name", "no-language", "odd-case", "known-odd-case"),
    *("code", "replaced", "lone-mark-line", "cut-line"),
    *("symbols", "cost", "rare", "very-rare"),
)
"""What is counted of each piece. Whether pieces come again is not: refrains, lists and small models repeat, and loops
have a rule of their own (`runs`). symbols, cost, rare, very-rare: its neighbourhoods, as in `junctions`."""

NAMES = (
    *COLUMNS,
    *("log-pieces", "scripts", "kinds", "word-length", "spoken"),
    *("cost-per-symbol", "rare-per-symbol", "worst-rare"),
)
_AT = {name: at for at, name in enumerate(COLUMNS)}

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Window:
    """Pieces [first, last) of the text, characters [start, end), and its features in the order of NAMES."""

    start: int
    end: int
    values: tuple[float, ...]

    def __getitem__(self, name: str) -> float:
        return self.values[NAMES.index(name)]


@dataclass(frozen=True)
class Spoken:
    """The word lists that a script's words are looked up in; empty ones where no language was recognised."""

    languages: tuple[str, ...]
    frequent: tuple[frozenset[str], ...]
    known: tuple[frozenset[str], ...]

    def says(self, word: Word) -> str:
        """The column of a word of its own: frequent, known, unknown ..."""
        if not self.languages:
            return "odd-case" if word.case == "mixed" else "no-language"
        heard = any(word.plain in words for words in self.frequent)
        if word.case == "mixed":
            return "known-odd-case" if heard or any(word.plain in words for words in self.known) else "odd-case"
        if heard:
            return "frequent"
        if any(word.plain in words for words in self.known):
            return "known"
        return "unknown-name" if word.case == "title" else "unknown"


def spoken(pieces: Sequence[Chunk], language: str = "") -> dict[str, Spoken]:
    """By script, from the words of the whole text. language: the code of one that the text is said to be in."""
    words = defaultdict(list)
    for piece in pieces:
        if piece.build.kind in ("word", "joined"):
            for word in piece.build.words:
                words[word.script].append(word.plain)
    return {script: _lists(script, found, language) for script, found in words.items() if script in SPACED}


def _lists(script: str, words: list[str], language: str) -> Spoken:
    codes = languages(words, script)
    if language in of_script(script) and language not in codes:
        codes = (*codes, language)
    borrowed = ("en",) if script == "LATIN" and codes and "en" not in codes else ()
    return Spoken(codes, tuple(frequent(c) for c in codes), tuple(known(c) for c in (*codes, *borrowed)))


def windows(text: str, pieces: Sequence[Chunk], lists: dict[str, Spoken], table: junctions.Costs) -> list[Window]:
    """Overlapping windows over the whole text; one for a text shorter than a window, none for an empty one."""
    if not pieces:
        return []
    sums = np.vstack([np.zeros(len(COLUMNS)), _counted(text, pieces, lists, table).cumsum(axis=0)])
    last = max(len(pieces) - WINDOW, 0)
    firsts = [*range(0, last, STRIDE), last]
    return [_window(pieces, sums, first, min(first + WINDOW, len(pieces)), lists) for first in firsts]


def _window(pieces: Sequence[Chunk], sums: Matrix, first: int, last: int, lists: dict[str, Spoken]) -> Window:
    counts, some = sums[last] - sums[first], pieces[first:last]
    solid = max(1.0, last - first - counts[_AT["line"]] - counts[_AT["lines"]])
    scripts = {script for p in some for script in p.build.scripts}
    lengths = [len(w.plain) for p in some for w in p.build.words]
    symbols = max(1.0, counts[_AT["symbols"]])
    more = (
        math.log(last - first),
        float(len(scripts)),
        len({p.build.kind for p in some}) / math.sqrt(len(some)),
        sum(lengths) / len(lengths) if lengths else 0.0,
        float(any(each.languages for each in lists.values())),
        counts[_AT["cost"]] / symbols,
        counts[_AT["rare"]] / symbols,
        _worst(sums[first : last + 1, _AT["rare"]]),
    )
    return Window(some[0].start, some[-1].end, (*(counts / solid), *more))


def _worst(sums: Matrix) -> float:
    """The most rare neighbourhoods of any PART pieces in a row; sums: running ones."""
    return float((sums[PART:] - sums[:-PART]).max()) if len(sums) > PART else float(sums[-1] - sums[0])


def _counted(text: str, pieces: Sequence[Chunk], lists: dict[str, Spoken], table: junctions.Costs) -> Matrix:
    """[pieces, len(COLUMNS)]: 1 where a piece counts for a column."""
    rows: list[int] = []
    columns: list[int] = []
    unknown: set[str] = set()
    for row, piece in enumerate(pieces):
        build = piece.build
        names: list[str] = [build.kind]
        if build.kind == "word":
            names.append(_said(build.words[0], lists, unknown))
        if build.code:
            names.append("code")
        if build.replaced:
            names.append("replaced")
        names += _line(text, pieces, row)
        rows += [row] * len(names)
        columns += [_AT[name] for name in names]
    counted = np.zeros((len(pieces), len(COLUMNS)))
    counted[rows, columns] = 1.0
    counted[:, -4:] = _neighbourhoods(text, pieces, table)
    return counted


def _neighbourhoods(text: str, pieces: Sequence[Chunk], table: junctions.Costs) -> list[tuple[int, float, int, int]]:
    """(symbols, their cost, how many cost more than RARE, than VERY_RARE) of each piece and the gap before it."""
    found: list[tuple[int, float, int, int]] = []
    a = b = junctions.START
    cost, end = table.cost, 0
    for piece in pieces:
        total, rare, very = 0.0, 0, 0
        sequence = piece.build.symbols
        if piece.start > end and sequence not in (("n",), ("N",)):
            sequence = (junctions.of_gap(text[end : piece.start]), *sequence)
        elif piece.start == end and piece.build.kind in ("dense", "dense-joined") and found:
            sequence = ()  # a later part of the piece before it
        for c in sequence:
            nats = cost(a, b, c)
            total += nats
            rare += nats > RARE
            very += nats > VERY_RARE
            a, b = b, c
        found.append((len(sequence), total, rare, very))
        end = piece.end
    return found


def _said(word: Word, lists: dict[str, Spoken], unknown: set[str]) -> str:
    if word.script not in lists:
        return "no-language"
    column = lists[word.script].says(word)
    if column == "unknown":
        if word.plain in unknown:
            return "unknown-again"
        unknown.add(word.plain)
    return column


def _line(text: str, pieces: Sequence[Chunk], row: int) -> list[str]:
    """What a line break shows: a line of one mark alone before it, or one that ends in the middle of a sentence."""
    if pieces[row].build.kind not in ("line", "lines") or row == 0:
        return []
    before = pieces[row - 1].build
    alone = row == 1 or pieces[row - 2].build.kind in ("line", "lines")
    if before.kind in ("mark", "odd-mark") and alone:
        return ["lone-mark-line"]
    return ["cut-line"] if before.kind in ("word", "joined") and text[pieces[row - 1].end - 1].islower() else []
