"""Which language a text is in, and which of its words that language has: from the word lists of `wordfreq`.

The small list of a language has its 20,000 to 60,000 most frequent words. Names, terms, inflected and compounded
words are missing from it, in some languages a third of all words: an unknown word proves nothing, many together in a
language whose words are otherwise known do.
"""

from __future__ import annotations

import gc
import unicodedata
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from itertools import chain

COMMON = 300
"""Words of a list that its language is recognised by."""

FREQUENT = 1500
"""Words of a list that count as frequent."""

SPACED = frozenset({"LATIN", "CYRILLIC", "GREEK", "ARABIC", "HEBREW", "DEVANAGARI", "BENGALI", "TAMIL", "HANGUL"})
"""Scripts that separate words by spaces and of which wordfreq has languages."""

DENSE = frozenset({"CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "BOPOMOFO"})
"""Scripts without spaces between words; CJK is what Unicode's names call Han."""

_BY_SCRIPT = {
    "LATIN": "en de fr es it pt nl pl cs sk sl hu ro ca da nb sv fi is lt lv id ms fil tr vi sh",
    "CYRILLIC": "ru uk bg mk sh",
    "GREEK": "el",
    "ARABIC": "ar fa ur",
    "HEBREW": "he",
    "DEVANAGARI": "hi",
    "BENGALI": "bn",
    "TAMIL": "ta",
    "HANGUL": "ko",
}


@lru_cache(maxsize=8192)
def script_of(character: str) -> str:
    """The script of a letter, as the first word of its Unicode name: "LATIN", "CJK", "HIRAGANA"; "" if it has none."""
    if character.isascii():
        return "LATIN" if character.isalpha() else ""
    name = unicodedata.name(character, "")
    first = name.split(" ", 1)[0]
    return {"FULLWIDTH": "LATIN", "HALFWIDTH": "KATAKANA", "MODIFIER": "", "IDEOGRAPHIC": "CJK"}.get(first, first)


def languages(words: Iterable[str], script: str) -> tuple[str, ...]:
    """The at most two languages of this script whose common words are most frequent among `words` (lower case);
    () where hardly any common word of any is among them."""
    common = _common(script)
    said = Counter(words)
    counts: Counter[str] = Counter()
    for word, times in said.items():
        for code in common.get(word, ()):
            counts[code] += times
    least = max(2, said.total() // 25)
    return tuple(code for code, count in counts.most_common(2) if count >= least)


LONG = 5
"""Letters of a word that is of no other language by chance."""

LEAST_LONG, ENGLISH = 3, 0.3
"""Long English words, and their share of all long ones, from which on a text is taken to be English as well."""


def speaks_english(words: Iterable[str]) -> bool:
    """Whether enough of the long ones are English. Short words of one language are words of many others by chance, so
    that a few tokens of a vocabulary are soon taken for Italian; long ones are not."""
    long = {word for word in words if len(word) >= LONG}
    found = len(long & english())
    return found >= max(LEAST_LONG, ENGLISH * len(long))


@lru_cache(maxsize=1)
def english() -> frozenset[str]:
    """The usual words: without those that the long list has of other languages."""
    return frozenset(chain.from_iterable(_list("en", "small")))


def of_script(script: str) -> list[str]:
    """Codes of the languages that have a word list in this script."""
    return _BY_SCRIPT.get(script, "").split()


@lru_cache(maxsize=48)
def known(code: str) -> frozenset[str]:
    """Every word of a language's list, lower case; English has the long one, since everybody borrows from it."""
    found = frozenset(chain.from_iterable(_list(code, "large" if code == "en" else "small")))
    _kept()
    return found


def begins(code: str, plain: str) -> bool:
    """Whether some frequent enough word of the language goes on at least two letters after `plain`."""
    words = _sorted(code)
    at = bisect_left(words, plain)
    return any(word.startswith(plain) and len(word) >= len(plain) + 2 for word in words[at : at + 4])


@lru_cache(maxsize=48)
def _sorted(code: str) -> list[str]:
    found = sorted(chain.from_iterable(_list(code, "small")))
    _kept()
    return found


@lru_cache(maxsize=128)
def frequent(codes: tuple[str, ...]) -> frozenset[str]:
    """The frequent words of any of these languages."""
    return frozenset().union(*map(_frequent, codes))


@lru_cache(maxsize=48)
def _frequent(code: str) -> frozenset[str]:
    return frozenset(_first(code, FREQUENT))


@lru_cache(maxsize=16)
def _common(script: str) -> dict[str, tuple[str, ...]]:
    """word -> the languages whose common word it is."""
    found: dict[str, tuple[str, ...]] = {}
    for code in of_script(script):
        for word in _first(code, COMMON):
            if script_of(word[0]) == script:
                found[word] = (*found.get(word, ()), code)
    return found


def _first(code: str, wanted: int) -> list[str]:
    words: list[str] = []
    for bucket in _list(code, "small"):
        words += bucket
        if len(words) >= wanted:
            break
    return words[:wanted]


@lru_cache(maxsize=48)
def _list(code: str, size: str) -> list[list[str]]:
    """Buckets of words, most frequent first."""
    import wordfreq

    buckets: list[list[str]] = wordfreq.get_frequency_list(code, wordlist=size)
    _kept()
    return buckets


def _kept() -> None:
    """Word lists are there as long as the process: Python's collector need not walk a million words again and again,
    which takes a quarter of a second each time."""
    gc.freeze()
