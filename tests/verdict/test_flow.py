"""What kind of word follows what, as a sequence of symbols and what it costs."""

from __future__ import annotations

import itertools

import pytest

from diag.verdict.shape import flow, junctions, pairs
from diag.verdict.shape.chunks import chunks
from diag.verdict.shape.features import (
    COLUMNS,
    NAMES,
    PARTS,
    WINDOW,
    Tables,
    flow_symbols,
    spoken,
    windows,
    without_loops,
)
from diag.verdict.shape.salad import model

PROSE = "The boats come home along the bay, and nobody has seen the moon. We wait until the kettle sings."
SALAD = "The of in indeed ( in. & (Emp, to, to asTr adult/ (- : each instead Pl, ( Rule- wis the_ with of of"


def tables() -> Tables:
    return Tables(junctions.costs(), flow.costs(), pairs.tables())


def described(text: str) -> list[dict[str, float]]:
    pieces = chunks(text)
    return [dict(zip(NAMES, window.values)) for window in windows(text, pieces, spoken(pieces), tables())]


def test_words_by_rank_marks_as_they_are_and_a_word_beside_itself() -> None:
    text = "The house, the house: very very Xqzzt (blorfing)\n42"
    symbols = flow_symbols(text, chunks(text), spoken(chunks(text)))
    assert symbols[:6] == ["w0", "w2", ",", "w0", "w2", ":"]
    assert symbols[6:] == ["w2", "again", "unknown-name", "(", "unknown", ")", "n", "number"]


def test_salad_flows_worse_than_prose() -> None:
    (prose,), (salad,) = described(PROSE), described(SALAD)
    assert salad["flow"] > prose["flow"] + 1
    assert all(salad[f"worst-flow-{part}"] > prose[f"worst-flow-{part}"] for part in PARTS)


def test_a_text_that_goes_wrong_shows_it_in_its_worst_stretch() -> None:
    whole = described(f"{PROSE} {PROSE} {SALAD}")[-1]
    assert whole[f"worst-flow-{PARTS[0]}"] > whole["flow"] + 1
    assert whole["flow-beside-the-worst"] < whole[f"worst-flow-{PARTS[-1]}"]


@pytest.mark.parametrize("pieces", [1, 2, PARTS[0], WINDOW, WINDOW + 1, 3 * WINDOW])
def test_windows_cover_the_text_whatever_its_length(pieces: int) -> None:
    text = " ".join(f"w{at}" for at in range(pieces))
    found = windows(text, chunks(text), spoken(chunks(text)), tables())
    assert (found[0].start, found[-1].end) == (0, len(text))
    assert all(later.start <= before.end for before, later in itertools.pairwise(found))


def test_a_walk_is_its_steps_whoever_asks_again() -> None:
    table = junctions.costs()
    walk = table.walk(("^", "^"), ("a", ",", "_"))
    steps = [table.cost("^", "^", "a"), table.cost("^", "a", ","), table.cost("a", ",", "_")]
    assert walk.nats == pytest.approx(sum(steps))
    assert walk.rare == sum(nats > junctions.RARE for nats in steps)
    assert walk.end == (",", "_")
    assert table.walk(("^", "^"), ("a", ",", "_")) is walk


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
    assert [text[piece.start : piece.end] for piece in without_loops(text, chunks(text))] == kept.split()


def test_words_that_people_put_together_and_those_they_never_do() -> None:
    english = pairs.tables()["en"]
    told = {(a, b): english.cost(a, b) for a, b in [("of", "the"), ("the", "of"), ("the", "zzyx")]}
    assert told["of", "the"] < -1
    assert told["the", "of"] > pairs.SHUNNED
    assert told["the", "zzyx"] is None
    german = pairs.cost(("de",), "of", "the", pairs.tables())
    assert german is not None
    assert pairs.cost(("en", "de"), "of", "the", pairs.tables()) == min(german, told["of", "the"])
    assert pairs.cost(("lv",), "of", "the", pairs.tables()) is None


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
    assert broken["pair-cost"] > clean["pair-cost"]
