"""The page of the first ten minutes is run, line by line, against the lab."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from documents import ROOT, commands

from diag.lab.layout import Lab
from tests.lab_fixture import Ran

PAGE = ROOT / "docs/first-ten-minutes.md"
# Run elsewhere: the whole search, and the look at the mended source, by tests/cli/test_story.py with two prompts; the
# end of the lab by its own tests.
ELSEWHERE = ("bisect lab --plan ddtree-garble", "lab down", "bisect --resume RUN")
MENDED = "# exit code 0: clean"


def _typed() -> list[tuple[str, list[str], int]]:
    """(the line, its words, the exit code that the page tells) of what is for the lab or for no host."""
    found = []
    for line, words in commands(PAGE):
        told = re.search(r"# exit code (\d)", line.text)
        elsewhere = " ".join(words) in ELSEWHERE or MENDED in line.text
        if "gpu1" not in words and not elsewhere and words[0] != "completion":
            found.append((line.text, words, int(told[1]) if told else 0))
    return found


def test_the_page_has_what_is_run_elsewhere() -> None:
    whole = {" ".join(words) for _, words in commands(PAGE)}
    assert set(ELSEWHERE) <= whole
    assert MENDED in PAGE.read_text()


@pytest.mark.lab
@pytest.mark.timeout(1500)
def test_every_line_does_what_the_page_says(lab: Lab, diag: Callable[..., Ran], tmp_path: Path) -> None:
    ran = []
    for text, words, code in _typed():
        done = diag(*words, cwd=tmp_path, timeout_s=600)
        assert done.code == code, f"{text}\n{done.out}\n{done.err}"
        ran.append(text)
    assert len(ran) > 12
