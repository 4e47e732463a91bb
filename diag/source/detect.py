"""Is the fault `mask-indptr` in this source? A pure function of the text of an attention backend of SGLang.

The fault: in the target-verify branches of the backend's class the offsets of the flat tree mask (`mask_indptr`),
the query offsets and the longest extend length are computed from the server setting `speculative_num_draft_tokens`,
although a verify step brings `draft_token_num` rows a request, and a tree of a given budget brings budget + 1. The
Triton backend had it first; the wave backend is a copy. How a width is followed: `diag.source.flow`.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from diag.source.flow import Source
from diag.source.syntax import Unreadable, split_lines
from diag.source.verify_width import CLASS, Role, Survey, Use, survey

BOM = "\ufeff"

State = Literal["present", "fixed", "not_applicable", "unknown"]

_OFFSETS: tuple[Role, ...] = ("qo_indptr", "seq_mask_len", "max_extend_len")


@dataclass(frozen=True)
class Site:
    """One line that matters.

    symbol: "Class.method"; line: counted from 1; text: the line exactly as it is, without its end;
    role: what the width on this line ends in, or `definition` for the line that reads the server setting;
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


def detect(text: str, name: str = CLASS) -> Detection:
    """What class `name` says. Never raises: what cannot be decided is `unknown`, with the reason in `why`."""
    try:
        found = survey(text.removeprefix(BOM), name)
    except Unreadable as error:
        return Detection("unknown", (), f"{error}.")
    return judge(found, text)


def judge(found: Survey, text: str) -> Detection:
    """The verdict over a survey of `text`."""
    lines = split_lines(text)
    sites = _sites(found, lines)
    if not found.mentions_verify:
        return Detection("not_applicable", (), f"{found.over.name} has no target-verify branch in this release.")
    doubt = _doubt(found)
    if doubt:
        return Detection("unknown", sites, doubt)
    wrong = [use for use in found.uses if use.from_setting]
    if not wrong:
        return Detection("fixed", sites, "Every offset of the verify step uses the verify step's own width.")
    if len(wrong) == len(found.uses):
        return Detection(
            "present", sites, f"{places(wrong)} take the width of the verify step from the server setting."
        )
    right = [use for use in found.uses if not use.from_setting]
    return Detection(
        "unknown",
        sites,
        f"Partly fixed: {places(right)} use the verify step's own width, "
        f"but {places(wrong)} still use the server setting.",
    )


def _doubt(found: Survey) -> str:
    """Why the uses found are not enough for a verdict, or "" when they are."""
    if not found.uses:
        return "There is a target-verify branch, but no offset computation was recognised in it."
    strange = [use for use in found.uses if not use.recognised]
    if strange:
        return f"{places(strange)}: it was not recognised where the width comes from."
    missing = [role for role in _OFFSETS if all(use.role != role for use in found.uses)]
    if missing:
        return f"No computation of {', '.join(missing)} was recognised in the target-verify branches."
    roles: dict[str, set[Role]] = {}
    for use in found.uses:
        roles.setdefault(use.method, set()).add(use.role)
    for method, seen in roles.items():
        if ("qo_indptr" in seen) != ("seq_mask_len" in seen):
            lacking = "seq_mask_len" if "qo_indptr" in seen else "qo_indptr"
            return f"{found.over.name}.{method}: no computation of {lacking} was recognised beside the other offsets."
    return ""


def places(uses: Sequence[Use]) -> str:
    """`init_forward_metadata (lines 364, 365)` for each method, in order of lines."""
    lines: dict[str, list[int]] = {}
    for use in uses:
        line = use.node.lineno
        if line not in lines.setdefault(use.method, []):
            lines[use.method].append(line)
    return ", ".join(
        f"{method} (line{'s' if len(at) > 1 else ''} {', '.join(map(str, at))})" for method, at in lines.items()
    )


def _sites(found: Survey, lines: list[str]) -> tuple[Site, ...]:
    """One site for each line and role, the definitions first."""
    sites: dict[tuple[int, Role], Site] = {}

    def add(method: str, node: ast.expr, role: Role, source: Source) -> None:
        line = node.lineno
        sites.setdefault((line, role), Site(f"{found.over.name}.{method}", line, lines[line - 1], role, source))

    for method, node in found.over.definitions:
        add(method, node, "definition", "server")
    for use in found.uses:
        add(use.method, use.node, use.role, "server" if use.from_setting else "verify")
    return tuple(sites.values())
