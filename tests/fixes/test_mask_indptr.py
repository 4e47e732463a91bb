"""The rewrite, on a real release of every shape."""

from __future__ import annotations

import difflib
import re
import types

import pytest

from diag.errors import FileNotAsExpected, UsageError
from diag.fixes import catalogue
from diag.fixes.mask_indptr import COMMENT, rewrite
from diag.fixes.transaction import unified
from diag.source.detect import detect
from tests.source.releases import BEFORE, FIXED, PRESENT, source

wheel = pytest.mark.wheel

BLOCKS = {"0.4.3": 3, "0.4.8": 3, "0.5.9": 3, "0.5.12": 3, "0.5.13": 3, "0.5.16": 3}
CHANGED = {"0.4.3": 12, "0.4.8": 12, "0.5.9": 12, "0.5.12": 12, "0.5.13": 9, "0.5.16": 9}


def changes(old: str, new: str) -> tuple[list[str], list[str]]:
    """Removed and added lines."""
    diff = list(difflib.ndiff(old.split("\n"), new.split("\n")))
    return [row[2:] for row in diff if row[:2] == "- "], [row[2:] for row in diff if row[:2] == "+ "]


@wheel
@pytest.mark.parametrize("version", PRESENT)
def test_only_the_verify_lines_change(version: str) -> None:
    old = source(version)
    new = rewrite(old)
    assert detect(new).state == "fixed"
    compile(new, version, "exec")
    removed, added = changes(old, new)
    assert len(removed) == CHANGED[version]
    assert all("self.num_draft_tokens" in row for row in removed)
    mended = [row.replace("self.num_draft_tokens", "draft_token_num") for row in removed]
    assert [row for row in added if row in mended] == mended
    assert sum(row.strip() == COMMENT for row in added) == BLOCKS[version]
    assert len(added) == CHANGED[version] + 4 * BLOCKS[version]


@wheel
@pytest.mark.parametrize("version", ["0.5.13", "0.5.16"])
def test_draft_extend_keeps_the_server_setting(version: str) -> None:
    new = rewrite(source(version))
    assert len(re.findall(r"self\.num_draft_tokens\n\s+if forward_mode\.is_draft_extend_v2\(\)", new)) == 2


@wheel
@pytest.mark.parametrize("version", ["0.4.3", "0.5.12", "0.5.13"])
def test_line_ends_byte_order_mark_and_a_missing_last_newline_stay(version: str) -> None:
    old = source(version)
    new = rewrite(old)
    assert rewrite(old.replace("\n", "\r\n")) == new.replace("\n", "\r\n")
    assert rewrite("\ufeff" + old.rstrip("\n")) == "\ufeff" + new.rstrip("\n")


@wheel
@pytest.mark.parametrize("version", [BEFORE, *FIXED])
def test_nothing_else_is_rewritten(version: str) -> None:
    with pytest.raises(FileNotAsExpected):
        rewrite(source(version))


@wheel
def test_a_mended_file_is_not_mended_again() -> None:
    with pytest.raises(FileNotAsExpected, match="fixed"):
        rewrite(rewrite(source("0.5.12")))


@wheel
@pytest.mark.parametrize(
    ("spec_info", "width"),
    [
        (None, 8),
        (types.SimpleNamespace(), 8),
        (types.SimpleNamespace(draft_token_num=None), 8),
        (types.SimpleNamespace(draft_token_num=17), 17),
    ],
)
def test_the_new_expression_holds_without_a_verify_input(spec_info: object, width: int) -> None:
    new = rewrite(source("0.5.12"))
    expressions = re.findall(r"draft_token_num = \(\n\s+(getattr.*)\n", new)
    assert len(expressions) == 3
    backend = types.SimpleNamespace(num_draft_tokens=8)
    for expression in expressions:
        assert eval(expression, {"spec_info": spec_info, "self": backend}) == width


@wheel
def test_a_name_that_is_taken() -> None:
    old = source("0.5.12").replace(
        "        bs = forward_batch.batch_size\n",
        "        bs = forward_batch.batch_size\n        draft_token_num = 3\n",
        1,
    )
    new = rewrite(old)
    assert "(1 + bs) * verify_draft_token_num" in new
    assert "        draft_token_num = 3\n" in new


@wheel
def test_a_fork_with_other_local_names() -> None:
    head, tail = source("0.5.12").split("        spec_info = forward_batch.spec_info\n", 1)
    eager, rest = tail.split("    def init_cuda_graph_state", 1)
    eager = "        verify = forward_batch.spec_info\n" + eager.replace("spec_info", "verify")
    old = head + eager + "    def init_cuda_graph_state" + rest
    new = rewrite(old)
    assert new.count('getattr(verify, "draft_token_num", None) or self.num_draft_tokens') == 1
    assert new.count('getattr(spec_info, "draft_token_num", None) or self.num_draft_tokens') == 2


@wheel
def test_comments_above_the_first_line_stay_with_it() -> None:
    row = "            qo_indptr = torch.arange(\n"
    old = source("0.5.12").replace(row, "            # where the rows begin\n" + row, 1)
    new = rewrite(old)
    assert "            # where the rows begin\n" + row in new


@wheel
def test_lines_that_other_modes_share_are_refused() -> None:
    old = source("0.5.12").replace(
        "forward_mode.is_target_verify():", "forward_mode.is_target_verify() or forward_mode.is_draft_extend_v2():"
    )
    assert detect(old).state == "present"
    with pytest.raises(FileNotAsExpected, match="serves other forward modes too"):
        rewrite(old)


def test_unreadable_source() -> None:
    with pytest.raises(FileNotAsExpected, match="not readable as Python"):
        rewrite("def broken(:\n")


@wheel
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_diff_is_one_that_patch_takes(end: str) -> None:
    old = source("0.4.3").rstrip("\n").replace("\n", end)
    new = rewrite(old)
    diff = unified(old, new, "sglang/x.py")
    assert diff.startswith("--- a/sglang/x.py\n+++ b/sglang/x.py\n@@ ")
    assert patched(old, diff) == new


def patched(old: str, diff: str) -> str:
    """A reader of unified diffs that knows only what the format says."""
    rows = re.findall(r"[^\n]*\n|[^\n]+\Z", old)
    result: list[str] = []
    at = 0
    for row in re.findall(r"[^\n]*\n", diff)[2:]:
        if row.startswith("@@"):
            start = int(row.split()[1].split(",")[0][1:]) - 1
            result += rows[at:start]
            at = start
        elif row.startswith("\\"):
            result[-1] = result[-1].removesuffix("\n")
        elif row[0] in " -":
            at += 1
            if row[0] == " ":
                result.append(row[1:])
        else:
            result.append(row[1:])
    return "".join(result + rows[at:])


def test_the_catalogue() -> None:
    assert catalogue.get("mask-indptr").package == "sglang"
    assert len({fix.id for fix in catalogue.FIXES}) == len(catalogue.FIXES)
    with pytest.raises(UsageError, match="did you mean: mask-indptr") as caught:
        catalogue.get("mask-idptr")
    assert caught.value.exit_code == 2
