"""What kind of word follows what, as a sequence of symbols and what it costs."""

from __future__ import annotations

import itertools

import pytest

from diag.verdict.shape import flow, junctions
from diag.verdict.shape.chunks import chunks
from diag.verdict.shape.features import COLUMNS, NAMES, PARTS, WINDOW, Tables, flow_symbols, spoken, windows
from diag.verdict.shape.salad import model

PROSE = "The boats come home along the bay, and nobody has seen the moon. We wait until the kettle sings."
SALAD = "The of in indeed ( in. & (Emp, to, to asTr adult/ (- : each instead Pl, ( Rule- wis the_ with of of"


def tables() -> Tables:
    return Tables(junctions.costs(), flow.costs())


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
    text = " ".join(["word"] * pieces)
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
