"""Is the fault in the source? On real releases, and on what people make of them."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from diag.source.detect import Detection, detect
from diag.source.listing import excerpts, numbered
from diag.source.verify_width import CLASS
from tests.source.mutations import MUTATIONS, Mutation, branched, changed, mutated, only_class, renamed
from tests.source.releases import BEFORE, DEFINED, FIXED, LINES, PRESENT, source

pytestmark = pytest.mark.wheel

EAGER = "TritonAttnBackend.init_forward_metadata"


def state(text: str) -> str:
    return detect(text).state


def lines(detection: Detection, role: str) -> tuple[int, ...]:
    return tuple(site.line for site in detection.sites if site.role == role)


# --- releases as they are ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [*PRESENT, *FIXED])
def test_releases(version: str) -> None:
    found = detect(source(version))
    assert found.state == ("present" if version in PRESENT else "fixed")
    assert tuple(lines(found, role) for role in ("qo_indptr", "seq_mask_len", "max_extend_len")) == LINES[version]
    assert lines(found, "definition") == (DEFINED[version],)
    text = source(version).split("\n")
    for site in found.sites:
        assert site.text == text[site.line - 1]
        assert site.source == ("verify" if version in FIXED and site.role != "definition" else "server")


def test_sites_name_their_methods() -> None:
    symbols = {site.symbol.partition(".")[2] for site in detect(source("0.5.12")).sites}
    assert symbols == {
        "__init__",
        "init_forward_metadata",
        "init_forward_metadata_capture_cuda_graph",
        "init_forward_metadata_replay_cuda_graph",
    }
    symbols = {site.symbol.partition(".")[2] for site in detect(source("0.5.13")).sites}
    assert symbols == {
        "__init__",
        "init_forward_metadata",
        "_update_target_verify_buffers",
        "_build_cuda_graph_forward_metadata",
    }


def test_before_target_verify_it_does_not_apply() -> None:
    found = detect(source(BEFORE))
    assert found.state == "not_applicable"
    assert found.sites == ()


# --- what people make of them: the answer stays ------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.5.9", "0.5.12", "0.5.16", "0.5.21"])
def test_formatting_names_and_branches_do_not_matter(version: str) -> None:
    text = source(version)
    expected = state(text)
    for mutant in (changed(text, CLASS, branched, renamed), "\ufeff" + text.replace("\n", "\r\n").rstrip("\r\n")):
        assert mutant != text
        assert state(mutant) == expected


@pytest.mark.parametrize("version", ["0.4.3", "0.5.13", "0.5.17"])
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_each_mutation_alone(mutation: Mutation, version: str) -> None:
    mutant = changed(source(version), CLASS, mutation, seed=1)
    assert mutant != changed(source(version), CLASS)
    assert state(mutant) == state(source(version))


@settings(max_examples=25, deadline=None)
@given(version=st.sampled_from([*PRESENT, *FIXED]), seed=st.integers(0, 10**6))
def test_mutated_releases(version: str, seed: int) -> None:
    assert state(mutated(source(version), CLASS, seed)) == state(source(version))


def test_the_setting_under_another_name() -> None:
    text = source("0.5.12")
    assert state(re.sub(r"self\.num_draft_tokens", "self.verify_window", text)) == "present"
    direct = "get_global_server_args().speculative_num_draft_tokens"
    before, inside, after = only_class(text)
    inside = inside.replace("self.num_draft_tokens =", "self.n =").replace("self.num_draft_tokens", direct)
    assert state(before + inside + after) == "present"


def test_an_alias_before_the_branches() -> None:
    text = source("0.5.12").replace("self.num_draft_tokens", "width").replace("width =", "self.num_draft_tokens =", 1)
    text = re.sub(
        r"(\n        )(if (forward_batch\.)?forward_mode\.is_decode)", r"\1width = self.num_draft_tokens\1\2", text
    )
    found = detect(text)
    assert found.state == "present"
    assert len([site for site in found.sites if site.role != "definition"]) == 12


# --- mended in other ways ----------------------------------------------------------------------------------

WAYS = {
    "attribute": "spec_info.draft_token_num",
    "default": 'getattr(spec_info, "draft_token_num", self.num_draft_tokens)',
    "choice": "(spec_info.draft_token_num if spec_info is not None else self.num_draft_tokens)",
    "or": '(getattr(spec_info, "draft_token_num", None) or self.num_draft_tokens)',
    "int": "int(spec_info.draft_token_num)",
    "field of the batch": "forward_batch.spec_info.draft_token_num",
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("version", ["0.4.8"])
def test_other_mends_count_as_fixed(way: str, version: str) -> None:
    before, inside, after = only_class(source(version))
    head, _, tail = inside.partition("self.num_draft_tokens =")
    assert state(
        before + head + "self.num_draft_tokens =" + tail.replace("self.num_draft_tokens", WAYS[way]) + after
    ) == ("fixed")


def test_hasattr_as_a_fork_does_it() -> None:
    before, inside, after = only_class(source("0.5.12"))
    inside = re.sub(
        r"\n( +)(elif (?:forward_batch\.)?forward_mode\.is_target_verify\(\):)",
        r"\n\1\2\n\1    if hasattr(spec_info, 'draft_token_num'):\n\1        width = spec_info.draft_token_num\n"
        r"\1    else:\n\1        width = self.num_draft_tokens",
        inside,
    )
    head, _, tail = inside.partition("self.num_draft_tokens =")
    tail = tail.replace("self.num_draft_tokens", "width").replace(
        "= width\n            bs", "= self.num_draft_tokens\n            bs"
    )
    tail = tail.replace("        width = width", "        width = self.num_draft_tokens")
    assert state(before + head + "self.num_draft_tokens =" + tail + after) == "fixed"


def test_partly_fixed_is_said() -> None:
    text = source("0.5.12")
    row = "            seq_mask_len = self.num_draft_tokens * (seq_lens + self.num_draft_tokens)\n"
    assert text.count(row) == 2
    found = detect(text.replace(row, row.replace("self.num_draft_tokens", "spec_info.draft_token_num"), 1))
    assert found.state == "unknown"
    assert found.why.startswith("Partly fixed: init_forward_metadata_capture_cuda_graph (line 685)")
    assert {site.source for site in found.sites if site.line == 685} == {"verify"}


def test_the_half_fix_that_is_right_for_one_request() -> None:
    """qo_indptr mended, mask_indptr not: garbled from the second request on."""
    text = source("0.5.12")
    text = text.replace("(1 + bs) * self.num_draft_tokens", "(1 + bs) * spec_info.draft_token_num")
    text = text.replace("step=self.num_draft_tokens", "step=spec_info.draft_token_num")
    found = detect(text)
    assert found.state == "unknown"
    assert "still use the server setting" in found.why


def test_one_factor_of_the_product_is_not_enough() -> None:
    text = source("0.5.17").replace(
        "seq_mask_len = num_draft_tokens * (seq_lens + num_draft_tokens)",
        "seq_mask_len = num_draft_tokens * (seq_lens + self.num_draft_tokens)",
    )
    assert state(text) == "unknown"


def test_an_assignment_that_undoes_the_mend() -> None:
    text = source("0.5.17")
    row = "                num_draft_tokens = int(spec_info.draft_token_num)\n"
    assert row in text
    assert state(text.replace(row, row + "            num_draft_tokens = self.num_draft_tokens\n", 1)) == "unknown"


# --- what cannot be told -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "class TritonAttnBackend is not in this file"),
        ("class Other:\n    pass\n", "class TritonAttnBackend is not in this file"),
        ("def broken(:\n", "not readable as Python"),
        ("class TritonAttnBackend:\n    pass\n\nclass TritonAttnBackend:\n    pass\n", "is defined 2 times"),
        (
            "class TritonAttnBackend:\n    def f(self, m):\n        if m.is_target_verify():\n            pass\n",
            "no offset computation was recognised",
        ),
    ],
)
def test_unknown(text: str, why: str) -> None:
    found = detect(text)
    assert found.state == "unknown"
    assert why in found.why


def test_a_width_of_unknown_origin() -> None:
    before, inside, after = only_class(source("0.5.12"))
    head, _, tail = inside.partition("self.num_draft_tokens =")
    tail = tail.replace("self.num_draft_tokens", "self.helper.width(bs)")
    found = detect(before + head + "self.num_draft_tokens =" + tail + after)
    assert found.state == "unknown"
    assert "not recognised" in found.why


def test_an_offset_that_went_elsewhere() -> None:
    text = source("0.5.12").replace(
        "seq_mask_len = self.num_draft_tokens * (seq_lens + self.num_draft_tokens)", "seq_mask_len = f(bs)"
    )
    found = detect(text)
    assert found.state == "unknown"
    assert "no computation of seq_mask_len" in found.why


@settings(max_examples=60, deadline=None)
@example("\U00031350")
@example("x = '\ud800'")
@given(st.text(max_size=200) | st.text(alphabet="class TritonAttnBackend:\n def(self)=1,'\"", max_size=120))
def test_never_raises(text: str) -> None:
    assert state(text) == "unknown"


@settings(max_examples=20, deadline=None)
@given(at=st.integers(0, 20_000), text=st.text(alphabet="ab():=\n #'x", max_size=8))
def test_damage_is_never_an_exception(at: int, text: str) -> None:
    whole = source("0.4.3")
    at = min(at, len(whole))
    assert state(whole[:at] + text + whole[at:]) in ("present", "unknown")


# --- showing the lines -------------------------------------------------------------------------------------


def test_excerpts() -> None:
    text = source("0.5.12")
    found = excerpts(text, detect(text).sites, context=1)
    eager = [excerpt for excerpt in found if excerpt.symbol == EAGER]
    assert [(excerpt.lines[0].number, excerpt.lines[-1].number) for excerpt in eager] == [
        (363, 366),
        (403, 406),
        (409, 411),
    ]
    assert numbered(eager[2]) == [
        "  409 |             mask_indptr = mask_indptr[: bs + 1]",
        "> 410 |             max_extend_len = self.num_draft_tokens",
        "  411 |             num_kv_splits = None",
    ]
    rows = text.split("\n")
    assert all(line.text == rows[line.number - 1] for excerpt in found for line in excerpt.lines)


def test_excerpts_at_the_ends_of_a_file() -> None:
    text = source("0.4.3")
    first = detect(text).sites[0]
    (excerpt,) = excerpts(text, [first], context=10_000)
    assert (excerpt.lines[0].number, len(excerpt.lines)) == (1, len(text.split("\n")))
