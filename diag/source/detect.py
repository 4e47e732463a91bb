"""Is the fault `mask-indptr` in this source? A pure function of the text of SGLang's `triton_backend.py`.

The fault: in the target-verify branches of class TritonAttnBackend the offsets of the flat tree mask
(`mask_indptr`), the query offsets and the longest extend length are computed from the server setting
`speculative_num_draft_tokens`, although a verify step brings `draft_token_num` rows a request, and a tree of a
given budget brings budget + 1. How a width is followed: `diag.source.verify_width`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import libcst as cst

from diag.source.verify_width import CLASS, Role, Source, Survey, Unreadable, Use, survey

FAULT = "mask-indptr"

State = Literal["present", "fixed", "not_applicable", "unknown"]

_OFFSETS: tuple[Role, ...] = ("qo_indptr", "seq_mask_len", "max_extend_len")


@dataclass(frozen=True)
class Site:
    """One line that matters.

    symbol: "TritonAttnBackend.method"; line: counted from 1; text: the line exactly as it is, without its end;
    role: which offset it computes, or `definition` for the line that reads the server setting;
    source: where the width on this line comes from.
    """

    symbol: str
    line: int
    text: str
    role: Role
    source: Source


@dataclass(frozen=True)
class Detection:
    """present: every offset of the verify step uses the server setting. fixed: every one uses the verify step's own
    width. not_applicable: there is no target verify. unknown: `why` says what was seen instead."""

    state: State
    sites: tuple[Site, ...]
    why: str


def detect(text: str) -> Detection:
    """What the source says. Never raises: what cannot be decided is `unknown`, with the reason in `why`."""
    try:
        found = survey(text.removeprefix("\ufeff"))
    except Unreadable as error:
        return Detection("unknown", (), f"{error}.")
    return judge(found, text)


def judge(found: Survey, text: str) -> Detection:
    """The verdict over a survey of `text`."""
    lines = split_lines(text)
    sites = _sites(found, lines)
    if not found.mentions_verify:
        return Detection("not_applicable", (), f"{CLASS} has no target-verify branch in this release.")
    doubt = _doubt(found)
    if doubt:
        return Detection("unknown", sites, doubt)
    wrong = [use for use in found.uses if use.from_setting]
    if not wrong:
        return Detection("fixed", sites, "Every offset of the verify step uses the verify step's own width.")
    if len(wrong) == len(found.uses):
        return Detection(
            "present", sites, f"{_places(wrong, found)} take the width of the verify step from the server setting."
        )
    right = [use for use in found.uses if not use.from_setting]
    return Detection(
        "unknown",
        sites,
        f"Partly fixed: {_places(right, found)} use the verify step's own width, "
        f"but {_places(wrong, found)} still use the server setting.",
    )


def _doubt(found: Survey) -> str:
    """Why the uses found are not enough for a verdict, or "" when they are."""
    if not found.uses:
        return "There is a target-verify branch, but no offset computation was recognised in it."
    strange = [use for use in found.uses if not use.recognised]
    if strange:
        return f"{_places(strange, found)}: it was not recognised where the width comes from."
    missing = [role for role in _OFFSETS if all(use.role != role for use in found.uses)]
    if missing:
        return f"No computation of {', '.join(missing)} was recognised in the target-verify branches."
    roles: dict[str, set[Role]] = {}
    for use in found.uses:
        roles.setdefault(use.method, set()).add(use.role)
    for method, seen in roles.items():
        if ("qo_indptr" in seen) != ("seq_mask_len" in seen):
            lacking = "seq_mask_len" if "qo_indptr" in seen else "qo_indptr"
            return f"{CLASS}.{method}: no computation of {lacking} was recognised beside the other offsets."
    return ""


def _places(uses: list[Use], found: Survey) -> str:
    """`init_forward_metadata (lines 364, 365)` for each method, in order of lines."""
    lines: dict[str, list[int]] = {}
    for use in uses:
        line = found.ranges[use.node].start.line
        if line not in lines.setdefault(use.method, []):
            lines[use.method].append(line)
    return ", ".join(
        f"{method} (line{'s' if len(at) > 1 else ''} {', '.join(map(str, at))})" for method, at in lines.items()
    )


def _sites(found: Survey, lines: list[str]) -> tuple[Site, ...]:
    """One site for each line and role, the definitions first."""
    sites: dict[tuple[int, Role], Site] = {}

    def add(method: str, node: cst.CSTNode, role: Role, source: Source) -> None:
        line = found.ranges[node].start.line
        sites.setdefault((line, role), Site(f"{CLASS}.{method}", line, lines[line - 1], role, source))

    for method, node in found.definitions:
        add(method, node, "definition", "server")
    for use in found.uses:
        add(use.method, use.node, use.role, "server" if use.from_setting else "verify")
    return tuple(sites.values())


def split_lines(text: str) -> list[str]:
    """Lines without their ends, where Python ends a line (and str.splitlines does so in more places)."""
    return re.split("\r\n|\r|\n", text)
