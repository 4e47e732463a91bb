"""Windows of a text and what is counted in them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.verdict.shape import letters, words
from diag.verdict.shape.chunks import chunks
from diag.verdict.shape.features import COLUMNS, NAMES, PARTS, SPELT, WINDOW, spoken, windows, without_loops
from diag.verdict.shape.salad import model

PROSE = "The boats come home along the bay, and nobody has seen the moon. We wait until the kettle sings."
SALAD = "The of in indeed ( in. & (Emp, to, to asTr adult/ (- : each instead Pl, ( Rule- wis the_ with of of"


def described(text: str) -> list[dict[str, float]]:
    pieces = chunks(text)
    return [dict(zip(NAMES, window.values)) for window in windows(text, pieces, spoken(pieces), letters.tables())]


def test_salad_is_spelt_and_built_worse_than_prose() -> None:
    (prose,), (salad,) = described(PROSE), described(SALAD)
    assert all(salad[name] > prose[name] + 0.5 for name in ("spelt", "built"))
    assert all(salad[f"worst-spelt-{length}"] > prose[f"worst-spelt-{length}"] for length in SPELT)


def test_a_text_that_goes_wrong_shows_it_in_its_worst_stretch() -> None:
    whole = described(f"{PROSE} {PROSE} {SALAD}")[-1]
    assert whole["worst-spelt-40"] > whole["spelt"] + 0.5
    assert whole[f"worst-odd-{PARTS[0]}"] > whole["odd-mark"]


@pytest.mark.parametrize("pieces", [1, 2, PARTS[0], WINDOW, WINDOW + 1, 3 * WINDOW])
def test_windows_cover_the_text_whatever_its_length(pieces: int) -> None:
    text = " ".join(f"w{at}" for at in range(pieces))
    found = windows(text, chunks(text), spoken(chunks(text)), letters.tables())
    assert (found[0].start, found[-1].end) == (0, len(text))
    assert all(later.start <= before.end for before, later in itertools.pairwise(found))


@settings(max_examples=150, deadline=None)
@given(st.text(st.characters(codec=None), max_size=200) | st.text("ab.,\n\n {}", max_size=400))
def test_any_text_can_be_described(text: str) -> None:
    pieces = chunks(text)
    found = windows(text, pieces, spoken(pieces), letters.tables())
    assert bool(found) == bool(len(pieces))
    assert all(len(window.values) == len(NAMES) and np.isfinite(window.values).all() for window in found)


def test_the_trees_know_these_features() -> None:
    assert len(model().usual) == len(NAMES)
    assert set(COLUMNS) < set(NAMES)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a b c d", "a b c d"),
        ("so very very very very very good", "so very very good"),
        ("on and off and on and off and on and off and on, then", "on and off and on and off and on, then"),
        ("x " * 50 + "y", "x x y"),
        ("one two three one two three one two three end", "one two three one two three end"),
    ],
)
def test_a_loop_counts_twice_and_no_more(text: str, kept: str) -> None:
    assert without_loops(text, chunks(text)).of(text) == kept.split()


def test_broken_and_glued_words_are_seen() -> None:
    (clean,) = described(
        "It is an unnecessary struggle, and we are where dreams come from, said the old man of the sea."
    )
    (broken,) = described(
        "It is an unnecess strugg, and we are placewhere dreams come fromthe, said the old man of the sea."
    )
    assert (clean["fragment"], clean["glued"]) == (0, 0)
    assert broken["fragment"] > 0
    assert broken["glued"] > 0
    assert broken["spelt"] > clean["spelt"]


def test_long_english_words_are_english_whatever_the_short_ones_are_taken_for() -> None:
    """The detokeniser's texts of a dozen pieces: two words of three letters are Italian, by chance."""
    salad = "ib massurinotics But I al abruptussat streng-ionmentormin Foundation plans m devices- caterpillars er I"
    pieces = chunks(salad)
    assert "en" in spoken(pieces)["LATIN"].languages
    italian = spoken(chunks("La casa del signore ha molte finestre che danno sulla piazza del mercato."))
    assert italian["LATIN"].languages[0] == "it"
    assert not words.speaks_english(["signore", "molte", "finestre", "danno", "sulla", "piazza", "mercato"])


def test_irregular_repetition_and_empty_lines_are_counted() -> None:
    (window,) = described("in in the in in a the the in\n\n\n\n\nof of")
    assert window["again"] > 0.3
    assert window["distinct"] < 0.7
    assert window["empty-lines"] > 0
    assert described("A usual paragraph.\n\nAnd one more.")[0]["empty-lines"] == 0
