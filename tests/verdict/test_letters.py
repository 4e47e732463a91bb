"""How characters follow each other: symbols, n-grams with backoff, and what a stretch of them says."""

from __future__ import annotations

import math
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import verdict_ngrams
from diag.verdict.shape import letters
from diag.verdict.shape.alphabets import CAPITAL, Building, Spelling
from diag.verdict.shape.ngrams import COST_STEPS, MOST_NATS, Table

PROSE = {
    "en": "The boats come home along the bay, and nobody has seen the moon. We wait until the kettle sings.",
    "de": "Die Bäckerei am Markt öffnet um sechs Uhr, und wer früher kommt, muss vor der Tür warten.",
    "tr": "Kütüphane pazar günü dışında her gün açıktır ve kitaplar iki hafta için ödünç alınabilir.",
    "el": "Η βιβλιοθήκη είναι ανοιχτή κάθε μέρα εκτός από την Κυριακή και τα βιβλία δανείζονται.",
    "ru": "Библиотека работает каждый день, кроме воскресенья, и книги можно взять домой на две недели.",
}
SALAD = "othatatory mat crucialisms-inNaSl fasc on reflect exportwar- roructive Chir fterin the_ landminefeedback]othe"


def whole(stretch: letters.Stretch, text: str) -> list[float]:
    """Its means, and its worst sixteen, of the text from end to end."""
    first, last = stretch.between(np.array([0]), np.array([len(text)]))
    return [*stretch.means(first, last)[0].tolist(), float(stretch.worst(first, last, 16)[0])]


@pytest.mark.parametrize("language", PROSE)
def test_letters_of_any_language_go_on_as_expected_and_out_of_their_order_do_not(language: str) -> None:
    mixed = "".join(random.Random(1).sample(PROSE[language], len(PROSE[language])))
    prose, salad = (whole(letters.tables().spelt(text), text) for text in (PROSE[language], mixed))
    assert all(a < b - 0.5 for a, b in zip(prose[::2], salad[::2]))  # the mean, inside words
    assert prose[1] < salad[1]


def test_tokens_that_do_not_belong_together_meet_at_rare_letters() -> None:
    prose, salad = (whole(letters.tables().spelt(text), text) for text in (PROSE["en"], SALAD))
    assert all(a < b for a, b in zip(prose, salad))
    assert prose[0] < salad[0] - 0.8


def test_symbols_are_small_letters_and_runs_are_short() -> None:
    spelling = Spelling("abcdefghijklmnopqrstuvwxyz .-")
    symbols, at = spelling("The iOS 2024....")
    assert at.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 13]  # one digit of four, two dots of four
    same, _ = spelling("the ios 1..")
    assert (symbols % CAPITAL).tolist() == same.tolist()
    assert np.flatnonzero(symbols >= CAPITAL).tolist() == [5]  # the capital after a small letter


def test_what_a_text_is_built_of() -> None:
    building = Building()
    assert building("Word word")[0].tolist() == building("Klein aber")[0].tolist()
    assert building("a_b")[0].tolist() != building("a b")[0].tolist()
    assert building("12,5")[0].tolist() == building("90,1")[0].tolist()


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300))
def test_any_text_has_finite_costs_at_places_that_it_has(text: str) -> None:
    for stretch in (letters.tables().spelt(text), letters.tables().built(text)):
        assert all(0 <= each <= MOST_NATS for each in whole(stretch, text))
        assert stretch.at.max(initial=0) < max(1, len(text))


@settings(max_examples=60, deadline=None)
@given(st.text("ab c", min_size=40, max_size=200), st.text("ab cd", min_size=1, max_size=40))
def test_a_table_says_what_its_counts_say(counted: str, asked: str) -> None:
    """Against the same model by the book, in dictionaries."""
    spelling, size = Spelling("abcd "), verdict_ngrams.Size(longest=3, slot_bits=20, kept=1 << 20, least=1)
    symbols, _ = spelling(counted)
    weights = np.ones(len(symbols))
    single = np.bincount(symbols, minlength=spelling.size) + 0.5
    single /= single.sum()
    entries = verdict_ngrams.hashed(verdict_ngrams.counted(symbols, weights, single, size), size.slot_bits)
    table = Table(entries, (-np.log(single)).astype(np.float32), size.longest)
    book = _Book([int(s) for s in symbols], single)
    question, _ = spelling(asked)
    wanted = [book.nats([int(s) for s in question[: at + 1]]) for at in range(len(question))]
    # Kept in fourteenths of a nat, and what is added in tenths, once for each order.
    assert table.costs(question) == pytest.approx([min(MOST_NATS, w) for w in wanted], abs=1 / COST_STEPS + 0.15)


class _Book:
    """Witten and Bell's interpolation to three symbols, and Katz' backoff for what was not seen."""

    def __init__(self, symbols: list[int], single: np.ndarray) -> None:  # type: ignore[type-arg]
        self.single = single
        self.seen = {
            order: Counter(tuple(symbols[max(0, at - order + 1) : at + 1]) for at in range(order - 1, len(symbols)))
            for order in (1, 2, 3)
        }

    def p(self, gram: tuple[int, ...]) -> float:
        if len(gram) == 1:
            return float(self.single[gram[0]])
        followers = {g: n for g, n in self.seen[len(gram)].items() if g[:-1] == gram[:-1]}
        total, kinds = sum(followers.values()), len(followers)
        return (followers[gram] + kinds * self.p(gram[1:])) / (total + kinds)

    def nats(self, history: list[int]) -> float:
        for order in (3, 2):
            gram = tuple(history[-order:])
            if len(gram) == order and gram in self.seen[order]:
                return -math.log(self.p(gram)) + self.added(history, order)
        return -math.log(self.single[history[-1]]) + self.added(history, 1)

    def added(self, history: list[int], found: int) -> float:
        """What the beginnings of the longer ones add, which were not seen with this end."""
        nats = 0.0
        for order in range(found + 1, 4):
            begun = tuple(history[-order:-1])
            followers = [g for g in self.seen[order] if g[:-1] == begun] if len(begun) == order - 1 > 1 else []
            if followers:
                left = 1 - sum(self.p(g) for g in followers)
                nats -= math.log(max(0.002, left) / max(0.002, 1 - sum(self.p(g[1:]) for g in followers)))
        return nats
