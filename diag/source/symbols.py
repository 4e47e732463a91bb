"""Classes, functions and assigned names of a source by their dotted names, with the lines that they take. Pure."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass

from diag.source import syntax


@dataclass(frozen=True)
class Symbol:
    """name: dotted, `Class.method`; first, last: lines from 1, decorators included."""

    name: str
    first: int
    last: int


def symbols(text: str) -> list[Symbol]:
    """Every one, in the order of the file. Raises syntax.Unreadable."""
    return list(_inside(syntax.parse(text).module, ""))


def find(text: str, name: str) -> list[Symbol]:
    """The symbols of that name: several where the file defines it more than once. Raises syntax.Unreadable."""
    return [symbol for symbol in symbols(text) if symbol.name == name]


def near(text: str, name: str, limit: int = 5) -> list[str]:
    """Names like it: the same last part anywhere, then those that are spelled alike. Raises syntax.Unreadable."""
    names = list(dict.fromkeys(symbol.name for symbol in symbols(text)))
    last = name.rpartition(".")[2]
    same = [each for each in names if each.rpartition(".")[2] == last]
    alike = difflib.get_close_matches(name, names, n=limit, cutoff=0.5)
    ends = {each.rpartition(".")[2]: each for each in names}
    alike += [ends[each] for each in difflib.get_close_matches(last, list(ends), n=limit, cutoff=0.7)]
    return list(dict.fromkeys(same + alike))[:limit]


def _inside(node: ast.AST, prefix: str) -> Iterator[Symbol]:
    for child in syntax.definitions(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
            yield Symbol(prefix + child.name, first, child.end_lineno or child.lineno)
            yield from _inside(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.Assign | ast.AnnAssign) and not isinstance(node, ast.FunctionDef):
            targets = child.targets if isinstance(child, ast.Assign) else [child.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    yield Symbol(prefix + target.id, child.lineno, child.end_lineno or child.lineno)
