"""Which language a text is in, and which of its words that language has: from the word lists of `wordfreq`.

The small list of a language has its 20,000 to 60,000 most frequent words. Names, terms, inflected and compounded
words are missing from it, in some languages a third of all words: an unknown word proves nothing, many together in a
language whose words are otherwise known do.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_left, bisect_right
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
    counts: Counter[str] = Counter()
    total = 0
    for word in words:
        total += 1
        counts.update(common.get(word, ()))
    least = max(2, total // 25)
    return tuple(code for code, count in counts.most_common(2) if count >= least)


def of_script(script: str) -> list[str]:
    """Codes of the languages that have a word list in this script."""
    return _BY_SCRIPT.get(script, "").split()


@lru_cache(maxsize=48)
def known(code: str) -> frozenset[str]:
    """Every word of a language's list, lower case; English has the long one, since everybody borrows from it."""
    return frozenset(chain.from_iterable(_list(code, "large" if code == "en" else "small")))


def begins(code: str, plain: str) -> bool:
    """Whether some frequent enough word of the language goes on at least two letters after `plain`."""
    words = _sorted(code)
    at = bisect_left(words, plain)
    return any(word.startswith(plain) and len(word) >= len(plain) + 2 for word in words[at : at + 4])


@lru_cache(maxsize=48)
def _sorted(code: str) -> list[str]:
    return sorted(chain.from_iterable(_list(code, "small")))


RANKS = (12, 60, 300, FREQUENT)
"""A frequent word is of the first rank among the twelve most frequent ones of its language, and so on."""


@lru_cache(maxsize=128)
def ranks(codes: tuple[str, ...]) -> dict[str, str]:
    """Frequent word -> its rank, the highest that one of these languages gives it: "w0" for the most frequent ones to
    "w3"."""
    found: dict[str, str] = {}
    for code in codes:
        mine = _ranked(code)
        both = {word: min(mine[word], found[word]) for word in mine.keys() & found.keys()}
        found = {**found, **mine, **both}
    return found


@lru_cache(maxsize=48)
def _ranked(code: str) -> dict[str, str]:
    return {word: f"w{bisect_right(RANKS, at)}" for at, word in enumerate(_first(code, FREQUENT))}


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
    return buckets
