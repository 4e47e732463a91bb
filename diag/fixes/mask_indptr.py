"""The fix for `mask-indptr`: let every verify step use its own `draft_token_num`.

In each target-verify branch one local is computed before its first use, and the expressions that took the server
setting take that local. Everything else in the file stays as it is, to the byte; draft-extend branches, which
rightly use the server setting, are not touched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import libcst as cst

from diag.errors import FileNotAsExpected
from diag.source.detect import detect, judge
from diag.source.verify_width import CLASS, Step, Survey, Unreadable, Use, survey

COMMENT = "# The width of this verify step: a draft tree need not be as wide as the server setting."
_BOM = "\ufeff"
_LINE_END = re.compile("\r\n|\r|\n")


@dataclass(frozen=True)
class _Edit:
    """Replace text[start:end] by `new`."""

    start: int
    end: int
    new: str


def rewrite(text: str) -> str:
    """The mended source. Raises FileNotAsExpected for anything in which the fault is not present, and for a form of
    it that this fix cannot mend; `detect` says `fixed` of what is returned."""
    body = text.removeprefix(_BOM)
    try:
        found = survey(body)
    except Unreadable as error:
        raise _refused(f"{error}.") from None
    detection = judge(found, body)
    if detection.state != "present":
        raise _refused(f"{detection.state}: {detection.why}")
    mended = _apply(body, [edit for group in _groups(found) for edit in _edits(body, found, group)])
    after = detect(mended)
    if after.state != "fixed":
        raise _refused(f"after the rewrite it would be {after.state}: {after.why}")
    return text[: len(text) - len(body)] + mended


def _refused(why: str) -> FileNotAsExpected:
    return FileNotAsExpected(
        "The source is not what the fix mask-indptr was made for.",
        details=[why],
        next="Look at the lines with `diag probe host`; mend a file that was edited by hand by hand.",
    )


def _groups(found: Survey) -> list[list[Use]]:
    """Uses that can share one local: those under the same suite of verify code."""
    groups: dict[int, list[Use]] = {}
    for use in found.uses:
        groups.setdefault(id(_anchor(use, found).suite), []).append(use)
    return list(groups.values())


def _anchor(use: Use, found: Survey) -> Step:
    """The outermost statement around a use that runs in target-verify mode alone."""
    for step in use.path:
        if id(step.statement) not in found.elsewhere:
            return step
    line = found.ranges[use.node].start.line
    raise _refused(f"line {line} of {CLASS}.{use.method} serves other forward modes too")


def _edits(text: str, found: Survey, group: list[Use]) -> Iterable[_Edit]:
    starts = _line_starts(text)
    first = min((_anchor(use, found) for use in group), key=lambda step: found.ranges[step.statement].start.line)
    if isinstance(first.statement, cst.SimpleStatementSuite):
        line = found.ranges[first.statement].start.line
        raise _refused(f"line {line} holds a whole branch: there is no place for a statement before it")
    method = found.methods[group[0].method]
    local = _free_name(method)
    for use in group:
        if not isinstance(use.node, cst.Name | cst.Attribute):
            raise _refused(f"line {found.ranges[use.node].start.line} takes the setting in an unusual form")
        place = found.ranges[use.node]
        yield _Edit(
            starts[place.start.line - 1] + place.start.column, starts[place.end.line - 1] + place.end.column, local
        )
    at = found.ranges[first.statement].start
    indent = text[starts[at.line - 1] : starts[at.line - 1] + at.column]
    if indent.strip():
        raise _refused(f"line {at.line} begins with another statement")
    line = _above_comments(text, starts, at.line, indent)
    end = _LINE_END.search(text)
    setting = cst.Module([]).code_for_node(group[0].node)
    new = _statement(local, _verify_input(first, method), setting, indent, end.group() if end else "\n")
    yield _Edit(starts[line - 1], starts[line - 1], new)


def _statement(local: str, spec: str, setting: str, indent: str, end: str) -> str:
    deeper = indent + ("\t" if indent.endswith("\t") else "    ")
    lines = (
        f"{indent}{COMMENT}",
        f"{indent}{local} = (",
        f'{deeper}getattr({spec}, "draft_token_num", None) or {setting}',
        f"{indent})",
    )
    return "".join(line + end for line in lines)


def _verify_input(step: Step, method: cst.FunctionDef) -> str:
    """How the verify input is called where the new statement goes; it may be None there."""
    if step.spec_names:
        return "spec_info" if "spec_info" in step.spec_names else step.spec_names[0]
    if any(param.name.value == "forward_batch" for param in method.params.params):
        return "forward_batch.spec_info"
    raise _refused(f"{CLASS}.{method.name.value} has no name for the verify input (spec_info)")


def _free_name(method: cst.FunctionDef) -> str:
    taken = {node.value for node in _names(method)}
    names = ("draft_token_num", "verify_draft_token_num", "this_verify_draft_token_num")
    for name in names:
        if name not in taken:
            return name
    raise _refused(f"{CLASS}.{method.name.value} already uses the names {', '.join(names)}")


def _names(node: cst.CSTNode) -> Iterable[cst.Name]:
    if isinstance(node, cst.Name):
        yield node
    for child in node.children:
        yield from _names(child)


def _above_comments(text: str, starts: list[int], line: int, indent: str) -> int:
    """The first of the comment lines that belong to the statement on `line`, or that line itself."""
    while line > 1 and text[starts[line - 2] : starts[line - 1]].startswith(f"{indent}#"):
        line -= 1
    return line


def _line_starts(text: str) -> list[int]:
    return [0, *(match.end() for match in _LINE_END.finditer(text))]


def _apply(text: str, edits: list[_Edit]) -> str:
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end), reverse=True):
        text = text[: edit.start] + edit.new + text[edit.end :]
    return text
