"""Numbers of a stretch of text, by which prose, code and data of people differ from salad. Pure; see `salad`.

A window is `WINDOW` pieces (`chunks`). Most features are shares of its pieces that are no line breaks; some are the
worst of its parts, since a text that goes wrong begins well. How its characters follow each other is told by the
tables of `letters`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
import numpy.typing as npt

from diag.verdict.shape.chunks import KINDS, Build, Chunks, Word
from diag.verdict.shape.letters import Letters, Stretch, highest
from diag.verdict.shape.words import (
    LONG,
    SPACED,
    begins,
    english,
    frequent,
    known,
    languages,
    of_script,
    speaks_english,
)

WINDOW, STRIDE = 40, 20

MOST_EMPTY = 10

LONGEST_LOOP = 12
"""Pieces of a loop that is looked for."""

LEAST_FRAGMENT = 4
"""Letters of a piece of a word, below which it could be anything."""

PARTS = (6, 12)
"""Pieces of the parts of a window that are looked at for themselves: some words, a sentence or a line."""

SPELT, BUILT = (16, 40, 100), (8, 20, 50)
"""Characters in a row that are looked at for themselves: as they are spelt, and as what they are."""

COLUMNS = (
    *KINDS,
    *("frequent", "known", "unknown", "unknown-again", "unknown-name", "no-language", "odd-case", "known-odd-case"),
    *("code", "replaced", "lone-mark-line", "cut-line", "fragment", "glued", "long", "long-english", "joined-unknown"),
    *("again", "overlong", "empty-lines"),
)
"""What is counted of each piece. Whether pieces come again is not counted: refrains, lists and small models repeat, and
loops have a rule of their own (`runs`). fragment: the beginning of a word alone; glued: two words without a blank;
joined-unknown: a word that is joined to others and that no list has; again: the piece before it once more; overlong:
letters of a word beyond those of `chunks`; empty-lines: of more than one, at most MOST_EMPTY."""

ODD = ("odd-joined", "digit-joined", "odd-number", "odd-mark", "mixed-script", "dense-joined", "replaced", "odd-case")
STRANGE = ("unknown", "unknown-again", "no-language", "odd-case")
BROKEN = ("fragment", "glued", "odd-joined", "odd-case", "joined-unknown")
LINES = ("line", "lines")
WORST = {"odd": ODD, "strange": STRANGE, "lines": (*LINES, "empty-lines"), "broken": BROKEN, "again": ("again",)}

NAMES = (
    *COLUMNS,
    *("log-pieces", "scripts", "kinds", "word-length", "spoken", "english", "english-share", "distinct"),
    *("spelt", "spelt-rare", "inside-words", *(f"worst-spelt-{length}" for length in SPELT)),
    *("built", "built-rare", *(f"worst-built-{length}" for length in BUILT)),
    *(f"worst-{name}-{part}" for part in PARTS for name in WORST),
)
_AT = {name: at for at, name in enumerate(COLUMNS)}
_WORST = np.array([[float(name in names) for names in WORST.values()] for name in COLUMNS])
"""[COLUMNS, WORST]: which are added up."""

Matrix = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]


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
    """The word lists that a script's words are looked up in; empty ones where no language was recognised. frequent: of
    all its languages."""

    languages: tuple[str, ...]
    frequent: frozenset[str]
    known: tuple[frozenset[str], ...]

    def says(self, word: Word) -> str:
        """The column of a word of its own: frequent, known, unknown ..."""
        if not self.languages:
            return "odd-case" if word.case == "mixed" else "no-language"
        heard = word.plain in self.frequent
        if heard and word.case != "mixed":
            return "frequent"
        known = heard or self.knows(word.plain)
        if word.case == "mixed":
            return "known-odd-case" if known else "odd-case"
        if known:
            return "known"
        return "unknown-name" if word.case == "title" else "unknown"

    def broken(self, plain: str) -> Iterator[str]:
        """Columns of a word that no list has: the beginning of one that they have, or two of them."""
        if len(plain) >= LEAST_FRAGMENT and any(begins(code, plain) for code in self.languages):
            yield "fragment"
        if any(self._two(plain[:at], plain[at:]) for at in range(3, len(plain) - 2)):
            yield "glued"

    def _two(self, first: str, second: str) -> bool:
        return (first in self.frequent and self._usual(second)) or (second in self.frequent and self._usual(first))

    def _usual(self, plain: str) -> bool:
        return plain in self.frequent or (len(plain) > 3 and any(plain in known(code) for code in self.languages))

    def knows(self, plain: str) -> bool:
        for words in self.known:  # noqa: SIM110 (called for every word; a generator takes twice as long)
            if plain in words:
                return True
        return False


def spoken(pieces: Chunks, language: str = "", without: frozenset[str] = frozenset()) -> dict[str, Spoken]:
    """By script, from the words of the whole text. language: the code of one that the text is said to be in; without:
    codes of languages that are taken to have no word list."""
    words = defaultdict(list)
    for build in pieces.builds:
        if build.kind in ("word", "joined"):
            for word in build.words:
                words[word.script].append(word.plain)
    return {script: _lists(script, found, language, without) for script, found in words.items() if script in SPACED}


def _lists(script: str, words: list[str], language: str, without: frozenset[str]) -> Spoken:
    codes = tuple(code for code in languages(words, script) if code not in without)
    if language in of_script(script) and language not in codes:
        codes = (*codes, language)
    if script == "LATIN" and "en" not in codes and speaks_english(words):
        codes = (*codes, "en")
    borrowed = ("en",) if script == "LATIN" and codes and "en" not in codes else ()
    return Spoken(codes, frequent(codes), tuple(known(c) for c in (*codes, *borrowed)))


def windows(text: str, every: Chunks, lists: dict[str, Spoken], letters: Letters) -> list[Window]:
    """Overlapping windows over the whole text, a loop of it twice; one for a text shorter than a window, none for an
    empty one."""
    pieces = without_loops(text, every)
    if not len(pieces):
        return []
    counted = _counted(text, pieces, lists)
    final = max(len(pieces) - WINDOW, 0)
    first = np.array([*range(0, final, STRIDE), final])
    last = np.minimum(first + WINDOW, len(pieces))
    starts = np.array([pieces.starts[at] for at in first.tolist()])
    ends = np.array([pieces.ends[at - 1] for at in last.tolist()])
    values = np.hstack(
        [
            _described(text, counted, pieces, first, last, lists),
            _told(letters.spelt(text), starts, ends, SPELT),
            _told(letters.built(text), starts, ends, BUILT),
            _worst_parts(counted, first, last),
        ]
    )
    return [Window(*row) for row in zip(starts.tolist(), ends.tolist(), map(tuple, values.tolist()))]


def without_loops(text: str, pieces: Chunks) -> Chunks:
    """Of pieces that come again and again in the same order, the first two rounds: loops have a rule of their own, and
    what is odd once is not odder for being said forty times."""
    if len(pieces) < 3:
        return pieces
    number: dict[str, int] = {}
    ids = np.array([number.setdefault(piece, len(number)) for piece in pieces.of(text)])
    kept: npt.NDArray[np.bool_] | None = None
    for period in range(1, min(LONGEST_LOOP, len(ids) // 3) + 1):
        same = ids[period:] == ids[:-period]
        if np.count_nonzero(same) < 2 * period:
            continue
        edges = np.flatnonzero(np.diff(np.concatenate(([0], same.view(np.int8), [0]))))
        for start, end in zip(edges[::2].tolist(), edges[1::2].tolist()):
            if end - start >= 2 * period:
                kept = np.ones(len(ids), dtype=bool) if kept is None else kept
                kept[start + 2 * period : end + period] = False
    if kept is None:
        return pieces
    keep = kept.tolist()
    starts, ends = (list(compress(each, keep)) for each in (pieces.starts, pieces.ends))
    return Chunks(starts, ends, list(compress(pieces.builds, keep)))


def _described(
    text: str, counted: Matrix, pieces: Chunks, first: Places, last: Places, lists: dict[str, Spoken]
) -> Matrix:
    """[windows, columns]: COLUMNS first."""
    letters = [build.letters for build in pieces.builds]
    words = [len(build.words) for build in pieces.builds]
    sums = running(np.column_stack([counted, letters, words]))
    counts = sums[last] - sums[first]
    word_length = counts[:, -2] / np.maximum(1.0, counts[:, -1])
    counts = counts[:, : len(COLUMNS)]
    solid = np.maximum(1.0, last - first - counts[:, _AT["line"]] - counts[:, _AT["lines"]])
    names = pieces.of(text)
    columns = np.empty((len(first), 8))
    columns[:, 0] = np.log(last - first)
    columns[:, 1] = _distinct_scripts(pieces.builds, first, last)
    columns[:, 2] = (counts[:, : len(KINDS)] > 0).sum(axis=1) / np.sqrt(last - first)
    columns[:, 3] = word_length
    columns[:, 4] = any(each.languages for each in lists.values())
    columns[:, 5] = any("en" in each.languages for each in lists.values())
    columns[:, 6] = counts[:, _AT["long-english"]] / np.maximum(1.0, counts[:, _AT["long"]])
    columns[:, 7] = [len(set(names[a:b])) / (b - a) for a, b in zip(first.tolist(), last.tolist())]
    return np.hstack([counts / solid[:, None], columns])


def _told(stretch: Stretch, starts: Places, ends: Places, lengths: Sequence[int]) -> Matrix:
    first, last = stretch.between(starts, ends)
    return np.column_stack([stretch.means(first, last), *(stretch.worst(first, last, length) for length in lengths)])


def _worst_parts(counted: Matrix, first: Places, last: Places) -> Matrix:
    sums = running(counted @ _WORST)
    found = []
    for part in PARTS:
        length = min(part, len(counted))
        means = (sums[length:] - sums[:-length]) / length
        found.append(highest(means, first, np.maximum(last - length + 1, first + 1)))
    return np.hstack(found)


def running(values: Matrix) -> Matrix:
    """[n, ...] -> [n + 1, ...]: sums of those before each place."""
    return np.concatenate([np.zeros((1, *values.shape[1:])), np.cumsum(values, axis=0)])


def _distinct_scripts(builds: Sequence[Build], first: Places, last: Places) -> Matrix:
    kinds: dict[frozenset[str], int] = {}
    which = [kinds.setdefault(build.scripts, len(kinds)) for build in builds]
    everything = sorted(frozenset().union(*kinds))
    if len(everything) < 2:
        return np.full(len(first), float(len(everything)))
    rows = np.array([[float(script in scripts) for script in everything] for scripts in kinds])
    there = running(rows[which])
    distinct: Matrix = ((there[last] - there[first]) > 0).sum(axis=1).astype(float)
    return distinct


def _counted(text: str, pieces: Chunks, lists: dict[str, Spoken]) -> Matrix:
    """[pieces, len(COLUMNS)]: 1 where a piece counts for a column."""
    cells: list[int] = []
    unknown: set[str] = set()
    width, usual = len(COLUMNS), english()
    before = ""
    empty = [0] * len(pieces)
    start = -width
    for row, (piece, build) in enumerate(zip(pieces.of(text), pieces.builds)):
        start += width
        kind = build.kind
        cells.append(start + build.column)
        if piece == before:
            cells.append(start + _AT["again"])
        before = piece
        if kind == "word":
            word = build.words[0]
            said = _said(word, lists, unknown)
            cells.append(start + _AT[said])
            if said in ("unknown", "unknown-again") and word.case == "lower":
                cells += [start + _AT[name] for name in lists[word.script].broken(word.plain)]
            if build.letters >= LONG and word.script == "LATIN":
                cells.append(start + _AT["long"])
                if word.plain in usual:
                    cells.append(start + _AT["long-english"])
        elif kind == "joined":
            if any(_joined_unknown(word, lists) for word in build.words):
                cells.append(start + _AT["joined-unknown"])
        elif kind in LINES and row:
            if kind == "lines":
                empty[row] = min(MOST_EMPTY, piece.count("\n") - 2)
            cells += [start + _AT[name] for name in _line(text, pieces, row)]
        if build.code:
            cells.append(start + _AT["code"])
        if build.replaced:
            cells.append(start + _AT["replaced"])
    counted = np.zeros(len(pieces) * width)
    counted[cells] = 1.0
    table = counted.reshape(len(pieces), width)
    table[:, _AT["empty-lines"]] = empty
    table[:, _AT["overlong"]] = [build.overlong for build in pieces.builds]
    return table


def _said(word: Word, lists: dict[str, Spoken], unknown: set[str]) -> str:
    if word.script not in lists:
        return "no-language"
    column = lists[word.script].says(word)
    if column == "unknown":
        if word.plain in unknown:
            return "unknown-again"
        unknown.add(word.plain)
    return column


def _joined_unknown(word: Word, lists: dict[str, Spoken]) -> bool:
    if word.case != "lower" or len(word.plain) < 3 or word.script not in lists:
        return False
    spoken = lists[word.script]
    return not (word.plain in spoken.frequent or spoken.knows(word.plain))


def _line(text: str, pieces: Chunks, row: int) -> list[str]:
    """What a line break shows: a line of one mark alone before it, or one that ends in the middle of a sentence."""
    before = pieces.builds[row - 1]
    alone = row == 1 or pieces.builds[row - 2].kind in LINES
    if before.kind in ("mark", "odd-mark") and alone:
        return ["lone-mark-line"]
    return ["cut-line"] if before.kind in ("word", "joined") and text[pieces.ends[row - 1] - 1].islower() else []
