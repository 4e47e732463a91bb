"""The fix for `mask-indptr`: let every verify step use its own `draft_token_num`.

In each target-verify branch one local is computed before its first use, and the expressions that took the server
setting take that local. Everything else in the file stays as it is, to the byte; draft-extend branches, which
rightly use the server setting, are not touched.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from diag.errors import FileNotAsExpected
from diag.fixes.entry import Fix
from diag.source import syntax
from diag.source.detect import BOM, detect, judge
from diag.source.flow import Step
from diag.source.syntax import Unreadable
from diag.source.verify_width import CLASS, Survey, Use, survey

COMMENT = "# The width of this verify step: a draft tree need not be as wide as the server setting."
_LINE_END = re.compile("\r\n|\r|\n")


@dataclass(frozen=True)
class _Edit:
    """Replace text[start:end] by `new`."""

    start: int
    end: int
    new: str


def rewrite(text: str, name: str = CLASS) -> str:
    """The mended source of class `name`. Raises FileNotAsExpected for anything in which the fault is not present,
    and for a form of it that this fix cannot mend; `detect` says `fixed` of what is returned."""
    body = text.removeprefix(BOM)
    try:
        found = survey(body, name)
    except Unreadable as error:
        raise _refused(f"{error}.") from None
    detection = judge(found, body)
    if detection.state != "present":
        raise _refused(f"{detection.state}: {detection.why}")
    mended = _apply(body, [edit for group in _groups(found) for edit in _edits(body, found, group)])
    after = detect(mended, name)
    if after.state != "fixed":
        raise _refused(f"after the rewrite it would be {after.state}: {after.why}")
    return text[: len(text) - len(body)] + mended


def _refused(why: str) -> FileNotAsExpected:
    return FileNotAsExpected(
        "The source is not what the fix was made for.",
        details=[why],
        next="Look at the lines with `diag probe source`; mend a file that was edited by hand by hand.",
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
    raise _refused(f"line {use.node.lineno} of {found.over.name}.{use.method} serves other forward modes too")


def _edits(text: str, found: Survey, group: list[Use]) -> Iterable[_Edit]:
    tree = found.tree
    first = min((_anchor(use, found) for use in group), key=lambda step: step.statement.lineno)
    method = found.over.methods[group[0].method]
    local = _free_name(method, found)
    for use in group:
        if not isinstance(use.node, ast.Name | ast.Attribute):
            raise _refused(f"line {use.node.lineno} takes the setting in an unusual form")
        yield _Edit(*tree.span(use.node), local)
    number = first.statement.lineno
    indent = text[tree.line_start(number) : tree.span(first.statement)[0]]
    if indent.strip():
        raise _refused(f"line {number} begins with something else: there is no place for a statement before it")
    line = _above_comments(text, tree, number, indent)
    end = _LINE_END.search(text)
    setting = text[slice(*tree.span(group[0].node))]
    new = _statement(local, _verify_input(first, method, found), setting, indent, end.group() if end else "\n")
    yield _Edit(tree.line_start(line), tree.line_start(line), new)


def _statement(local: str, spec: str, setting: str, indent: str, end: str) -> str:
    deeper = indent + ("\t" if indent.endswith("\t") else "    ")
    lines = (
        f"{indent}{COMMENT}",
        f"{indent}{local} = (",
        f'{deeper}getattr({spec}, "draft_token_num", None) or {setting}',
        f"{indent})",
    )
    return "".join(line + end for line in lines)


def _verify_input(step: Step, method: ast.FunctionDef, found: Survey) -> str:
    """How the verify input is called where the new statement goes; it may be None there."""
    if step.spec_names:
        return "spec_info" if "spec_info" in step.spec_names else step.spec_names[0]
    if any(param.arg == "forward_batch" for param in syntax.parameters(method)):
        return "forward_batch.spec_info"
    raise _refused(f"{found.over.name}.{method.name} has no name for the verify input (spec_info)")


def _free_name(method: ast.FunctionDef, found: Survey) -> str:
    taken = set(_names(method))
    names = ("draft_token_num", "verify_draft_token_num", "this_verify_draft_token_num")
    for name in names:
        if name not in taken:
            return name
    raise _refused(f"{found.over.name}.{method.name} already uses the names {', '.join(names)}")


def _names(method: ast.FunctionDef) -> Iterator[str]:
    """Every name in it: variables, attributes, parameters, keywords."""
    for node in ast.walk(method):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.arg | ast.keyword) and node.arg is not None:
            yield node.arg


def _above_comments(text: str, tree: syntax.Tree, line: int, indent: str) -> int:
    """The first of the comment lines that belong to the statement on `line`, or that line itself."""
    while line > 1 and text[tree.line_start(line - 1) : tree.line_start(line)].startswith(f"{indent}#"):
        line -= 1
    return line


def _apply(text: str, edits: list[_Edit]) -> str:
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end), reverse=True):
        text = text[: edit.start] + edit.new + text[edit.end :]
    return text


FIX = Fix(
    id="mask-indptr",
    title="Triton backend: tree-mask offsets from the server setting instead of the verify step's own width",
    story=(
        "In speculative decoding the target model checks a whole draft tree in one forward pass, under a mask that "
        "says which draft token may see which. The masks of all requests lie one after the other in a flat buffer; "
        "`mask_indptr` holds where each begins, `qo_indptr` where each request's rows begin. Both must be computed "
        "with the number of rows that this verify step really has, `draft_token_num`. SGLang 0.4.3 to 0.5.16 "
        "computes them with the server setting `speculative_num_draft_tokens`. A tree of budget 16 has 17 rows; "
        "with a setting of 8 every request reads its mask at a wrong place and rows 9 to 17 are never computed, so "
        "the text is garbled without any error. The fix takes the width from the verify input, in the eager and "
        "in the CUDA-graph path, and falls back to the setting where there is none (graph capture)."
    ),
    why=(
        "The text is garbled and nothing is logged. The fault in the source does no harm while the two numbers are "
        "equal, so a server can run well for months and break when one flag changes. EAGLE, NGRAM and DFLASH keep "
        "them equal; a draft tree whose budget + 1 is not the block size does not."
    ),
    do=(
        "Look at what the running server says: `diag probe host NAME` prints verify-width-mismatch where it bites.",
        "See the patch: diag fix apply NAME mask-indptr --diff",
        "Apply it, restart the server, ask again: diag fix apply NAME mask-indptr, then diag bisect NAME --check",
        "Without a patch: lower the tree budget to speculative_num_draft_tokens - 1, or install SGLang 0.5.17 or "
        "newer. Raising the setting instead can break the draft model's own steps, which take the same setting.",
    ),
    package="sglang",
    file="sglang/srt/layers/attention/triton_backend.py",
    cls=CLASS,
    affected="0.4.3 to 0.5.16",
    fixed_in="0.5.17",
    backends=("triton",),
    severity="fault",
    detect=detect,
    mend=rewrite,
    oracle=True,
)
