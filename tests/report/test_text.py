"""Text from a host can do nothing to a terminal."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.report.text import one_line, visible

WILD = st.text(st.characters(min_codepoint=0, max_codepoint=0x10FFFF), max_size=200) | st.text(
    st.sampled_from("a\n\t\r\x00\x07\x1b\x7f\x9b\u200b\u200e\u202e\u2028\u2029\u2066\ufeff\ud800\U000e0041é𝄞́"),
    max_size=80,
)
BIDI = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def unsafe(text: str) -> list[str]:
    return [
        c
        for c in text
        if c not in "\n\t"
        and (unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") or unicodedata.bidirectional(c) in BIDI)
    ]


@given(WILD)
@settings(max_examples=500, deadline=None)
def test_nothing_is_left_that_moves_colours_or_reorders(text: str) -> None:
    shown = visible(text)
    assert unsafe(shown) == []
    shown.encode("utf-8")
    assert visible(shown) == shown
    assert shown.count("\n") == text.count("\n")


@given(WILD, st.integers(1, 60))
@settings(max_examples=500, deadline=None)
def test_one_line_is_one_and_no_longer_than_it_may(text: str, limit: int) -> None:
    line = one_line(text, limit)
    assert len(line) <= limit
    assert unsafe(line) == []
    assert "\n" not in line
    assert "\t" not in line
    assert len(line.splitlines()) <= 1


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), max_size=60))
@settings(deadline=None)
def test_what_is_safe_stays_as_it_is(text: str) -> None:
    assert visible(text) == text
    assert one_line(text, 60) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ok\x1b[31mred", "ok\\x1b[31mred"),
        ("a\r\nb\tc", "a\\r\nb\tc"),
        ("\x9b31m", "\\x9b31m"),
        ("a\u202eb", "a\\u202eb"),
        ("\U000e0041", "\\U000e0041"),
        ("\ud800", "\\ud800"),
        ("\u2028", "\\u2028"),
        ("\x85", "\\x85"),
        ("", ""),
    ],
)
def test_how_it_is_written(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_what_is_too_long_keeps_its_beginning_and_its_end() -> None:
    line = one_line("start " + "x" * 500 + " end", 40)
    assert len(line) == 40
    assert line.startswith("start xxx")
    assert line.endswith("xxx end")
    assert line.count("…") == 1
