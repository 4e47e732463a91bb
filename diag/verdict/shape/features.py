"""Numbers of a stretch of text, by which prose, code and data of people differ from salad. Pure; see `salad`.

A window is `WINDOW` pieces (`chunks`). Most features are shares of its pieces that are no line breaks; some are the
worst of its parts, since a text that goes wrong begins well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diag.verdict.shape import flow, junctions, pairs
from diag.verdict.shape.chunks import Chunk, Word
from diag.verdict.shape.words import SPACED, begins, known, languages, of_script, ranks

WINDOW, STRIDE = 40, 20

LONGEST_GAP = 2
"""Characters before a piece that are looked at; what was left out of a loop may be before them."""

LONGEST_LOOP = 12
"""Pieces of a loop that is looked for."""

LEAST_FRAGMENT = 4
"""Letters of a piece of a word, below which it could be anything."""

PARTS = (6, 12)
"""Pieces of the parts of a window that are looked at for themselves: some words, a sentence or a line."""

KINDS = (
    *("word", "joined", "odd-joined", "digit-joined", "number", "odd-number", "mark", "odd-mark", "symbol", "opaque"),
    *("dense", "dense-joined", "mixed-script", "line", "lines"),
)
COLUMNS = (
    *KINDS,
    *("frequent", "known", "unknown", "unknown-again", "unknown-name", "no-language", "odd-case", "known-odd-case"),
    *("code", "replaced", "lone-mark-line", "cut-line", "fragment", "glued"),
    *("symbols", "cost", "rare", "very-rare", "flow", "pair", "pair-cost", "shunned"),
)
"""What is counted of each piece. symbols, cost, rare, very-rare: its neighbourhoods, as in `junctions`; flow: nats, as
in `flow`. Whether pieces come again is not counted: refrains, lists and small models repeat, and loops have a rule of
their own (`runs`). fragment: the beginning of a word alone; glued: two words without a blank; pair, pair-cost,
shunned: with the word before it, as in `pairs`."""

ODD = ("odd-joined", "digit-joined", "odd-number", "odd-mark", "mixed-script", "dense-joined", "replaced", "odd-case")
STRANGE = ("unknown", "unknown-again", "no-language", "odd-case")
WORST = ("rare", "flow", "odd", "strange", "lines", "pair-cost", "shunned", "broken")

NAMES = (
    *COLUMNS,
    *("log-pieces", "scripts", "kinds", "word-length", "spoken"),
    *("cost-per-symbol", "rare-per-symbol", "cost-per-pair", "english"),
    *(f"worst-{name}-{part}" for part in PARTS for name in WORST),
    "flow-beside-the-worst",
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
class Tables:
    """What stands next to what: characters, kinds of words, and words, these by language."""

    characters: junctions.Costs
    words: junctions.Costs
    pairs: Mapping[str, pairs.Pairs]


@dataclass(frozen=True)
class Spoken:
    """The word lists that a script's words are looked up in; empty ones where no language was recognised. ranks: of
    the frequent words of all its languages."""

    languages: tuple[str, ...]
    ranks: Mapping[str, str]
    known: tuple[frozenset[str], ...]

    def says(self, word: Word) -> str:
        """The column of a word of its own: frequent, known, unknown ..."""
        if not self.languages:
            return "odd-case" if word.case == "mixed" else "no-language"
        heard = word.plain in self.ranks
        if heard and word.case != "mixed":
            return "frequent"
        known = heard or self._knows(word.plain)
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
        return (first in self.ranks and self._usual(second)) or (second in self.ranks and self._usual(first))

    def _usual(self, plain: str) -> bool:
        return plain in self.ranks or (len(plain) > 3 and any(plain in known(code) for code in self.languages))

    def _knows(self, plain: str) -> bool:
        for words in self.known:  # noqa: SIM110 (called for every word; a generator takes twice as long)
            if plain in words:
                return True
        return False


def spoken(pieces: Sequence[Chunk], language: str = "", without: frozenset[str] = frozenset()) -> dict[str, Spoken]:
    """By script, from the words of the whole text. language: the code of one that the text is said to be in; without:
    codes of languages that are taken to have no word list."""
    words = defaultdict(list)
    for piece in pieces:
        if piece.build.kind in ("word", "joined"):
            for word in piece.build.words:
                words[word.script].append(word.plain)
    return {script: _lists(script, found, language, without) for script, found in words.items() if script in SPACED}


def _lists(script: str, words: list[str], language: str, without: frozenset[str]) -> Spoken:
    codes = tuple(code for code in languages(words, script) if code not in without)
    if language in of_script(script) and language not in codes:
        codes = (*codes, language)
    borrowed = ("en",) if script == "LATIN" and codes and "en" not in codes else ()
    return Spoken(codes, ranks(codes), tuple(known(c) for c in (*codes, *borrowed)))


def windows(text: str, every: Sequence[Chunk], lists: dict[str, Spoken], tables: Tables) -> list[Window]:
    """Overlapping windows over the whole text, a loop of it twice; one for a text shorter than a window, none for an
    empty one."""
    pieces = without_loops(text, every)
    if not pieces:
        return []
    counted = _counted(text, pieces, lists, tables)
    final = max(len(pieces) - WINDOW, 0)
    first = np.array([*range(0, final, STRIDE), final])
    last = np.minimum(first + WINDOW, len(pieces))
    english = any("en" in each.languages for each in lists.values())
    values = _described(counted, pieces, first, last, any(each.languages for each in lists.values()), english)
    spans = [(pieces[a].start, pieces[b - 1].end) for a, b in zip(first.tolist(), last.tolist())]
    return [Window(start, end, tuple(row)) for (start, end), row in zip(spans, values.tolist())]


def without_loops(text: str, pieces: Sequence[Chunk]) -> list[Chunk]:
    """Of pieces that come again and again in the same order, the first two rounds: loops have a rule of their own, and
    what is odd once is not odder for being said forty times."""
    if len(pieces) < 3:
        return list(pieces)
    number: dict[str, int] = {}
    ids = np.array([number.setdefault(text[piece.start : piece.end], len(number)) for piece in pieces])
    kept = np.ones(len(ids), dtype=bool)
    for period in range(1, min(LONGEST_LOOP, len(ids) // 3) + 1):
        same = ids[period:] == ids[:-period]
        if np.count_nonzero(same) < 2 * period:
            continue
        edges = np.flatnonzero(np.diff(np.concatenate(([0], same.view(np.int8), [0]))))
        for start, end in zip(edges[::2].tolist(), edges[1::2].tolist()):
            if end - start >= 2 * period:
                kept[start + 2 * period : end + period] = False
    return [piece for piece, keep in zip(pieces, kept.tolist()) if keep]


def _described(
    counted: Matrix,
    pieces: Sequence[Chunk],
    first: npt.NDArray[np.int64],
    last: npt.NDArray[np.int64],
    spoken: bool,
    english: bool,
) -> Matrix:
    """[windows, len(NAMES)]"""
    sums = _running(counted)
    counts = sums[last] - sums[first]
    solid = np.maximum(1.0, last - first - counts[:, _AT["line"]] - counts[:, _AT["lines"]])
    lengths = _running(np.array([(p.build.letters, len(p.build.words)) for p in pieces]))
    letters, words = (lengths[last] - lengths[first]).T
    symbols = np.maximum(1.0, counts[:, _AT["symbols"]])
    columns = [
        np.log(last - first),
        _distinct_scripts(pieces, first, last),
        (counts[:, : len(KINDS)] > 0).sum(axis=1) / np.sqrt(last - first),
        letters / np.maximum(1.0, words),
        np.full(len(first), float(spoken)),
        counts[:, _AT["cost"]] / symbols,
        counts[:, _AT["rare"]] / symbols,
        counts[:, _AT["pair-cost"]] / np.maximum(1.0, counts[:, _AT["pair"]]),
        np.full(len(first), float(english)),
    ]
    looked_at = np.stack(
        [
            counted[:, _AT["rare"]],
            counted[:, _AT["flow"]],
            counted[:, [_AT[name] for name in ODD]].sum(axis=1),
            counted[:, [_AT[name] for name in STRANGE]].sum(axis=1),
            counted[:, [_AT["line"], _AT["lines"]]].sum(axis=1),
            counted[:, _AT["pair-cost"]],
            counted[:, _AT["shunned"]],
            counted[:, [_AT["fragment"], _AT["glued"], _AT["odd-joined"], _AT["odd-case"]]].sum(axis=1),
        ],
        axis=1,
    )
    for part in PARTS:
        worst = _worst(looked_at, part, first, last)
        columns += list(worst.T)
    rest = np.maximum(1.0, last - first - PARTS[-1])
    flows = counts[:, _AT["flow"]]
    columns.append((flows - worst[:, 1] * np.minimum(PARTS[-1], last - first)) / rest)
    return np.column_stack([counts / solid[:, None], *columns])


def _running(values: Matrix) -> Matrix:
    return np.vstack([np.zeros(values.shape[1]), np.cumsum(values, axis=0)])


def _distinct_scripts(pieces: Sequence[Chunk], first: npt.NDArray[np.int64], last: npt.NDArray[np.int64]) -> Matrix:
    everything = sorted({script for p in pieces for script in p.build.scripts})
    if len(everything) < 2:
        return np.full(len(first), float(len(everything)))
    there = _running(np.array([[script in p.build.scripts for script in everything] for p in pieces], dtype=float))
    distinct: Matrix = ((there[last] - there[first]) > 0).sum(axis=1).astype(float)
    return distinct


def _worst(values: Matrix, part: int, first: npt.NDArray[np.int64], last: npt.NDArray[np.int64]) -> Matrix:
    """[windows, columns]: the highest mean of any `part` pieces in a row of each window."""
    length = min(part, len(values))
    sums = _running(values)
    means = (sums[length:] - sums[:-length]) / length
    ends = np.maximum(last - length + 1, first + 1)
    return np.stack([means[a:b].max(axis=0) for a, b in zip(first.tolist(), ends.tolist())])


def _counted(text: str, pieces: Sequence[Chunk], lists: dict[str, Spoken], tables: Tables) -> Matrix:
    """[pieces, len(COLUMNS)]: 1 where a piece counts for a column."""
    rows: list[int] = []
    columns: list[int] = []
    said: list[str] = []
    unknown: set[str] = set()
    for row, piece in enumerate(pieces):
        build = piece.build
        names: list[str] = [build.kind]
        symbol: str = build.kind
        if build.kind == "word":
            word = build.words[0]
            column = _said(word, lists, unknown)
            names.append(column)
            symbol = lists[word.script].ranks[word.plain] if column == "frequent" else column
            if column in ("unknown", "unknown-again") and word.case == "lower":
                names += lists[word.script].broken(word.plain)
        if build.code:
            names.append("code")
        if build.replaced:
            names.append("replaced")
        names += _line(text, pieces, row)
        said.append(symbol)
        rows += [row] * len(names)
        columns += [_AT[name] for name in names]
    counted = np.zeros((len(pieces), len(COLUMNS)))
    counted[rows, columns] = 1.0
    counted[:, _AT["symbols"] : _AT["symbols"] + 4] = _neighbourhoods(text, pieces, tables.characters)
    counted[:, _AT["pair"] : _AT["pair"] + 3] = _together(text, pieces, lists, tables.pairs)
    counted[:, _AT["flow"]] = flow.nats(list(flow.symbols(pieces, said, text)), tables.words)
    return counted


def _together(
    text: str, pieces: Sequence[Chunk], lists: dict[str, Spoken], tables: Mapping[str, pairs.Pairs]
) -> list[tuple[float, float, float]]:
    """(whether it is known, its cost, whether it is shunned) of each word and the one before it, where nothing but a
    blank is between them."""
    nothing = 0.0, 0.0, 0.0
    found = []
    before, end = "", 0
    for piece in pieces:
        build = piece.build
        word = build.words[0] if build.kind == "word" else None
        told = nothing
        if word is not None and before and piece.start - end == 1 and text[piece.start].isalpha():
            cost = (
                pairs.cost(lists[word.script].languages, before, word.plain, tables) if word.script in lists else None
            )
            if cost is not None:
                told = 1.0, cost, float(cost > pairs.SHUNNED)
        found.append(told)
        before = word.plain if word is not None and text[piece.end - 1].isalpha() else ""
        end = piece.end
    return found


def flow_symbols(text: str, pieces: Sequence[Chunk], lists: dict[str, Spoken]) -> list[str]:
    """The sequence that the table of `flow` is counted from."""
    unknown: set[str] = set()
    said = []
    for piece in pieces:
        symbol: str = piece.build.kind
        if symbol == "word":
            word = piece.build.words[0]
            column = _said(word, lists, unknown)
            symbol = lists[word.script].ranks[word.plain] if column == "frequent" else column
        said.append(symbol)
    return [symbol for some in flow.symbols(pieces, said, text) for symbol in some]


def _neighbourhoods(text: str, pieces: Sequence[Chunk], table: junctions.Costs) -> list[tuple[int, float, int, int]]:
    """(symbols, their cost, how many are rare, very rare) of each piece and the gap before it."""
    found: list[tuple[int, float, int, int]] = []
    after, end = (junctions.START, junctions.START), 0
    for piece in pieces:
        build = piece.build
        sequence = build.symbols
        if piece.start > end and build.kind not in ("line", "lines"):
            sequence = (junctions.of_gap(text[max(end, piece.start - LONGEST_GAP) : piece.start]), *sequence)
        elif piece.start == end and found and build.kind in ("dense", "dense-joined"):
            sequence = ()  # a later part of the piece before it
        walk = table.walk(after, sequence)
        found.append((len(sequence), walk.nats, walk.rare, walk.very_rare))
        after, end = walk.end, piece.end
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
