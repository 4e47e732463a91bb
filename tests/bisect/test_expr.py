"""The little language: a text is an expression of it or an ExpressionError, and it computes what Python computes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.bisect.expr import CannotTell, Expression, ExpressionError, Value, parse

NAMES = {"budget": 16, "topk": 4, "block_size": 8, "graph": True, "off": False, "rate": 0.5, "backend": "triton"}

WORDS = st.sampled_from(
    [
        *(*NAMES, "true", "false", "and", "or", "not", "if", "else", "lambda", "in", "is", "await", "print", "None"),
        *"()[]{}+-*/%<>=!,.:;'\"\\\n\t 0123456789eEjxf_@&|^~#\0",
        *("//", "**", "==", "!=", "<=", ">=", ":=", "''", "0x10", "1_000", "1e999", "f'{budget}'", "…", "\ud800", "ﬁ"),
    ]
)


def parsed(text: str) -> Expression | ExpressionError:
    try:
        return parse(text)
    except ExpressionError as error:
        return error


@given(st.text(max_size=60) | st.lists(WORDS, max_size=40).map("".join) | st.lists(WORDS, max_size=30).map(" ".join))
@settings(max_examples=600, deadline=None)
def test_any_text_is_an_expression_or_is_refused_with_a_column(text: str) -> None:
    expression = parsed(text)
    if isinstance(expression, ExpressionError):
        assert expression.column >= 1
        assert str(expression)
        return
    try:
        value = expression.value(NAMES)
    except CannotTell:
        return
    assert isinstance(value, bool | int | float | str)
    assert isinstance(expression.holds(NAMES), bool)


NUMBERS = st.sampled_from(["budget", "topk", "block_size", "rate", "0", "1", "17", "2.5", "100"])


def _joined(operators: list[str]) -> st.SearchStrategy[str]:
    return st.sampled_from([f" {operator} " for operator in operators])


def _arithmetic(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(inner, _joined(["+", "-", "*", "//", "%"]), inner).map("".join).map("({})".format) | inner.map(
        "-{}".format
    )


ARITHMETIC = st.recursive(NUMBERS, _arithmetic, max_leaves=6)
COMPARISON = (
    st.tuples(ARITHMETIC, _joined(["==", "!=", "<", "<=", ">", ">="]), ARITHMETIC).map("".join)
    | st.tuples(ARITHMETIC, _joined(["<", "<="]), ARITHMETIC, _joined(["<", "=="]), ARITHMETIC).map("".join)
    | st.sampled_from(
        ["backend == 'triton'", "backend != 'fa3'", "backend < 'z'", "graph", "off", "True", "graph == 1"]
    )
).map("({})".format)


def _logic(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(inner, _joined(["and", "or"]), inner).map("".join).map("({})".format) | inner.map(
        "(not {})".format
    )


@given(ARITHMETIC | st.recursive(COMPARISON, _logic, max_leaves=6))
@settings(max_examples=400, deadline=None)
def test_it_computes_what_python_computes(text: str) -> None:
    expression = parse(text)
    try:
        expected = eval(text, {"__builtins__": {}}, dict(NAMES))
    except ZeroDivisionError:
        with pytest.raises(CannotTell):
            expression.value(NAMES)
        return
    value = expression.value(NAMES)
    assert value == expected or (math.isnan(value) and math.isnan(expected))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "print(budget)",
        "().__class__",
        "budget.real",
        "budget[0]",
        "(lambda: 1)()",
        "lambda: 1",
        "2 ** 99999999",
        "[x for x in (1, 2)]",
        "{budget}",
        "{1: 2}",
        "[1, 2]",
        "(1, 2)",
        "(x := 3)",
        "f'{budget}'",
        "1 if graph else 2",
        "budget is 16",
        "16 in budget",
        "budget / 2",
        "budget << 99",
        "budget & 1",
        "~budget",
        "+budget",
        "*budget",
        "await budget",
        "yield",
        "import os",
        "budget; topk",
        "budget = 1",
        "None",
        "...",
        "b'bytes'",
        "1j",
        "",
        "   ",
        "#",
        "budget +",
        "(" * 250,
        "1" * 501,
    ],
)
def test_nothing_else_is_an_expression(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "'x' * 1000000000",
        "1000000000 * 'x'",
        "backend * budget",
        "backend - backend",
        "'%999999999d' % budget",
        "backend + budget",
        "-backend",
        "backend < budget",
        "budget // 0",
        "budget % (topk - 4)",
        "9" * 400 + " + 0.5",
        "9" * 400 + " // 0.5",
        "0.5 - " + "9" * 400,
    ],
)
def test_values_that_do_not_go_together_have_no_value_and_cost_nothing(text: str) -> None:
    with pytest.raises(CannotTell):
        parse(text).value(NAMES)


def test_numbers_and_words_may_be_compared_for_equality() -> None:
    assert parse("backend == 16").value(NAMES) is False
    assert parse("backend != 16").value(NAMES) is True


def test_a_missing_name_is_named() -> None:
    with pytest.raises(CannotTell) as caught:
        parse("padded_rows > 0").value(NAMES)
    assert caught.value.name == "padded_rows"


def test_names_are_those_it_depends_on() -> None:
    assert parse("budget + 1 != block_size or true").names == {"budget", "block_size"}


@pytest.mark.parametrize(("text", "column"), [("budget + print(1)", 10), ("budget == [1]", 11), ("a b", 3)])
def test_the_column_is_where_the_trouble_is(text: str, column: int) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text)
    assert caught.value.column == column


def test_nesting_as_deep_as_the_length_allows_is_no_trouble() -> None:
    values: dict[str, Value] = {"x": 1}
    assert parse("-" * 498 + "x").value(values) == 1
    assert parse("not " * 120 + "x").value(values) is True
    assert parse("+".join("x" * 200)).value(values) == 200
