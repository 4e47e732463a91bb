"""`diag explain`: every id that diag prints has an explanation, none is stale, and all of them lead somewhere."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from diag import errors
from diag.bisect.decision import VerdictKind
from diag.cli import run
from diag.explain.index import ENTRIES, HEADINGS, get
from diag.fixes.catalogue import FIXES, INJECTIONS
from diag.playbook.verdict import Word
from diag.records.runs import UNFINISHED
from diag.verdict.compare import Kind

ROOT = Path(__file__).resolve().parents[2]


def _finding_ids() -> set[str]:
    """First arguments of every `Finding(...)` in the code; those that are not constants are ids of faults."""
    trees = [
        ast.parse((ROOT / path).read_text()) for path in ("diag/verdict/findings.py", "diag/hosts/expectations.py")
    ]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    made = [n for n in nodes if isinstance(n, ast.Call) and ast.unparse(n.func) == "Finding"]
    first = [call.args[0] for call in made]
    assert len(first) > 5
    assert {ast.unparse(arg) for arg in first if not isinstance(arg, ast.Constant)} <= {"fault.fault"}
    return {str(arg.value) for arg in first if isinstance(arg, ast.Constant)}


def _error_kinds(cls: type[errors.DiagError] = errors.DiagError) -> Iterator[str]:
    for child in cls.__subclasses__():
        if child.__module__ == errors.__name__:
            yield child.kind
            yield from _error_kinds(child)


VERDICTS = [ast.parse(path.read_text()) for path in sorted((ROOT / "diag/verdict").rglob("*.py"))]


def _first_words(*names: str) -> set[str]:
    """The first argument of every call of these, where it is a constant."""
    calls = [n for tree in VERDICTS for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) in names]
    found = {str(call.args[0].value) for call in calls if call.args and isinstance(call.args[0], ast.Constant)}
    assert len(found) > 3
    return found


def _named(name: str) -> set[str]:
    """Constants that a variable of that name is given."""
    given = [
        node.value
        for tree in VERDICTS
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]
    ]
    branches = [end for value in given if isinstance(value, ast.IfExp) for end in (value.body, value.orelse)]
    return {str(each.value) for each in (*given, *branches) if isinstance(each, ast.Constant)}


EXPECTED = {
    "fault": {fix.id for fix in (*FIXES, *INJECTIONS)},
    "finding": _finding_ids(),
    "bisection": set(get_args(VerdictKind)),
    "text": set(get_args(Kind)),
    "lead": _first_words("Lead"),
    "sign": _first_words("Sign"),
    "rule": (_first_words("Evidence", "_counted") | _named("rule")) - {"no-answer"},  # as the kind of a text is called
    "playbook": {*get_args(Word), "kept", "outstanding"},
    "run": {*UNFINISHED, "not_recorded"},
    "error": set(_error_kinds()),
}


@pytest.mark.parametrize("group", HEADINGS)
def test_every_id_of_the_code_has_an_entry_and_no_entry_is_stale(group: str) -> None:
    assert {entry.id for entry in ENTRIES if entry.group == group} == EXPECTED[group]


def test_ids_are_unique_whatever_the_spelling() -> None:
    names = [entry.id.replace("_", "-").lower() for entry in ENTRIES]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_an_entry_says_what_why_and_what_to_do_and_where_to_read_on(entry) -> None:
    assert entry.what.endswith(".")
    assert entry.why.endswith(".")
    assert entry.do
    assert not entry.title.endswith(".")
    assert all((ROOT / path).is_file() for path in entry.more)
    assert get(entry.id) is entry


def test_errors_tell_their_exit_code() -> None:
    for cls in errors.DiagError.__subclasses__():
        for child in (cls, *cls.__subclasses__()):
            assert f"(exit code {child.exit_code})" in get(child.kind).title


def test_the_list_names_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines if line.startswith("  ")} == {entry.id for entry in ENTRIES}


def test_the_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1
    assert [entry["id"] for entry in document["entries"]] == [entry.id for entry in ENTRIES]


@pytest.mark.parametrize("written", ["near_tie", "near-tie", "NEAR_TIE"])
def test_one_entry_in_any_spelling(written: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", written]) == 0
    out = capsys.readouterr().out
    assert out.startswith("near_tie: ")
    assert "What to do" in out
    assert max(map(len, out.splitlines())) <= 120


def test_one_entry_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "mask-indptr", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"schema": 1, **get("mask-indptr").to_json()}


def test_an_unknown_id_is_a_usage_error_that_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "server-garbeld", "--json"]) == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out)["error"]["kind"] == "usage"
    assert "did you mean: server-garbled" in captured.err


@pytest.mark.parametrize("wanted", ["", "zzzzzzzz", "\x1b[31m"])
def test_nonsense_is_a_usage_error_without_a_guess(wanted: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", wanted]) == 2
    captured = capsys.readouterr()
    assert "There is no explanation" in captured.err
    assert "\x1b[31m'" not in captured.err
