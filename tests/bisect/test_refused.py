"""A command line that the engine does not take: the flag is named, and whose it is. Messages of a real argparse."""

from __future__ import annotations

import argparse
import contextlib
import io

import pytest

from diag.bisect import refused
from diag.bisect.space import Factor, Space

SPACE = Space(
    (
        Factor("budget", "--speculative-ddtree-budget", "flag", 7, 16, (7, 16)),
        Factor("graph", "--disable-cuda-graph", "switch_off", False, True, (False, True)),
        Factor("backend", "--attention-backend", "flag", "triton", "fa9", ("triton", "fa9")),
    )
)


def log_of(*words: str, **known: object) -> list[str]:
    """What a program that knows --attention-backend and --port says to these words."""
    parser = argparse.ArgumentParser("launch_server.py")
    parser.add_argument("--attention-backend", choices=["triton", "fa3"])
    parser.add_argument("--port", "-p", type=int)
    said = io.StringIO()
    with contextlib.redirect_stderr(said), pytest.raises(SystemExit):
        parser.parse_args(words)
    return ["some warning", *said.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--speculative-ddtree-budget", "7"), ["--speculative-ddtree-budget (factor 'budget')"]),
        (("--disable-cuda-graph",), ["--disable-cuda-graph (factor 'graph')"]),
        (("--speculative-ddtree-budget=7", "--foo"), ["(factor 'budget') and --foo (in the plan's command)"]),
        (("--foo", "--bar"), ["--foo (in the plan's command) and --bar (in the plan's command)"]),
        (("--attention-backend", "fa9"), ["--attention-backend (factor 'backend')", "invalid choice: 'fa9'"]),
        (("--port", "x"), ["invalid int value: 'x'"]),
        (("-p", "x"), ["--port", "-p", "(in the plan's command)"][2:]),
        (("stray",), ["stray (in the plan's command)"]),
    ],
)
def test_the_flag_is_named(words: tuple[str, ...], named: list[str]) -> None:
    refusal = refused.read(log_of(*words), SPACE)
    assert refusal is not None
    for text in named:
        assert text in refusal.why
    assert refusal.next


@pytest.mark.parametrize("log", [[], ["RuntimeError: out of memory"], ["error: something else went wrong"]])
def test_another_end_is_not_taken_for_it(log: list[str]) -> None:
    assert refused.read(log, SPACE) is None
