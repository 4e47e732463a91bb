"""Numbered excerpts of a source around the lines that matter, as values: whoever shows them decides how."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from diag.source.detect import Site
from diag.source.syntax import split_lines


@dataclass(frozen=True)
class ListedLine:
    """One line of an excerpt. number: from 1; text: without its end; site: the site on this line, if one is."""

    number: int
    text: str
    site: Site | None


@dataclass(frozen=True)
class Excerpt:
    """Consecutive lines of one method. symbol: of its first site."""

    symbol: str
    lines: tuple[ListedLine, ...]


def excerpts(text: str, sites: Iterable[Site], *, context: int = 2) -> tuple[Excerpt, ...]:
    """The lines of `sites` with `context` lines around; excerpts that touch are one, unless the method differs."""
    lines = split_lines(text)
    marked = {site.line: site for site in sorted(sites, key=lambda site: site.line, reverse=True)}
    found: list[tuple[str, int, int]] = []
    for number in sorted(marked):
        symbol = marked[number].symbol
        first, last = max(1, number - context), min(len(lines), number + context)
        if found and found[-1][0] == symbol and first <= found[-1][2] + 1:
            found[-1] = (symbol, found[-1][1], last)
        else:
            found.append((symbol, first, last))
    return tuple(
        Excerpt(symbol, tuple(ListedLine(n, lines[n - 1], marked.get(n)) for n in range(first, last + 1)))
        for symbol, first, last in found
    )


def numbered(excerpt: Excerpt) -> list[str]:
    """Plain text, as `grep -n` and an editor show it: a mark, the number, the line."""
    width = len(str(excerpt.lines[-1].number))
    return [f"{'>' if line.site is not None else ' '} {line.number:>{width}} | {line.text}" for line in excerpt.lines]
