"""Salad: words, pieces of words, code and marks without an order. Pure; the trees and their limits are in salad.json.

A window of 40 pieces is described by some five dozen shares, counts and costs (`features`): how many words its language
knows, how many pieces are joined as nothing is joined, how rare its letters are after those before them ... A small
ensemble of decision trees turns them into one score. It was trained on manuals, guides, verse, code, data and what
programs say, in about a hundred languages, and a healthy model's outputs, against random tokens, token ids read by
another vocabulary, broken models and the lab's garbled outputs (`benchmarks/verdict_train.py`). The limits are those
that next to none of the clean texts passes. What stands out in a window is said beside the score.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from diag.verdict.shape import letters
from diag.verdict.shape.chunks import chunks
from diag.verdict.shape.features import NAMES, Window, spoken, windows
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
    "joined-unknown": "unknown words joined to others",
    "again": "pieces said twice",
    "spelt-rare": "letters where hardly any language has them",
}


@dataclass(frozen=True)
class Nodes:
    """Of all trees, one after the other, as arrays [nodes]: the feature that is asked for, the threshold (of a leaf
    what it says), and where to go on; a leaf asks feature 0 and goes on to itself whatever the answer. roots: where
    each tree begins."""

    feature: npt.NDArray[np.int64]
    value: npt.NDArray[np.float64]
    left: npt.NDArray[np.int64]
    right: npt.NDArray[np.int64]
    roots: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Trees:
    """depth: of the deepest. usual: by feature, the value that one clean window in a hundred exceeds. suspect_above,
    garbled_above: the limits of texts of at most `up_to` pieces, and of longer ones."""

    base: float
    nodes: Nodes
    depth: int
    up_to: tuple[int, ...]
    suspect_above: tuple[float, ...]
    garbled_above: tuple[float, ...]
    usual: tuple[float, ...]

    def limits(self, pieces: int) -> tuple[float, float]:
        """Above which a text of so many pieces is suspect, and garbled."""
        at = bisect_left(self.up_to, pieces)
        return self.suspect_above[at], self.garbled_above[at]

    def scores(self, windows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """windows [W, features] -> [W]."""
        count, width = windows.shape
        nodes = self.nodes
        flat, rows = windows.ravel(), np.repeat(np.arange(count) * width, len(nodes.roots))
        at = np.tile(nodes.roots, count)
        for _ in range(self.depth):
            goes_left = flat.take(rows + nodes.feature.take(at)) <= nodes.value.take(at)
            at = np.where(goes_left, nodes.left.take(at), nodes.right.take(at))
        found: npt.NDArray[np.float64] = self.base + nodes.value.take(at).reshape(count, -1).sum(axis=1)
        return found


@lru_cache(maxsize=1)
def model() -> Trees:
    raw: dict[str, Any] = json.loads(resources.files(__package__).joinpath("salad.json").read_text("utf-8"))
    if raw["names"] != list(NAMES):
        raise ValueError("salad.json was trained on other features: run benchmarks/verdict_train.py")
    with resources.files(__package__).joinpath("salad.npz").open("rb") as file:
        nodes = dict(np.load(file))
    limits = tuple(raw["up_to"]), tuple(raw["suspect_above"]), tuple(raw["garbled_above"])
    return Trees(raw["base"], _flat(nodes), raw["depth"], *limits, tuple(raw["usual"]))


def _flat(nodes: dict[str, npt.NDArray[Any]]) -> Nodes:
    """nodes: arrays [trees, nodes]; feature -1: a leaf, whose value is what it says."""
    trees, size = nodes["feature"].shape
    roots = np.arange(trees) * size
    own = np.arange(trees * size)
    feature, value = nodes["feature"].ravel(), nodes["value"].ravel().astype(np.float64)
    leaf = feature < 0
    left, right = (
        np.where(leaf, own, (nodes[side].astype(np.int64) + roots[:, None]).ravel()) for side in ("left", "right")
    )
    return Nodes(np.where(leaf, 0, feature).astype(np.int64), value, left, right, roots)


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
    found = windows(text, pieces, lists, letters.tables())
    scores = trees.scores(np.array([window.values for window in found]))
    worst, score = found[int(scores.argmax())], float(scores.max())
    suspect_above, garbled_above = trees.limits(len(pieces))
    if score <= suspect_above:
        return
    unsure = "HANGUL" in lists or worst["dense"] + worst["dense-joined"] > 0.1
    garbled_above += LESS_SURE if unsure else 0.0
    bad = int((scores > suspect_above).sum())
    numbers = {"score": round(score, 2), "windows": bad, "of_windows": len(found)}
    yield Evidence(
        "salad",
        "garbled" if score > garbled_above else "suspect",
        (worst.start + offset, worst.end + offset),
        _why(worst, trees),
        {**numbers, "garbled_above": garbled_above, "suspect_above": suspect_above},
    )


def _why(window: Window, trees: Trees) -> str:
    """What is further above what clean texts have than anything else; where nothing is, what comes nearest to it."""
    told = []
    for name, words in _TELLING.items():
        value, usual = window[name], trees.usual[NAMES.index(name)]
        shown = f"{value:.0f} {words} (clean texts: up to {usual:.0f})"
        if name != "scripts":
            shown = f"{100 * value:.0f} % {words} (clean texts: up to {100 * usual:.0f} %)"
        told.append((value / (usual + 0.02), value > usual, shown))
    told.sort(reverse=True)
    over = [shown for _, above, shown in told[:3] if above]
    if over:
        return "; ".join(over)
    nearest = "; ".join(shown for ratio, _, shown in told[:2] if ratio > 0)
    return f"taken together its numbers are not those of clean texts: {nearest or 'no single one stands out'}"
