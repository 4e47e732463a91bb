"""Characters as symbols, in two ways: how words are spelt, and how a text is built."""

from __future__ import annotations

import string
import unicodedata
from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from diag.verdict.shape.ngrams import Symbols

CAPITAL = 4096
"""Most symbols that are told apart, and what is added to one that is a capital after a small letter."""

_CLASSES = "NLMPSZC"
"""First letters of Unicode's categories: the symbols from 1 on, of characters that have none of their own."""

_DIGIT, _QUOTE, _LOWER, _UPPER, _OTHER, _REPLACED, FIRST = 1, 8, 9, 10, 11, 12, 16
_MARKS = {
    **{mark: FIRST + at for at, mark in enumerate(string.punctuation + "–—…•· \n\t")},
    **dict.fromkeys("“”„«»‘’‚‹›", _QUOTE),
}

Places = npt.NDArray[np.intp]


def code_points(text: str) -> npt.NDArray[np.uint32]:
    """Of Unicode, surrogates too, one of each character."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


class Alphabet(ABC):
    """Characters -> symbols. Of a run of one symbol two are kept, or one of those that `_once` says."""

    size = 2 * CAPITAL

    def __init__(self) -> None:
        self._table = np.full(0x110000, -1, np.int16)
        self._once = np.zeros(CAPITAL, np.bool_)

    def __call__(self, text: str) -> tuple[Symbols, Places]:
        """(symbols, where in the text they are)"""
        points = code_points(text)
        found = self._table[points]
        if found.size and found.min() < 0:
            for character in set(text):
                self._table[ord(character)] = self._symbol(character)
            found = self._table[points]
        same = found[1:] == found[:-1]
        kept = np.ones(len(found), np.bool_)
        kept[1:] = ~(same & self._once[found[1:]])
        kept[2:] &= ~(same[1:] & same[:-1])
        at = np.flatnonzero(kept)
        return self._marked(found.astype(np.uint32), points)[at], at

    @abstractmethod
    def _symbol(self, character: str) -> int:
        """Asked once of each character."""

    def _marked(self, symbols: Symbols, points: Symbols) -> Symbols:
        """With what a character's neighbour adds to it. points: of Unicode."""
        return symbols


class Spelling(Alphabet):
    """Each character of those that were counted is one, small or capital; digits are all one, and so are other letters.
    A capital after a small letter is told from others."""

    def __init__(self, characters: str) -> None:
        super().__init__()
        self._ids = {character: FIRST + at for at, character in enumerate(characters)}
        self._small = np.zeros(0x110000, np.bool_)
        self._capital = np.zeros(0x110000, np.bool_)
        self._once[[_DIGIT, *(self._ids[blank] for blank in " \n" if blank in self._ids)]] = True

    def _symbol(self, character: str) -> int:
        small = character.lower()
        small = small if len(small) == 1 else character
        self._small[ord(character)], self._capital[ord(character)] = character.islower(), character.isupper()
        kind = unicodedata.category(character)[0]
        return _DIGIT if kind == "N" else self._ids.get(small, 1 + _CLASSES.index(kind))

    def _marked(self, symbols: Symbols, points: Symbols) -> Symbols:
        symbols[1:] += np.uint32(CAPITAL) * (self._capital[points[1:]] & self._small[points[:-1]])
        return symbols


class Building(Alphabet):
    """Letters are small, capital or other; digits, marks, blanks."""

    def __init__(self) -> None:
        super().__init__()
        self._once[[_LOWER, _OTHER]] = True

    def _symbol(self, character: str) -> int:
        kind = unicodedata.category(character)
        if kind[0] in "LM":
            return {"Ll": _LOWER, "Lu": _UPPER}.get(kind, _OTHER)
        if kind[0] == "N":
            return _DIGIT
        if character == "\ufffd":
            return _REPLACED
        return _MARKS.get(character, 1 + _CLASSES.index(kind[0]))
