"""The lines of one module, class or function as they stand in an installation, and how they differ from a release."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diag.errors import FileNotAsExpected, PackageNotInstalled, UsageError
from diag.source import symbols, targets, wheels
from diag.source.syntax import Unreadable, split_lines
from diag.source.targets import Installation, SourceFile, Target

if TYPE_CHECKING:
    from diag.hosts.transport import Transport

RECORD = "RECORD"

_PLACE = re.compile(r"(?P<target>.+?):(?P<module>[A-Za-z_][\w./-]*?)(?::(?P<symbol>[A-Za-z_][\w.]*))?\Z")


@dataclass(frozen=True)
class Place:
    """TARGET:MODULE[:SYMBOL]. paths: where the module can be, relative to site-packages; the package is the first
    part of it."""

    target: str
    paths: tuple[str, ...]
    symbol: str | None

    @property
    def package(self) -> str:
        return self.paths[0].split("/")[0].removesuffix(".py")


@dataclass(frozen=True)
class Line:
    """number: from 1; matches: it is what was searched for."""

    number: int
    text: str
    matches: bool


@dataclass(frozen=True)
class Against:
    """The same lines of a release. diff: unified, with the numbers of both files; "" where they are the same."""

    what: str
    diff: str


@dataclass(frozen=True)
class View:
    """blocks: consecutive lines each."""

    installation: Installation
    file: SourceFile
    symbol: str | None
    blocks: tuple[tuple[Line, ...], ...]
    against: Against | None


def place(typed: str) -> Place:
    """Raises UsageError. The module may be written with dots or as a path."""
    found = _PLACE.match(typed)
    if found is None:
        raise UsageError(
            f"{typed!r} names no place in a source.",
            next="Write HOST:MODULE or HOST:MODULE:CLASS.METHOD, "
            "as in gpu1:sglang.srt.layers.attention.triton_backend:TritonAttnBackend.init_forward_metadata",
        )
    module = found["module"]
    if module.endswith(".py") or "/" in module:
        paths: tuple[str, ...] = (module if module.endswith(".py") else f"{module}.py",)
    else:
        inside = module.replace(".", "/")
        paths = (f"{inside}.py", f"{inside}/__init__.py")
    return Place(found["target"], paths, found["symbol"])


def look(
    where: Place,
    target: Target,
    *,
    transport: Transport | None = None,
    python: str | None = None,
    context: int = 0,
    grep: str | None = None,
    against: str | None = None,
    say: targets.Say = lambda line: None,
) -> View:
    """Read the place. grep: a regular expression; with it, only lines that match, and `context` around each; without
    it the whole symbol, or file, and `context` around. against: RECORD (the release that is installed) or a version.

    Raises FileNotAsExpected for a module or symbol that is not there, with the nearest names, and what `targets.read`
    raises.
    """
    pattern = _compiled(grep)
    installation = targets.read(target, where.paths, transport=transport, python=python, say=say)
    file = next((file for file in installation.files if file.content is not None), None)
    if file is None:
        raise _no_module(installation, where)
    lines = split_lines(file.text)
    if lines and lines[-1] == "":
        lines.pop()
    spans = _spans(file, where, len(lines))
    blocks = _blocks(lines, spans, context, pattern)
    compared = _against(installation, file, where, spans, against, say) if against is not None else None
    return View(installation, file, where.symbol, blocks, compared)


def _compiled(grep: str | None) -> re.Pattern[str] | None:
    try:
        return None if grep is None else re.compile(grep)
    except re.error as error:
        raise UsageError(
            f"--grep {grep!r} is no regular expression: {error}.", next="Escape what is meant as it is."
        ) from None


def _spans(file: SourceFile, where: Place, count: int) -> list[tuple[int, int]]:
    if where.symbol is None:
        return [(1, count)]
    try:
        found = symbols.find(file.text, where.symbol)
        alike = [] if found else symbols.near(file.text, where.symbol)
    except Unreadable as error:
        raise FileNotAsExpected(
            f"{file.path} is {error}.", next="Leave the symbol out to see its lines, or use --grep."
        ) from None
    if not found:
        raise FileNotAsExpected(
            f"{file.path} has no {where.symbol}.",
            details=[f"did you mean: {', '.join(alike)}"] if alike else [],
            next="Leave the symbol out to see the whole file, or use --grep.",
        )
    return [(symbol.first, symbol.last) for symbol in found]


def _no_module(installation: Installation, where: Place) -> FileNotAsExpected:
    strange = [file for file in installation.files if file.why]
    if strange:
        return FileNotAsExpected(f"{strange[0].path} could not be read: {strange[0].why}.", next="Look at the host.")
    alike = next((list(near) for path in where.paths if (near := installation.near.get(path))), [])
    return FileNotAsExpected(
        f"{installation.package} {installation.version or '(version unknown)'} has no {where.paths[0]}.",
        details=[f"in {installation.where}", *([f"did you mean: {', '.join(alike)}"] if alike else [])],
        next="Name the module as it is imported, or as a path inside site-packages.",
    )


def _blocks(
    lines: Sequence[str], spans: Sequence[tuple[int, int]], context: int, pattern: re.Pattern[str] | None
) -> tuple[tuple[Line, ...], ...]:
    chosen: dict[int, bool] = {}
    for first, last in spans:
        hits = [n for n in range(first, last + 1) if pattern is not None and pattern.search(lines[n - 1])]
        centres = [(first, last)] if pattern is None else [(hit, hit) for hit in hits]
        for low, high in centres:
            for number in range(max(1, low - context), min(len(lines), high + context) + 1):
                chosen[number] = chosen.get(number, False) or number in hits
    blocks: list[list[Line]] = []
    for number in sorted(chosen):
        line = Line(number, lines[number - 1], chosen[number])
        if blocks and blocks[-1][-1].number == number - 1:
            blocks[-1].append(line)
        else:
            blocks.append([line])
    return tuple(tuple(block) for block in blocks)


def _against(
    installation: Installation,
    file: SourceFile,
    where: Place,
    spans: Sequence[tuple[int, int]],
    against: str,
    say: targets.Say,
) -> Against:
    version = installation.version if against == RECORD else against
    if against == RECORD and file.integrity == "pristine":
        return Against(f"RECORD of {installation.package} {version}", "")
    if version is None:
        raise PackageNotInstalled(
            f"It is not known which release of {installation.package} this is.", next="Name one: --against VERSION"
        )
    if wheels.cached(installation.package, version) is None:
        say(f"fetching {installation.package}=={version}")
    released = wheels.read(wheels.fetch(installation.package, version), file.path).decode("utf-8", "surrogateescape")
    there = _released_spans(released, where)
    whole = there is None
    old, old_first = _cut(released, None if whole else there)
    new, new_first = _cut(file.text, None if whole else spans)
    names = (f"{installation.package}=={version}/{file.path}", f"{where.target}/{file.path}")
    rows = list(difflib.unified_diff(old, new, *names, lineterm=""))
    return Against(f"{installation.package} {version}", "\n".join(_renumbered(rows, old_first, new_first)))


def _released_spans(released: str, where: Place) -> list[tuple[int, int]] | None:
    """Where the symbol is in the release; None for the whole file, also when the release has no such symbol."""
    if where.symbol is None:
        return None
    try:
        return [(symbol.first, symbol.last) for symbol in symbols.find(released, where.symbol)] or None
    except Unreadable:
        return None


def _cut(text: str, spans: Sequence[tuple[int, int]] | None) -> tuple[list[str], int]:
    """The lines of the first span to the last, and how many lines are before them."""
    lines = split_lines(text)
    if spans is None:
        return lines, 0
    first, last = min(span[0] for span in spans), max(span[1] for span in spans)
    return lines[first - 1 : last], first - 1


def _renumbered(rows: list[str], old: int, new: int) -> list[str]:
    """Hunk headers that count the lines of the files instead of those of the parts that were compared."""

    def moved(match: re.Match[str]) -> str:
        return f"@@ -{int(match[1]) + old}{match[2] or ''} +{int(match[3]) + new}{match[4] or ''} @@"

    return [re.sub(r"^@@ -(\d+)(,\d+)? \+(\d+)(,\d+)? @@", moved, row) for row in rows]
