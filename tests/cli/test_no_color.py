"""NO_COLOR on a real terminal: no colour; without it, and on a pipe, as it should be."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_COLOUR = re.compile(r"\x1b\[[\d;]*[349]\d[\d;]*m")


def on_a_terminal(*words: str, **env: str) -> str:
    """Everything that `diag WORDS` writes to a terminal of its own."""
    mine, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", "from diag.cli import main; main()", *words],
        cwd=ROOT,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**{k: v for k, v in os.environ.items() if k != "NO_COLOR"}, "TERM": "xterm-256color", **env},
    )
    os.close(theirs)
    said = b""
    while True:
        try:
            part = os.read(mine, 65536)
        except OSError:  # the other end was closed
            break
        if not part:
            break
        said += part
    os.close(mine)
    child.wait(timeout=60)
    return said.decode(errors="replace")


ERROR = ("host", "show", "no-such-host")


def test_an_error_is_red_on_a_terminal() -> None:
    assert _COLOUR.search(on_a_terminal(*ERROR))


@pytest.mark.parametrize("words", [ERROR, ("explain",), ("explain", "near_tie"), ("fix", "list")], ids=" ".join)
def test_no_color_means_none(words: tuple[str, ...]) -> None:
    said = on_a_terminal(*words, NO_COLOR="1")
    assert len(said) > 50
    assert not _COLOUR.search(said)


def test_an_empty_no_color_is_none() -> None:
    assert _COLOUR.search(on_a_terminal(*ERROR, NO_COLOR=""))


@pytest.mark.parametrize("columns", ["60", "200"])
def test_no_line_of_the_help_is_wider_than_the_terminal_or_a_page(columns: str) -> None:
    said = on_a_terminal("probe", "host", "--help", COLUMNS=columns)
    assert max(map(len, said.splitlines())) <= min(int(columns), 100)
