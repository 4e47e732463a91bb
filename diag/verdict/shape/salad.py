"""Salad: words, pieces of words, code and marks without an order. Pure; the trees and their limits are in salad.json.

A window of 40 pieces is described by some four dozen shares, counts and costs (`features`): how many words its language
knows, how many pieces are joined as nothing is joined, what kind of word follows what ... A small ensemble of decision
trees turns them into one score. It was trained on manuals, guides, verse, code and data in about 30 languages and a
healthy model's outputs, against random tokens, broken models and the lab's garbled outputs
(`benchmarks/verdict_train.py`). The limits are those that next to none of the clean texts passes. What stands out in a
window is said beside the score.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from diag.verdict.shape import flow, junctions, pairs
from diag.verdict.shape.chunks import chunks
from diag.verdict.shape.features import NAMES, Tables, Window, spoken, windows
from diag.verdict.shape.values import Evidence

LEAST_PIECES = 3
"""Pieces of a window below which nothing is said: too few to tell salad from a title or a name."""

LESS_SURE = 1.0
"""Added to the limit of garbled texts where Han, kana, Thai or Hangul are written: pieces of the former are cut by
their length and not by words, and the word list of Korean has parts of words."""

_TELLING = {
    "unknown": "unknown words",
    "no-language": "words of no language",
    "odd-case": "words with capitals inside",
    "odd-joined": "pieces joined by marks that join nothing",
    "digit-joined": "pieces of letters and digits",
    "odd-mark": "odd marks",
    "odd-number": "odd numbers",
    "number": "numbers",
    "mixed-script": "words of mixed scripts",
    "dense-joined": "scripts run into each other",
    "lines": "empty lines",
    "lone-mark-line": "lines of one mark",
    "scripts": "scripts",
    "unknown-again": "unknown words that come again",
}


@dataclass(frozen=True)
class Trees:
    """Nodes of all trees, one after the other, as arrays [nodes]: the feature that is asked for, the threshold, and
    where to go on; a leaf asks feature 0 and goes on to itself whatever the answer, `value` is what it says. roots:
    where each tree begins; depth: of the deepest. usual: by feature, the value that one clean window in a hundred
    exceeds."""

    base: float
    feature: npt.NDArray[np.int64]
    threshold: npt.NDArray[np.float64]
    value: npt.NDArray[np.float64]
    left: npt.NDArray[np.int64]
    right: npt.NDArray[np.int64]
    roots: npt.NDArray[np.int64]
    depth: int
    suspect_above: float
    garbled_above: float
    usual: tuple[float, ...]

    def scores(self, windows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """windows [W, features] -> [W]."""
        count, width = windows.shape
        flat, rows = windows.ravel(), np.repeat(np.arange(count) * width, len(self.roots))
        at = np.tile(self.roots, count)
        for _ in range(self.depth):
            goes_left = flat.take(rows + self.feature.take(at)) <= self.threshold.take(at)
            at = np.where(goes_left, self.left.take(at), self.right.take(at))
        found: npt.NDArray[np.float64] = self.base + self.value.take(at).reshape(count, -1).sum(axis=1)
        return found


@lru_cache(maxsize=1)
def model() -> Trees:
    raw: dict[str, Any] = json.loads(resources.files(__package__).joinpath("salad.json").read_text("utf-8"))
    if raw["names"] != list(NAMES):
        raise ValueError("salad.json was trained on other features: run benchmarks/verdict_train.py")
    with resources.files(__package__).joinpath("salad.npz").open("rb") as file:
        nodes = dict(np.load(file))
    limits = raw["suspect_above"], raw["garbled_above"]
    return _flat(nodes, raw["base"], raw["depth"], limits, tuple(raw["usual"]))


def _flat(
    nodes: dict[str, npt.NDArray[Any]], base: float, depth: int, limits: tuple[float, float], usual: tuple[float, ...]
) -> Trees:
    """nodes: arrays [trees, nodes]; feature -1: a leaf, whose value is what it says."""
    trees, size = nodes["feature"].shape
    roots = np.arange(trees) * size
    own = np.arange(trees * size)
    feature, value = nodes["feature"].ravel(), nodes["value"].ravel().astype(np.float64)
    leaf = feature < 0
    left, right = (
        np.where(leaf, own, (nodes[side].astype(np.int64) + roots[:, None]).ravel()) for side in ("left", "right")
    )
    asked = np.where(leaf, 0, feature).astype(np.int64)
    return Trees(base, asked, value, value, left, right, roots, depth, *limits, usual)


def trimmed(text: str) -> str:
    """Without what an output that was cut at max_tokens ends with: blanks, and part of a character."""
    return text.rstrip().rstrip("\ufffd")


def salad(text: str, offset: int = 0, language: str = "") -> Iterator[Evidence]:
    """The worst window, if it passes a limit. offset: where `text` begins in the whole; language: if it is known."""
    pieces = chunks(trimmed(text))
    if len(pieces) < LEAST_PIECES:
        return
    trees = model()
    lists = spoken(pieces, language)
    found = windows(text, pieces, lists, Tables(junctions.costs(), flow.costs(), pairs.tables()))
    scores = trees.scores(np.array([window.values for window in found]))
    worst, score = found[int(scores.argmax())], float(scores.max())
    if score <= trees.suspect_above:
        return
    unsure = "HANGUL" in lists or worst["dense"] + worst["dense-joined"] > 0.1
    garbled_above = trees.garbled_above + (LESS_SURE if unsure else 0.0)
    bad = int((scores > trees.suspect_above).sum())
    numbers = {"score": round(score, 2), "windows": bad, "of_windows": len(found)}
    yield Evidence(
        "salad",
        "garbled" if score > garbled_above else "suspect",
        (worst.start + offset, worst.end + offset),
        _why(worst, trees),
        {**numbers, "garbled_above": garbled_above, "suspect_above": trees.suspect_above},
    )


def _why(window: Window, trees: Trees) -> str:
    """What is further above what clean texts have than anything else."""
    over = []
    for name, words in _TELLING.items():
        value, usual = window[name], trees.usual[NAMES.index(name)]
        if value > usual:
            shown = f"{value:.0f} {words} (clean texts: up to {usual:.0f})"
            if name != "scripts":
                shown = f"{100 * value:.0f} % {words} (clean texts: up to {100 * usual:.0f} %)"
            over.append((value / (usual + 0.02), shown))
    told = [shown for _, shown in sorted(over, reverse=True)[:3]]
    return "; ".join(told) or "no single number stands out; taken together they are not those of clean texts"
