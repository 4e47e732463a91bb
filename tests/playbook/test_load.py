"""What a playbook is read as, and what is said of a wrong one: every fault at once, with its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diag.bisect.expr import CannotTell, ExpressionError, parse
from diag.errors import PlanError, UsageError
from diag.playbook import load
from diag.playbook.kinds import KINDS

WRONG = """\
schema: 1
kind: playbook
name: bad
titel: x
vars: {a: {type: integer, default: x}}
steps:
  - id: one
    probe.hosts: {}
  - id: two
    probe.host: {siute: quick, suite: 7}
    when: two.faults > 0
  - id: two
    assert: thre.faults
    on_failure: stopp
  - bisect: ddtree-garbel
  - fix.apply: "{fixx}"
  - fix.apply: mask-indptrr
  - fix.apply: inject-pinned-count
  - server.stop: nobody
  - server.start: {plan: ddtree-garble, command: "x {port}"}
  - note: hi
    probe.host:
  - id: three
    probe.source: {}
  - assert: {that: [three.version == 1, three.faluts], says: x}
keep: [three, x]
answer: threee
"""
SAID = [
    "4:1: unknown key 'titel'; did you mean 'title'?",
    "5:8: vars.a: the default 'x' is not of type integer",
    "8:5: 'probe.hosts' is no kind of step; did you mean 'probe.host'?",
    "10:18: unknown key 'siute'; did you mean 'suite'?",
    "10:32: suite: Input should be a valid string",
    "11:5: 'two.faults' is not known here; nothing before this step records it",
    "12:5: there are two steps with the id 'two'",
    "13:5: 'thre.faults' is not known here; did you mean 'two.faults'?",
    "14:5: on_failure: Input should be 'stop', 'continue' or 'undo'",
    "15:5: plan: There is no plan 'ddtree-garbel'. Did you mean 'ddtree-garble'?",
    "16:5: no variable 'fixx'",
    "17:5: fix: There is no fix named 'mask-indptrr'. See all of them: diag fix list",
    "18:5: fix: 'inject-pinned-count' makes a fault: fix.inject does that",
    "19:5: 'nobody' is no earlier step of kind server.start; there is none before it",
    "20:5: file: exactly one of command and plan says what is started",
    "21:5: a step does one thing, not note and probe.host",
    "25:41: 'three.faluts' is not known here; did you mean 'three.faults'?",
    "26:8: 'three' changes nothing that could be kept",
    "26:15: no step 'x'",
    "27:1: no step 'threee'; did you mean 'three'?",
]


def problems(tmp_path: Path, text: str, **given: str) -> list[str]:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(PlanError) as caught:
        load.load(str(path), given)
    return [line.removeprefix(f"{path}:") for line in caught.value.problems]


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    assert problems(tmp_path, WRONG) == SAID


HEAD = "schema: 1\nkind: playbook\nname: mine\n"


def book(tmp_path: Path, text: str, **given: str) -> load.Book:
    path = tmp_path / "mine.yaml"
    path.write_text(HEAD + text)
    return load.load(str(path), given)


def test_variables_are_whole_values_of_their_type(tmp_path: Path) -> None:
    text = "vars: {n: 3, deep: {type: boolean, default: false}, name: x}\n"
    text += 'steps:\n  - probe.host: {verify_all: "{deep}"}\n  - note: "{name}"\n  - note: "a {name} stays"\n'
    found = book(tmp_path, text, deep="yes", name="other")
    assert found.values == {"n": 3, "deep": True, "name": "other"}
    host, note, stays = (step.params for step in found.steps)
    assert (host.verify_all, note.text, stays.text) == (True, "other", "a {name} stays")  # type: ignore[union-attr]
    for wrong in ({"n": "x"}, {"deep": "maybe"}, {"nmae": "x"}):
        with pytest.raises(UsageError):
            book(tmp_path, text, **wrong)


def test_a_variable_without_a_value_has_to_be_given(tmp_path: Path) -> None:
    text = 'vars: {fix: {title: an id}}\nsteps:\n  - fix.apply: "{fix}"\n'
    found = book(tmp_path, text)
    assert (found.unset, found.steps[0].params) == (("fix",), None)
    with pytest.raises(UsageError, match="--set fix=VALUE"):
        load.refuse_unset(found)
    assert book(tmp_path, text, fix="mask-indptr").unset == ()
    with pytest.raises(PlanError):
        book(tmp_path, text, fix="mask-indptrr")


def test_what_a_comment_changes_is_not_what_it_says(tmp_path: Path) -> None:
    text = "steps:\n  - note: x\n"
    assert book(tmp_path, text).content == book(tmp_path, f"# why\n{text}").content
    assert book(tmp_path, text).content != book(tmp_path, text.replace("x", "y")).content


@pytest.mark.parametrize(
    ("keep", "said"), [("up", "a server lives no longer"), ("src", "changes nothing"), ("x", "no")]
)
def test_what_cannot_be_kept(tmp_path: Path, keep: str, said: str) -> None:
    text = "steps:\n  - {id: up, server.start: {plan: ddtree-garble}}\n  - {id: src, probe.source: }\n"
    with pytest.raises(PlanError, match=said):
        book(tmp_path, f"{text}keep: [{keep}]\n")


def test_a_plan_is_told_from_a_playbook(tmp_path: Path) -> None:
    (told,) = problems(tmp_path, "schema: 1\nkind: bisect\nname: x\n")
    assert told.startswith("2:1: this is the plan of a bisection: diag bisect HOST --plan")
    with pytest.raises(UsageError, match="Did you mean 'health'"):
        load.load("helth")


# --- expressions over records ------------------------------------------------------------------------------------

NAMES: dict[str, Any] = {"a.faults": ("x", "y"), "a.none": (), "a.n": 3, "a.ok": True, "a.word": "clean", "v": "x"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"x" in a.faults', True),
        ("v in a.faults", True),
        ('"z" not in a.faults', True),
        ("not a.none", True),
        ("a.faults and a.ok", True),
        ('a.n + 1 == 4 and a.word == "clean"', True),
        ("a.ok == false", False),
    ],
)
def test_comparisons_over_records(text: str, value: bool) -> None:
    assert parse(text, records=True).holds(NAMES) is value


@pytest.mark.parametrize("text", ["a.faults == 3", '"x" in a.word', "a.gone", "a.faults + 1 == 2", "a.word < 3"])
def test_what_does_not_go_together_cannot_be_told(text: str) -> None:
    with pytest.raises(CannotTell):
        parse(text, records=True).value(NAMES)


@pytest.mark.parametrize("text", ["a.b.c", "f(a.n)", "a['n']", "(a).__class__.x", "lambda: a", "[x for x in a.faults]"])
def test_nothing_else_is_an_expression(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse(text, records=True)


@pytest.mark.parametrize("text", ["a.n > 1", '"x" in v'])
def test_plans_have_no_records(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse(text)


def test_every_kind_is_one_function_with_documented_values() -> None:
    acts: dict[Callable[..., Any], str] = {}
    for kind in KINDS.values():
        assert kind.says
        assert all(kind.values.values())
        assert acts.setdefault(kind.act, kind.name) == kind.name or kind.name == "fix.inject"
    assert {kind.name for kind in KINDS.values() if kind.changes} == {
        *("fix.apply", "fix.revert", "fix.inject", "server.start", "server.stop", "bisect")
    }
