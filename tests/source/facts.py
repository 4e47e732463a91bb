"""What is known of each release, from releases.tsv."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from diag.source.detect import Detection, Role

FILE = Path(__file__).with_name("releases.tsv")

COLUMNS: Mapping[str, Role] = {
    "attr": "definition",
    "qo_indptr": "qo_indptr",
    "seq_mask_len": "seq_mask_len",
    "max_extend_len": "max_extend_len",
}


@dataclass(frozen=True)
class Release:
    """lines: for each role, where statements begin and end, as far as they are known to be longer than two lines."""

    version: str
    shape: str
    state: str
    oracle: str
    lines: Mapping[Role, tuple[tuple[int, int], ...]]


def releases() -> dict[str, Release]:
    rows = [row.split("\t") for row in FILE.read_text(encoding="utf-8").splitlines() if not row.startswith("#")]
    head, body = rows[0], rows[1:]
    found = {}
    for row in body:
        cells = dict(zip(head, row, strict=True))
        lines = {role: tuple(_spans(cells[column])) for column, role in COLUMNS.items()}
        found[cells["version"]] = Release(cells["version"], cells["shape"], cells["state"], cells["oracle"], lines)
    return found


def _spans(cell: str) -> Iterable[tuple[int, int]]:
    for part in cell.split(",") if cell != "-" else []:
        first, _, last = part.partition("-")
        # Released statements have at most two lines with a width; a width on the second is found there, too.
        yield int(first), int(last) if last else int(first) + 1


def misplaced(release: Release, detection: Detection) -> list[str]:
    """Where the sites of a detection are not those that are known; empty when all are."""
    wrong = []
    for role, spans in release.lines.items():
        found = sorted(site.line for site in detection.sites if site.role == role)
        wrong += [f"{role}: line {line} is not known" for line in found if not any(a <= line <= b for a, b in spans)]
        wrong += [f"{role}: line {first} was not found" for first, _ in spans if first not in found]
    return wrong
