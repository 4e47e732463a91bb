"""The rewrite of `mask-indptr` on the wave backend, on a release of each of its shapes."""

from __future__ import annotations

import difflib
import re

import pytest

from diag.errors import FileNotAsExpected
from diag.fixes.catalogue import get
from diag.fixes.mask_indptr import COMMENT
from diag.source import wheels
from tests.source.mutations import changed, renamed

pytestmark = pytest.mark.wheel

FIX = get("mask-indptr-wave")
CHANGED = {"0.5.9": 12, "0.5.12": 12, "0.5.13": 9, "0.5.16": 9, "0.5.23": 9}


def source(version: str) -> str:
    return wheels.read(wheels.fetch("sglang", version), FIX.file).decode("utf-8")


@pytest.mark.parametrize("version", CHANGED)
def test_only_the_verify_lines_change(version: str) -> None:
    old = source(version)
    new = FIX.rewrite(old)
    assert FIX.detect(new).state == "fixed"
    compile(new, version, "exec")
    diff = list(difflib.ndiff(old.split("\n"), new.split("\n")))
    removed, added = ([row[2:] for row in diff if row[:2] == mark] for mark in ("- ", "+ "))
    assert len(removed) == CHANGED[version]
    mended = [row.replace("self.num_draft_tokens", "draft_token_num") for row in removed]
    assert [row for row in added if row in mended] == mended
    assert sum(row.strip() == COMMENT for row in added) == 3
    assert len(added) == len(removed) + 12
    assert len(re.findall(r'getattr\(spec_info, "draft_token_num", None\) or self\.num_draft_tokens', new)) == 3


def test_line_ends_stay() -> None:
    old = source("0.5.23")
    assert FIX.rewrite(old.replace("\n", "\r\n")) == FIX.rewrite(old).replace("\n", "\r\n")


def test_not_twice_and_not_another_backend() -> None:
    with pytest.raises(FileNotAsExpected, match="fixed"):
        FIX.rewrite(FIX.rewrite(source("0.5.23")))
    with pytest.raises(FileNotAsExpected, match="class WaveAttnBackend is not in this file"):
        FIX.rewrite(wheels.read(wheels.fetch("sglang", "0.5.12"), get("mask-indptr").file).decode())


def test_a_fork_with_other_names() -> None:
    fork = changed(source("0.5.13"), FIX.cls, renamed)
    assert FIX.detect(FIX.rewrite(fork)).state == "fixed"
