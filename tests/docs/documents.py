"""What the pages of documentation hold: code lines, commands, links, names of files and flags."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md")))


@dataclass(frozen=True)
class Line:
    """One line of code, or one span of code within a text."""

    page: Path
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.number}: {self.text}"


def code_lines(page: Path) -> Iterator[Line]:
    """Lines inside ``` fences, and lines indented by four spaces."""
    fenced = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        elif fenced or (line.startswith("    ") and not fenced):
            yield Line(page, number, line.strip())


def spans(page: Path) -> Iterator[Line]:
    """`code` within the text, outside of fences."""
    fenced = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            for text in re.findall(r"`([^`]+)`", line):
                yield Line(page, number, text)


def commands(page: Path) -> Iterator[tuple[Line, list[str]]]:
    """(where, words after `diag`) of every command line of ours, in blocks and in the text."""
    for line in (*code_lines(page), *spans(page)):
        found = re.match(r"(?:\$ )?diag (.*)", line.text)
        if found is not None:
            # Brackets and dots of a synopsis are not typed; what follows a redirection is not ours.
            typed = re.split(r" > | \| ", found[1].replace("[", "").replace("]", "").replace("...", ""))[0]
            yield line, shlex.split(typed, comments=True)


def links(page: Path) -> Iterator[tuple[Line, str]]:
    for number, line in enumerate(page.read_text().splitlines(), 1):
        for target in re.findall(r"\]\(([^)]+)\)", line):
            yield Line(page, number, line), target


def flags(page: Path) -> Iterator[tuple[Line, str]]:
    """Every --flag in code."""
    for line in (*code_lines(page), *spans(page)):
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", line.text):
            yield line, flag


def files(page: Path) -> Iterator[tuple[Line, str]]:
    """Every name in code that looks like a file or folder of the project."""
    for line in (*code_lines(page), *spans(page)):
        for name in re.findall(r"(?<![\w/.-])(?:diag|probes|kernels|playbooks|tests|docs)/[\w./-]*[\w/]", line.text):
            yield line, name
