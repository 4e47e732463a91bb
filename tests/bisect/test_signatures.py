"""What kind of failure it is: the same words for the same failure, others for another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.bisect import signatures
from diag.verdict.compare import Kind, TextVerdict


def text(kind: Kind, said: str = "x", why: str = "", ids: tuple[int, ...] = (1, 2), **more: object) -> TextVerdict:
    reference = "a reference"
    return TextVerdict("poem", "alone", kind, said, reference, why, token_ids=ids, **more)  # type: ignore[arg-type]


GARBLED = text("garbled", diverges_at=1)
SHORT = text("garbled", diverges_at=2)
EMPTY = text("garbled", "", ids=())
FINE = text("identical")


def refused(why: str) -> TextVerdict:
    return text("no_answer", "", why, ())


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], ""),
        ([FINE], ""),
        ([FINE, GARBLED], "garbled"),
        ([SHORT, FINE], "too short"),
        ([EMPTY], "empty"),
        ([SHORT, GARBLED, EMPTY], "garbled"),
        ([text("wrong")], "wrong answer"),
        ([refused('HTTP 500: {"error": "x 17"}')], "answers HTTP 500"),
        ([refused("HTTP 503: busy"), refused("HTTP 500: a"), refused("HTTP 500: b")], "answers HTTP 500"),
        ([refused("no answer: timed out")], "no answer"),
        ([refused("aborted: too long")], "aborts"),
        ([refused("HTTP 500: a"), refused("HTTP 500: b"), GARBLED], "garbled"),
    ],
)
def test_of_texts(texts: list[TextVerdict], expected: str) -> None:
    assert signatures.of_texts(texts) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("RuntimeError: CUDA error: an illegal memory access", "RuntimeError: CUDA error: an illegal memory access"),
        ("[2026-11-29 10:00:00] ValueError: shape 17", "[2026-11-30 11:11:11 TP0] ValueError: shape 8"),
        ("torch.OutOfMemoryError: tried to allocate 2.00 GiB", "torch.OutOfMemoryError: tried to allocate 1.50 GiB"),
        ("AssertionError at 0x7ffe12", "AssertionError at 0x1"),
    ],
)
def test_the_same_death_has_one_signature(one: str, other: str) -> None:
    assert signatures.of_death(["loading", one, "bye"]) == signatures.of_death([other])


def test_different_deaths_differ_and_a_silent_one_says_how() -> None:
    said = {
        signatures.of_death(["CUDA error: misaligned address"]),
        signatures.of_death(["torch.OutOfMemoryError: x"]),
        signatures.of_death([], "signal SIGKILL"),
        signatures.of_death(["all is well"], "exit code 3"),
        signatures.of_death([]),
    }
    assert len(said) == 5
    assert signatures.of_death([], "signal SIGKILL") == "died: signal SIGKILL"


@given(st.lists(st.text(max_size=300), max_size=5), st.text(max_size=20))
def test_whatever_a_log_holds_a_signature_is_short_and_one_line(log: list[str], how: str) -> None:
    signature = signatures.of_death(log)
    assert len(signature) <= signatures.MAX_CHARS + 10
    assert signature.startswith("died")
    assert len(signature.splitlines()) == 1
