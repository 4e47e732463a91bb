"""What the backend does when a verify input leaves `num_tokens_per_req` unset. A pure function of a file's text.

From 0.5.21 on the Triton backend takes the width from `num_tokens_per_req`, whose class default is -1. An input that
sets `draft_token_num` alone, as every fork did until then, gets the width the graph was captured with, and no message.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from diag.source.detect import BOM, Detection, Site
from diag.source.flow import Class
from diag.source.syntax import Unreadable, is_self, split_lines, walk
from diag.source.verify_width import Survey, survey

PER_REQUEST = frozenset({"num_tokens_per_req", "num_tokens_per_batch"})
OWN = frozenset({"draft_token_num"})


def detect(text: str, name: str) -> Detection:
    """present: the width falls back to the server's without looking at draft_token_num. Never raises."""
    body = text.removeprefix(BOM)
    try:
        by_request, by_own = survey(body, name, PER_REQUEST), survey(body, name, OWN)
    except Unreadable as error:
        return Detection("unknown", (), f"{error}.")
    if not by_request.mentions_verify:
        return Detection("not_applicable", (), f"{name} has no target-verify branch in this release.")
    if not by_request.uses:
        return Detection("unknown", (), "There is a target-verify branch, but no offset was recognised in it.")
    ways = _ways(by_request)
    if not any("verify" in way for way in ways):
        return Detection("not_applicable", (), "The width of a verify step is not taken from num_tokens_per_req here.")
    sites = tuple(_sites(by_request.over, split_lines(text)))
    if any("verify" in way for way in _ways(by_own)):
        return Detection("fixed", sites, "Where num_tokens_per_req is not set, draft_token_num is used.")
    if not any("server" in way for way in ways):
        return Detection("fixed", sites, "There is no fallback to the server setting.")
    where = ", ".join(f"{site.symbol} (line {site.line})" for site in sites) or name
    return Detection(
        "present",
        sites,
        f"{where}: a verify input without num_tokens_per_req gets the server's width, whatever its draft_token_num is.",
    )


def _ways(found: Survey) -> set[frozenset[str]]:
    return {frozenset(way) for use in found.uses for way in use.sources}


def _sites(over: Class, lines: list[str]) -> Iterator[Site]:
    """Where the server's width is chosen because num_tokens_per_req says nothing."""
    seen = set()
    for name, method in over.methods.items():
        for node in walk(method):
            for chosen in _chosen(node):
                if _is_server(chosen, over) and chosen.lineno not in seen:
                    seen.add(chosen.lineno)
                    line = chosen.lineno
                    yield Site(f"{over.name}.{name}", line, lines[line - 1], "fallback", "server")


def _chosen(node: ast.AST) -> Iterator[ast.expr]:
    """Expressions that are returned, assigned or taken when a test of num_tokens_per_req says so."""
    if isinstance(node, ast.If) and _asks(node.test):
        for statement in (*node.body, *node.orelse):
            if isinstance(statement, ast.Return | ast.Assign) and statement.value is not None:
                yield statement.value
    elif isinstance(node, ast.IfExp) and _asks(node.test):
        yield from (node.body, node.orelse)
    elif isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or) and _asks(node.values[0]):
        yield from node.values[1:]


def _asks(test: ast.expr) -> bool:
    for part in walk(test):
        if isinstance(part, ast.Attribute) and part.attr in PER_REQUEST and not is_self(part.value):
            return True
        if isinstance(part, ast.Constant) and part.value in PER_REQUEST:
            return True
    return False


def _is_server(node: ast.expr, over: Class) -> bool:
    return isinstance(node, ast.Attribute) and is_self(node.value) and "server" in over.attributes.get(node.attr, ())
