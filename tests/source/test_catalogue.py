"""Every fault of the catalogue on real releases, and on what people make of them.

By default on one release of each shape; with DIAG_TEST_RELEASES=all on all of catalogue.tsv (48 wheels, fetched once).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.errors import PreconditionFailed
from diag.fixes.catalogue import FIXES, files, get
from diag.fixes.entry import Fix
from diag.source import wheels
from tests.source.mutations import MUTATIONS, changed, mutated
from tests.source.releases import BEFORE, FIXED, PRESENT

WORDS = {"P": "present", "f": "fixed", ".": "not_applicable"}
SHAPES = (BEFORE, *PRESENT, *FIXED)


def table() -> dict[str, dict[str, str]]:
    """{release: {fault: state}}, without the files that a release does not have."""
    rows = [row.split("\t") for row in Path(__file__).with_name("catalogue.tsv").read_text().splitlines()[1:]]
    head, body = rows[0], rows[1:]
    return {row[0]: {name: WORDS[cell] for name, cell in zip(head[1:], row[1:]) if cell != "-"} for row in body}


KNOWN = table()
RELEASES = tuple(KNOWN) if os.environ.get("DIAG_TEST_RELEASES") == "all" else SHAPES
IDS = [fix.id for fix in FIXES]

# Lines by which a person finds the place: the mask's offsets, its read, its buffer, the fallback.
LINES: dict[tuple[str, str], tuple[int, ...]] = {
    ("mask-indptr-wave", "0.5.9"): (275, 448, 532),
    ("mask-indptr-wave", "0.5.12"): (275, 448, 532),
    ("mask-indptr-wave", "0.5.13"): (277, 481),
    ("mask-indptr-wave", "0.5.16"): (277, 464),
    ("mask-indptr-wave", "0.5.23"): (285, 472),
    ("mask-indptr-aiter-graph", "0.5.12"): (1723, 2158),
    ("mask-indptr-aiter-graph", "0.5.13"): (1859,),
    ("mask-indptr-aiter-graph", "0.5.16"): (1778,),
    ("fa-tree-mask-stride", "0.5.12"): (456, 2120),
    ("fa-tree-mask-stride", "0.5.13"): (573, 2332),
    ("fa-tree-mask-stride", "0.5.16"): (873, 2852),
    ("fa-tree-mask-stride", "0.5.23"): (1136, 3244),
    ("xpu-tree-mask-stride", "0.5.9"): (273,),
    ("xpu-tree-mask-stride", "0.5.13"): (288,),
    ("xpu-tree-mask-stride", "0.5.23"): (531,),
    ("graph-mask-buffer-size", "0.5.17"): (1014,),
    ("graph-mask-buffer-size", "0.5.23"): (1237,),
    ("verify-width-fallback", "0.5.21"): (564,),
    ("verify-width-fallback", "0.5.23"): (589,),
}


def text_of(fix: Fix, version: str) -> str:
    return wheels.read(wheels.fetch("sglang", version), fix.file).decode("utf-8")


# --- the catalogue itself -----------------------------------------------------------------------------------------


def test_ids_name_their_modules_and_every_entry_is_whole() -> None:
    assert len(set(IDS)) == len(IDS)
    for fix in FIXES:
        module = Path("diag/fixes") / f"{fix.id.replace('-', '_')}.py"
        assert module.is_file()
        assert not fix.title.endswith(".")
        assert fix.story.endswith(".")
        assert fix.why.endswith(".")
        assert fix.do
        assert fix.file in files("sglang")
    assert files("vllm") == []


def test_severity_is_for_who_serves_with_the_backend() -> None:
    assert get("mask-indptr").told(["triton"]) == "fault"
    assert get("mask-indptr").told(["fa3"]) == "notice"
    assert get("fa-tree-mask-stride").told(["fa3"]) == "fault"
    assert get("graph-mask-buffer-size").told(["triton"]) == "notice"


@pytest.mark.parametrize("fix", [fix for fix in FIXES if fix.mend is None], ids=lambda fix: fix.id)
def test_a_fault_without_a_patch_says_what_to_do_instead(fix: Fix) -> None:
    with pytest.raises(PreconditionFailed, match="diag has no patch") as caught:
        fix.rewrite("text")
    assert caught.value.next == fix.do[0]
    assert caught.value.exit_code == 5


# --- releases as they are -----------------------------------------------------------------------------------------


@pytest.mark.wheel
@pytest.mark.parametrize("version", RELEASES)
def test_releases(version: str) -> None:
    said = {}
    for fix in FIXES:
        try:
            text = text_of(fix, version)
        except PreconditionFailed:
            continue
        found = fix.detect(text)
        said[fix.id] = found.state
        rows = text.split("\n")
        assert all(site.text == rows[site.line - 1] for site in found.sites)
        assert all(site.symbol.startswith(f"{fix.cls}.") for site in found.sites)
        assert found.why.endswith(".")
    assert said == KNOWN[version]


@pytest.mark.wheel
@pytest.mark.parametrize(("fault", "version"), LINES)
def test_the_lines_are_those_that_a_person_finds(fault: str, version: str) -> None:
    fix = get(fault)
    found = fix.detect(text_of(fix, version))
    assert found.state == "present"
    marked = [site.line for site in found.sites if site.source == "server"]
    assert set(LINES[fault, version]) <= set(marked)
    named = "\n".join(f"{site.line} {site.symbol}" for site in found.sites)
    assert all(re.search(rf"^{line} {fix.cls}\.\w+$", named, re.M) for line in LINES[fault, version])


# --- what people make of them: the answer stays -------------------------------------------------------------------

CASES = [
    ("mask-indptr-wave", "0.5.12"),
    ("mask-indptr-wave", "0.5.23"),
    ("mask-indptr-aiter-graph", "0.5.12"),
    ("mask-indptr-aiter-graph", "0.5.17"),
    ("fa-tree-mask-stride", "0.5.13"),
    ("xpu-tree-mask-stride", "0.5.23"),
    ("graph-mask-buffer-size", "0.4.3"),
    ("graph-mask-buffer-size", "0.5.21"),
    ("verify-width-fallback", "0.5.17"),
    ("verify-width-fallback", "0.5.23"),
]


@pytest.mark.wheel
@pytest.mark.parametrize(("fault", "version"), CASES)
def test_all_mutations_at_once(fault: str, version: str) -> None:
    fix = get(fault)
    text = text_of(fix, version)
    for number, seed in enumerate((1, 2)):
        mutations = [mutation for index, mutation in enumerate(MUTATIONS) if index % 2 == number]
        mutant = changed(text, fix.cls, *mutations, seed=seed)
        assert fix.detect(mutant).state == KNOWN[version][fault], fix.detect(mutant).why


@pytest.mark.wheel
@settings(max_examples=15, deadline=None)
@given(case=st.sampled_from(CASES), seed=st.integers(0, 10**6))
def test_mutated_releases(case: tuple[str, str], seed: int) -> None:
    fix = get(case[0])
    mutant = mutated(text_of(fix, case[1]), fix.cls, seed)
    assert fix.detect(mutant).state == KNOWN[case[1]][case[0]]


@settings(max_examples=60, deadline=None)
@given(fix=st.sampled_from(FIXES), text=st.text(max_size=200))
def test_never_raises(fix: Fix, text: str) -> None:
    assert fix.detect(text).state == "unknown"


@pytest.mark.wheel
@settings(max_examples=15, deadline=None)
@given(fix=st.sampled_from(FIXES), at=st.integers(0, 30_000), text=st.text(alphabet="ab():=\n #'x", max_size=8))
def test_damage_is_never_an_exception(fix: Fix, at: int, text: str) -> None:
    whole = text_of(fix, "0.5.12")
    fix.detect(whole[:at] + text + whole[at:])


# --- mended, wholly and in part -----------------------------------------------------------------------------------

OWN = "spec_info.draft_token_num"


def replaced(text: str, old: str, new: str, count: int = -1) -> str:
    assert old in text
    return text.replace(old, new, count)


@pytest.mark.wheel
@pytest.mark.parametrize("fault", ["fa-tree-mask-stride", "xpu-tree-mask-stride"])
def test_a_stride_of_the_verify_step_is_fixed(fault: str) -> None:
    fix = get(fault)
    text = text_of(fix, "0.5.12")
    head, tail = text.split("    def init_forward_metadata(", 1)
    assert fix.detect(f"{head}    def init_forward_metadata({tail.replace(SETTING, f'forward_batch.{OWN}')}").state == (
        "fixed"
    )


SETTING = "self.speculative_num_draft_tokens"


@pytest.mark.wheel
def test_one_of_two_reads_mended_is_partly_fixed() -> None:
    fix = get("fa-tree-mask-stride")
    head, tail = text_of(fix, "0.5.12").split("    def init_cuda_graph_state(", 1)
    found = fix.detect(f"{head.replace(SETTING, f'forward_batch.{OWN}')}    def init_cuda_graph_state({tail}")
    assert found.state == "unknown"
    assert found.why.startswith("Partly fixed: init_forward_metadata (line")


@pytest.mark.wheel
def test_one_width_of_an_index_is_not_enough() -> None:
    """The rows are as long as the verify step, the requests still as the setting."""
    fix = get("xpu-tree-mask-stride")
    text = replaced(
        text_of(fix, "0.5.12"),
        f"cols.repeat_interleave({SETTING}, dim=0)",
        f"cols.repeat_interleave(forward_batch.{OWN}, dim=0)",
    )
    assert fix.detect(text).state == "present"


@pytest.mark.wheel
def test_a_read_at_an_index_from_elsewhere_cannot_be_told() -> None:
    fix = get("xpu-tree-mask-stride")
    text = replaced(
        text_of(fix, "0.5.12"),
        "mask_extraction_indices = (",
        f"mask_extraction_indices = rows(bs)\n{' ' * 16}_ = (",
    )
    text = re.sub(r"\]\.view\(\s+-1, self\.speculative_num_draft_tokens\s+\)", "]", text)
    found = fix.detect(text)
    assert found.state == "unknown"
    assert "not recognised which width" in found.why


@pytest.mark.wheel
def test_the_graph_path_of_aiter_mended_and_half_mended() -> None:
    fix = get("mask-indptr-aiter-graph")
    text = text_of(fix, "0.5.12")
    row = "            max_q_len = self.num_draft_tokens\n"
    assert text.count(row) == 2
    mended = f"            max_q_len = {OWN}\n"
    assert fix.detect(text.replace(row, mended)).state == "fixed"
    found = fix.detect(text.replace(row, mended, 1))
    assert found.state == "unknown"
    assert "Partly fixed" in found.why


@pytest.mark.wheel
def test_the_eager_path_of_aiter_does_not_count_as_mended() -> None:
    """It is right in every release; the graph path is what is judged."""
    found = get("mask-indptr-aiter-graph").detect(text_of(get("mask-indptr-aiter-graph"), "0.5.13"))
    assert found.state == "present"
    assert {site.source for site in found.sites if site.symbol.endswith("init_forward_metadata")} == {"verify"}


@pytest.mark.wheel
@pytest.mark.parametrize(("new", "state"), [("W", "unknown"), (f"self.{OWN}", "fixed"), ("self.widest", "unknown")])
def test_a_verify_mask_of_another_width(new: str, state: str) -> None:
    fix = get("graph-mask-buffer-size")
    text = re.sub(r"(max_context_len,\s+num_draft_tokens=)self\.num_draft_tokens", rf"\1{new}", text_of(fix, "0.5.21"))
    assert text != text_of(fix, "0.5.21")
    assert fix.detect(text).state == state


@pytest.mark.wheel
def test_a_mask_buffer_of_a_size_from_elsewhere_cannot_be_told() -> None:
    fix = get("graph-mask-buffer-size")
    old = "(max_num_tokens * self.max_context_len),\n                dtype=torch.uint8"
    text = replaced(text_of(fix, "0.5.12"), old, "(self.widest(max_bs)),\n                dtype=torch.uint8")
    found = fix.detect(text)
    assert found.state == "unknown"
    assert "the size is of max_bs, widest" in found.why


@pytest.mark.wheel
@pytest.mark.parametrize(
    ("new", "state"),
    [
        (f"return {OWN} if spec_info is not None else self.target_verify_num_tokens_per_req", "fixed"),
        ('return getattr(spec_info, "draft_token_num", None) or self.target_verify_num_tokens_per_req', "fixed"),
        ('raise ValueError("num_tokens_per_req is not set")', "fixed"),
    ],
)
def test_a_fallback_that_looks_or_refuses(new: str, state: str) -> None:
    fix = get("verify-width-fallback")
    text = replaced(text_of(fix, "0.5.23"), "return self.target_verify_num_tokens_per_req", new)
    assert fix.detect(text).state == state


# --- classes made up for what no release of the default set has ---------------------------------------------------


@pytest.mark.parametrize("fix", [fix for fix in FIXES if "stride" in fix.id or "aiter" in fix.id], ids=lambda f: f.id)
def test_a_backend_without_a_mask(fix: Fix) -> None:
    branch = "if m.is_target_verify():\n            custom_mask = mask_indptr = None"
    text = f"class {fix.cls}:\n    def f(self, m):\n        {branch}\n"
    assert fix.detect(text).state == "not_applicable"
    assert fix.detect(text.replace("is_target_verify", "is_decode")).state == "not_applicable"
    assert fix.detect(text.replace("class ", "class Other")).state == "unknown"
