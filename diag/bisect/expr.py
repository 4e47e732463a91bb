"""Derived factors in one line: `budget + 1 != block_size`. Data, not code.

Numbers, strings, true and false, names, + - * // %, comparisons (chains too), and / or / not, parentheses.
Nothing is called, indexed or looked up elsewhere, so an expression can do nothing but have a value.

Over records, as playbooks have them, names may be of two words (`probe.faults`), which are one name here and nothing
that is looked up, and values may be lists of strings: `"mask-indptr" in probe.faults`.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Value = bool | int | float | str
Recorded = Value | tuple[str, ...]

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_WITHIN: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.In: lambda one, several: one in several,
    ast.NotIn: lambda one, several: one not in several,
}
_CONSTANTS = {"true": True, "false": False}
_MAX_LENGTH = 500


class ExpressionError(ValueError):
    """The text is not an expression of this language; `column` is 1-based, where known."""

    def __init__(self, message: str, column: int = 1) -> None:
        super().__init__(message)
        self.column = column


class CannotTell(Exception):
    """The value is not known, because `name` is not."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(frozen=True)
class Expression:
    """A parsed expression. `names`: what it depends on."""

    text: str
    names: frozenset[str]
    _tree: ast.expr = field(compare=False)

    def value(self, names: Mapping[str, Recorded]) -> Value:
        """Raises CannotTell for a missing name or values that do not go together (a number and a string)."""
        value: Value = _value(self._tree, names)
        return value

    def holds(self, names: Mapping[str, Recorded]) -> bool:
        return bool(self.value(names))

    def tells(self, names: Mapping[str, Recorded]) -> bool | None:
        """The same, or None where it cannot be told from these values."""
        try:
            return self.holds(names)
        except CannotTell:
            return None


def parse(text: str, *, records: bool = False) -> Expression:
    """Raises ExpressionError, which says what is not allowed and where. records: names of two words, and `in`."""
    if len(text) > _MAX_LENGTH:
        raise ExpressionError(f"longer than {_MAX_LENGTH} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        column = getattr(error, "offset", None) or 1
        raise ExpressionError(f"not an expression: {getattr(error, 'msg', error)}", column) from None
    names: set[str] = set()
    _check(tree, names, records)
    return Expression(text.strip(), frozenset(names), tree)


def _check(node: ast.AST, names: set[str], records: bool) -> None:
    match node:
        case ast.Constant(value=bool() | int() | float() | str()):
            pass
        case ast.Name(id=name):
            if name not in _CONSTANTS:
                names.add(name)
        case ast.Attribute(value=ast.Name(id=first), attr=second) if records:
            names.add(f"{first}.{second}")
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _BINARY:
            _check(left, names, records)
            _check(right, names, records)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            _check(operand, names, records)
        case ast.BoolOp(values=values):
            for value in values:
                _check(value, names, records)
        case ast.Compare(left=left, ops=ops, comparators=others) if all(_compares(op, records) for op in ops):
            for value in (left, *others):
                _check(value, names, records)
        case _:
            column = getattr(node, "col_offset", 0) + 1
            raise ExpressionError(
                f"{type(node).__name__} is not allowed; use names, numbers, + - * // %, comparisons, and, or, not",
                column,
            )


def _compares(op: ast.cmpop, records: bool) -> bool:
    return type(op) in _COMPARE or (records and type(op) in _WITHIN)


def _value(node: ast.expr, names: Mapping[str, Recorded]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            if name in _CONSTANTS:
                return _CONSTANTS[name]
            if name not in names:
                raise CannotTell(name)
            return names[name]
        case ast.Attribute(value=ast.Name(id=first), attr=second):
            name = f"{first}.{second}"
            if name not in names:
                raise CannotTell(name)
            return names[name]
        case ast.BinOp(op=op, left=left, right=right):
            return _apply(_BINARY[type(op)], _value(left, names), _value(right, names))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand, names)
        case ast.UnaryOp(operand=operand):
            return _apply(operator.sub, 0, _value(operand, names))
        case ast.BoolOp(op=op, values=values):
            decide = any if isinstance(op, ast.Or) else all
            return decide(_value(value, names) for value in values)
        case ast.Compare(left=left, ops=ops, comparators=others):
            a = _value(left, names)
            for comparison, other in zip(ops, others):
                b = _value(other, names)
                if not _apply((_COMPARE | _WITHIN)[type(comparison)], a, b):
                    return False  # what follows in a chain does not matter then
                a = b
            return True
        case _:
            raise ExpressionError(f"{type(node).__name__} is not allowed")


def _apply(function: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    if function in _WITHIN.values():
        if not isinstance(b, tuple):
            raise CannotTell(f"{b!r} is not a list")
        return function(a, b)
    if isinstance(a, tuple) or isinstance(b, tuple):
        raise CannotTell("a list is asked with `in` alone")
    if isinstance(a, str) != isinstance(b, str) and function not in (operator.eq, operator.ne):
        raise CannotTell(f"{a!r} and {b!r} do not go together")
    if isinstance(a, str) and function in (operator.sub, operator.mul, operator.floordiv, operator.mod):
        raise CannotTell(f"{a!r} is not a number")
    try:
        return function(a, b)
    except ArithmeticError as error:  # division by zero; an integer too large to meet a float
        raise CannotTell(str(error)) from None
