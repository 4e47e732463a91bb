"""Prompt suites: those that are shipped, and what may be wrong with one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from diag import bundle
from diag.errors import PlanError, UsageError
from diag.verdict import prompts

SUITES = sorted(path.stem for path in (bundle.folder("probes") / "prompts").glob("*.yaml"))


def test_there_are_suites() -> None:
    assert {"quick", "garble"} <= set(SUITES)


@pytest.mark.parametrize("name", SUITES)
def test_a_shipped_suite_loads_under_its_name(name: str) -> None:
    suite = prompts.load(name)
    assert suite.name == name
    assert all(suite.rendered(prompt).strip() for prompt in suite.prompts)


def test_quick_knows_right_answers_and_none_of_them_is_in_the_question() -> None:
    for prompt in prompts.load("quick").prompts:
        assert prompt.expect is not None
        assert not re.search(prompt.expect, prompts.load("quick").rendered(prompt))


def test_a_user_turn_goes_into_the_template_and_a_text_does_not(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        'schema: 1\nname: s\ntemplate: "<{user}>"\nprompts: [{name: a, user: "{user}"}, {name: b, text: x}]'
    )
    suite = prompts.load(str(path))
    assert [suite.rendered(p) for p in suite.prompts] == ["<{user}>", "x"]
    assert prompts.load("s.yaml", beside=tmp_path) == suite


HEAD = "schema: 1\nname: s\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HEAD + "prompts: []", "3:1: prompts: at least 1 needed"),
        (HEAD + "prompts: [Monday]", "3:11: prompts.0: a mapping of keys to values is expected"),
        (HEAD, "'prompts' is missing"),
        (HEAD + "prompts: [{name: a}]", "3:11: prompts.0: exactly one of text and user is needed"),
        (HEAD + "prompts: [{name: a, text: x, user: y}]", "exactly one of text and user is needed"),
        (HEAD + "prompts: [{name: a, text: x, expect: '('}]", "3:30: prompts.0.expect: not a regular expression"),
        (HEAD + "prompts: [{name: A b, text: x}]", "3:12: prompts.0.name"),
        (HEAD + "prompts: [{name: a, text: x}, {name: a, text: y}]", "1:1: file: two prompts have the same name"),
        (HEAD + "template: x\nprompts: [{name: a, text: x}]", "template must hold {user}"),
        (HEAD + "max_new_tokens: 0\nprompts: [{name: a, text: x}]", "3:1: max_new_tokens"),
        (HEAD + "prompt: [{name: a, text: x}]", "3:1: unknown key 'prompt'; did you mean 'prompts'?"),
        (HEAD + "prompts: [{name: a, txet: x}]", "3:21: unknown key 'txet'; did you mean 'text'?"),
        (HEAD + "prompts: {name: a}", "3:1: prompts"),
        ("schema: 2\nname: s\nprompts: [{name: a, text: x}]", "1:1: schema"),
    ],
)
def test_a_wrong_suite_is_told_with_its_place(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(PlanError) as caught:
        prompts.load(str(path))
    assert any(expected in problem for problem in caught.value.problems), caught.value.problems
    assert all(re.match(r".+s\.yaml:\d+:\d+: ", problem) for problem in caught.value.problems)


def test_an_unknown_suite_names_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        prompts.load("no-such")
    assert all(name in caught.value.next for name in SUITES)
    with pytest.raises(UsageError, match="cannot be read"):
        prompts.load("./no-such.yaml")
