"""What kind of word follows what: of every piece how frequent its word is in its language, or what it is instead, and
the marks around it, as a sequence of few symbols.

People put the most frequent words of a language between rarer ones, commas after words, names where names go. This is
so in every language, so one table of triples serves all of them. A token that a broken server puts in follows nothing
it follows with people. The costs are those of `junctions`, of another alphabet; the table is in flow.json.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from diag.verdict.shape import junctions
from diag.verdict.shape.chunks import Chunk

MARKS = frozenset(".,;:!?)(\"'-*#`|=>")


def symbols(pieces: Sequence[Chunk], said: Sequence[str], text: str) -> Iterator[tuple[str, ...]]:
    """Of each piece. said: what each piece's word is (`features`), or its kind."""
    before = ""
    for piece, name in zip(pieces, said):
        kind = piece.build.kind
        if kind in ("line", "lines"):
            before = ""
            yield ("n",) if kind == "line" else ("N",)
        elif kind in ("mark", "odd-mark"):
            yield (text[piece.start] if text[piece.start] in MARKS else kind,)
        else:
            first, last = text[piece.start], text[piece.end - 1]
            word = piece.build.words[0].plain if kind == "word" else ""
            if word and word == before:
                name = "again"
            before = word
            opening = (first,) if first in MARKS and piece.end - piece.start > 1 else ()
            yield (*opening, name, last) if last in MARKS else (*opening, name)


@lru_cache(maxsize=1)
def costs() -> junctions.Costs:
    return junctions.read("flow.json")


def nats(sequences: Sequence[tuple[str, ...]], table: junctions.Costs) -> list[float]:
    """Cost of each piece's symbols after those before it."""
    found = []
    after = junctions.START, junctions.START
    for sequence in sequences:
        walk = table.walk(after, sequence)
        found.append(walk.nats)
        after = walk.end
    return found
