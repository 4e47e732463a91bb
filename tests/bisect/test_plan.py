"""Plans: whatever is wrong with the file is said with its place, all of it at once, and nothing else happens."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag import bundle
from diag.bisect import plan
from diag.bisect.bayesian import BayesianSearch
from diag.bisect.decision import Next
from diag.bisect.plan import Plan
from diag.errors import PlanError, UsageError

SHIPPED = (bundle.folder("playbooks") / "plans" / "ddtree-garble.yaml").read_text(encoding="utf-8")
PLACED = re.compile(r".+\.yaml:\d+:\d+: .+")

SMALL = """\
schema: 1
kind: bisect
name: small
command: serve --port {port}
prompts: garble
factors:
  budget:
    flag: --budget
    good: 7
    bad: 16
  graph:
    switch_off: --no-graph
    good: false
    bad: true
derived:
  odd:
    when: budget + 1 != 8
"""


@pytest.fixture
def load(tmp_path: Path) -> Callable[[str | bytes], Plan]:
    def write_and_load(text: str | bytes) -> Plan:
        path = tmp_path / "plan.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
        return plan.load(str(path))

    return write_and_load


def problems(load: Callable[[str | bytes], Plan], text: str | bytes) -> list[str]:
    """What is said, each with its file left out: "line:column: what"."""
    with pytest.raises(PlanError) as caught:
        load(text)
    assert caught.value.exit_code == 2
    assert caught.value.next
    assert all(PLACED.match(problem) for problem in caught.value.problems), caught.value.problems
    assert "Traceback" not in str(caught.value)
    return [problem.split("plan.yaml:", 1)[1] for problem in caught.value.problems]


def test_the_small_plan_is_a_plan(load: Callable[[str], Plan]) -> None:
    small = load(SMALL)
    assert small.argv(small.space.bad, {}) == ["serve", "--port", "{port}", "--budget", "16"]
    assert small.argv(small.space.good, {}) == ["serve", "--port", "{port}", "--budget", "7", "--no-graph"]
    assert small.max_new_tokens == small.suite.max_new_tokens


def test_the_shipped_plan_loads_by_its_name() -> None:
    shipped = plan.load("ddtree-garble")
    assert shipped.text == SHIPPED
    assert shipped.placeholders() == {"python", "model"}
    assert shipped.suite.name == "garble"
    assert [f.name for f in shipped.space.factors] == ["budget", "topk", "cuda_graph", "block_size"]
    assert [f.name for f in shipped.space.factors if f.suspect] == ["budget", "topk", "cuda_graph"]
    fills = {"python": "py", "model": "m"}
    words = shipped.argv(shipped.space.bad, fills)
    assert words[:5] == ["py", "-m", "sglang.launch_server", "--model-path", "m"]
    assert "--disable-cuda-graph" not in words
    assert "--disable-cuda-graph" in shipped.argv(shipped.space.good, fills)


def test_every_playbook_that_is_shipped_loads() -> None:
    for path in (bundle.folder("playbooks") / "plans").glob("*.yaml"):
        if "kind: bisect" in path.read_text(encoding="utf-8"):
            assert plan.load(str(path)).spec.name == path.stem


def test_what_the_server_reports_becomes_levels() -> None:
    shipped = plan.load("ddtree-garble")
    info = {
        "speculative_ddtree_budget": 16,
        "speculative_eagle_topk": "4",
        "disable_cuda_graph": True,
        "speculative_num_draft_tokens": 17,
        "internal_states": [{"verify": {"padded_rows": 3}}],
    }
    assert shipped.reported(info) == {
        "budget": 16,
        "topk": 4,
        "cuda_graph": False,
        "block_size": 17,
        "padded_rows": 3,
    }
    assert shipped.reported({}) == {}
    assert shipped.reported({"internal_states": [{"verify": {"padded_rows": None}}]}) == {}
    assert shipped.reported({"internal_states": []}) == {}


def replaced(old: str, new: str) -> str:
    assert SMALL.count(old) == 1, old
    return SMALL.replace(old, new)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            replaced("factors:", "factor:"),
            ["6:1: unknown key 'factor'; did you mean 'factors'?", "'factors' is missing"],
        ),
        (replaced("    flag:", "    flagg:"), ["8:5: unknown key 'flagg'; did you mean 'flag'?"]),
        (replaced("when: budget + 1", "when: budgt + 1"), ["17:5: unknown factor 'budgt'; did you mean 'budget'?"]),
        (replaced("when: budget + 1", "when: zzz + 1"), ["17:5: unknown factor 'zzz'; known ones: budget, graph"]),
        (replaced("when: budget + 1", "when: print(budget) + 1"), ["17:5: Call is not allowed"]),
        (replaced("when: budget + 1 != 8", "when: 'budget +'"), ["17:5: not an expression"]),
        (replaced("schema: 1", "schema: 2"), ["1:1: schema"]),
        (replaced("schema: 1", "schema: one"), ["1:1: schema"]),
        (replaced("kind: bisect", "kind: probe"), ["2:1: kind"]),
        (replaced("bad: 16", "bad: [16]"), ["10:5: factors.budget.bad"]),
        (replaced("bad: 16", "bad: null"), ["10:5: factors.budget.bad"]),
        (replaced("bad: 16", "bad:"), ["10:5: factors.budget.bad"]),
        (replaced("bad: 16", "bad: .nan"), ["10:5: factors.budget.bad"]),
        (replaced("bad: 16", "bad: .inf"), ["10:5: factors.budget.bad"]),
        (replaced("bad: 16", "bad: 2001-12-14"), ["10:5: a date is not allowed here"]),
        (replaced("    bad: 16\n", ""), ["7:3: 'bad' is missing"]),
        (replaced("bad: 16", "bad: 16\n    bad: 17"), ["11:5: found duplicate key"]),
        (replaced("    good: 7", "\tgood: 7"), ["9:1: found character '\\t'"]),
        (replaced("{port}", "30000"), ["4:1: the command must take the port"]),
        (replaced("serve --port {port}", "'serve \"--port {port}'"), ["4:1: command: No closing quotation"]),
        (replaced("serve --port {port}", "[]"), ["4:1: 'command' is missing"]),
        (replaced("serve --port {port}", "{a: 1}"), ["4:1: command"]),
        (replaced("serve --port {port}", "[serve, 1]"), ["4:18: command.1"]),
        (replaced("bad: 16", "bad: 7").replace("bad: true", "bad: false"), ["6:1: no factor differs"]),
        (replaced("    flag: --budget\n", ""), ["7:3: factor 'budget' needs exactly one of"]),
        (replaced("flag: --budget", "flag: --budget\n    env: BUDGET"), ["7:3: factor 'budget' needs exactly one of"]),
        (replaced("flag: --budget", "flag: budget"), ["8:5: factors.budget.flag"]),
        (replaced("good: false", "good: 0"), ["11:3: the levels of a switch are true and false"]),
        (replaced("  budget:\n", "  Budget:\n"), ["7:3: "]),
        (replaced("  odd:", "  budget:"), ["16:3: the name 'budget' is taken already"]),
        (SMALL + "reads:\n  odd: a.b\n", ["16:3: the name 'odd' is taken already"]),
        (SMALL + "reads:\n  graph: a.b\n", ["19:3: the name 'graph' is taken already"]),
        (SMALL + "max_trials: 1\n", ["18:1: max_trials"]),
        (SMALL + "ready_timeout_s: soon\n", ["18:1: ready_timeout_s"]),
        (SMALL + "env: {A: 1}\n", ["18:7: env.A"]),
        (SMALL + "---\n" + SMALL, ["18:1: "]),
        (SMALL + "*nowhere : 1\n", ["18:1: found undefined alias"]),
        (SMALL + "title: !!python/object/apply:os.system [true]\n", ["18:1: title"]),
        (SMALL + "title: !secret x\n", ["18:1: a TaggedScalar is not allowed here"]),
        (SMALL + "? [a, b]\n: 1\n", ["18:"]),
        (SMALL + "title: !!bool 3\n", ["not YAML"]),
        (SMALL + "title: !!int x\n", ["not YAML"]),
        (replaced("bad: 16", "bad: 0x" + "f" * 9000), ["10:5: factors.budget.bad"]),
        (SMALL + "title: {", ["18:"]),
        (SMALL + "title: 'a\n", ["19:1: found unexpected end of stream"]),
        (SMALL + "title: \x07\n", ["18:1: a character that YAML does not allow"]),
        ("", ["1:1: a mapping of keys to values is expected"]),
        ("# nothing\n", ["1:1: a mapping of keys to values is expected"]),
        ("null\n", ["1:1: a mapping"]),
        ("- schema: 1\n", ["1:1: a mapping"]),
        ("just text\n", ["1:1: a mapping"]),
        ("{}", ["'factors' is missing"]),
        ("&a [*a]\n", ["1:1: "]),
        ("a: &a {b: *a}\n", ["1:1: "]),
        ("[" * 900, ["1:"]),
        ("{a: " * 900, ["1:"]),
    ],
)
def test_a_wrong_plan_is_told_with_its_place(
    load: Callable[[str | bytes], Plan], text: str, expected: list[str]
) -> None:
    said = problems(load, text)
    for wanted in expected:
        assert any(wanted in problem for problem in said), said


def test_every_problem_is_told_at_once(load: Callable[[str | bytes], Plan]) -> None:
    said = problems(load, SMALL.replace("flag:", "flagg:").replace("good: 7", "god: 7").replace("kind: b", "knd: b"))
    assert len(said) >= 4


def test_bytes_that_are_not_text(load: Callable[[str | bytes], Plan]) -> None:
    assert problems(load, b"schema: 1\nname: \xff\xfe\n") == ["2:1: not UTF-8 text"]
    assert problems(load, SMALL.encode("utf-16"))
    assert problems(load, bytes(range(256)))


def test_a_huge_file_is_not_parsed(load: Callable[[str | bytes], Plan]) -> None:
    assert problems(load, SMALL + "#" + "x" * (1 << 20)) == ["1:1: larger than 1 MiB"]


def test_aliases_that_multiply_are_counted_out(load: Callable[[str | bytes], Plan]) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    assert "more than 50000 values" in problems(load, "\n".join(lines))[0]


def test_anchors_and_merged_keys_may_be_used(load: Callable[[str | bytes], Plan]) -> None:
    text = replaced("  graph:\n", "  graph: &graph\n").replace(
        "derived:", "  other:\n    <<: *graph\n    switch_off: --no-other\nderived:"
    )
    assert [f.target for f in load(text).space.factors] == ["--budget", "--no-graph", "--no-other"]


def test_an_anchor_used_twice_counts_from_its_place_on(load: Callable[[str | bytes], Plan]) -> None:
    text = replaced("good: 7", "good: &x 7").replace("bad: 16", "bad: &x 16")
    assert load(text + "max_trials: *x\n").spec.max_trials == 16


def test_twenty_four_factors_are_searched_and_more_are_a_problem(
    load: Callable[[str | bytes], Plan],
) -> None:
    def many(count: int) -> str:
        rows = "".join(f"  f{i}: {{flag: --f{i}, good: 0, bad: 1, levels: [2, 3]}}\n" for i in range(count))
        return SMALL.replace("derived:", f"{rows}derived:")

    loaded = load(many(22))
    assert len(loaded.space.factors) == 24
    assert isinstance(BayesianSearch(loaded.space, deterministic=True).next([]), Next)
    assert "at most 24" in problems(load, many(23))[0]


CONSTRAINED = SMALL.replace("derived:", "constraints:\n  - budget < 17\n  - budget != 16 or graph\nderived:")


def test_constraints_rule_configurations_out(load: Callable[[str | bytes], Plan]) -> None:
    configs = list(load(CONSTRAINED).space.configs())
    assert {(c["budget"], c["graph"]) for c in configs} == {(7, False), (7, True), (16, True)}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "- budget < 17",
            "- budget < 16",
            "16:5: the failing configuration does not satisfy it (budget=16): budget < 16",
        ),
        ("- budget < 17", "- graph", "16:5: the good configuration does not satisfy it (graph=off): graph"),
        ("- budget < 17", "- budgt < 17", "16:5: unknown factor 'budgt'; did you mean 'budget'?"),
        ("- budget < 17", "- budget <", "16:5: not an expression"),
        ("- budget < 17", "- 17", "16:5: constraints"),
        ("- budget < 17", "- open(budget)", "16:5: Call is not allowed"),
    ],
)
def test_what_is_wrong_with_a_constraint(
    load: Callable[[str | bytes], Plan], old: str, new: str, expected: str
) -> None:
    assert CONSTRAINED.count(old) == 1
    assert any(p.startswith(expected) for p in problems(load, CONSTRAINED.replace(old, new)))


def test_a_constraint_over_what_only_a_server_tells_is_no_constraint(load: Callable[[str | bytes], Plan]) -> None:
    text = CONSTRAINED.replace("- budget < 17", "- rows == 0") + "reads:\n  rows: a.b\n"
    assert problems(load, text) == ["16:5: unknown factor 'rows'; known ones: budget, graph"]


REQUEST = SMALL.replace("derived:", "  tokens: {request: max_new_tokens, good: 32, bad: 256}\nderived:")


def test_a_factor_of_the_request_takes_no_restart_and_no_word_of_the_command(
    load: Callable[[str | bytes], Plan],
) -> None:
    loaded = load(REQUEST)
    space = loaded.space
    assert space.factor("tokens").apply == "request"
    assert not space.restarts({**space.good, "tokens": 256}, space.good)
    assert space.restarts({**space.good, "budget": 16}, space.good)
    assert loaded.argv(space.bad, {}) == load(SMALL).argv(load(SMALL).space.bad, {})
    assert loaded.reported({"max_new_tokens": 5}) == {}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("bad: 256", "bad: 0", "the levels of max_new_tokens are whole numbers"),
        ("bad: 256", "bad: true", "the levels of max_new_tokens are whole numbers"),
        ("bad: 256", "bad: 1.5", "the levels of max_new_tokens are whole numbers"),
        ("max_new_tokens, good: 32", "concurrency, good: 0", "the levels of concurrency are whole numbers"),
        ("max_new_tokens", "temperature, levels: [-1]", "the levels of temperature are numbers"),
        ("max_new_tokens", "temperature, levels: [hot]", "the levels of temperature are numbers"),
        ("request: max_new_tokens", "request: max_new_tokens, env: X", "exactly one of"),
        ("request: max_new_tokens", "request: a-b", "request"),
    ],
)
def test_what_is_wrong_with_a_factor_of_the_request(
    load: Callable[[str | bytes], Plan], old: str, new: str, expected: str
) -> None:
    assert REQUEST.count(old) == 1
    assert expected in problems(load, REQUEST.replace(old, new))[0]


def test_costs_of_a_plan_are_those_of_its_space(load: Callable[[str | bytes], Plan]) -> None:
    text = REQUEST.replace("prompts:", "start_minutes: 12\nrequest_minutes: 2\nprompts:")
    text = text.replace("bad: 16", "bad: 16\n    minutes: 40")
    space = load(text).space
    good = space.good
    assert space.minutes({**good, "tokens": 256}, good) == 2
    assert space.minutes({**good, "graph": True}, good) == 14
    assert space.minutes({**good, "budget": 16}, good) == 42
    assert space.minutes(good, good) == 14
    assert load(SMALL).space.minutes(good, None) == 5.5


def test_a_factor_that_goes_from_on_to_one_can_be_searched(load: Callable[[str | bytes], Plan]) -> None:
    loaded = load(replaced("good: 7", "good: true").replace("bad: 16", "bad: 1"))
    assert isinstance(BayesianSearch(loaded.space).next([]), Next)


def test_unknown_suite_unknown_plan_no_file(load: Callable[[str | bytes], Plan], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no prompt suite 'garbel'") as caught:
        load(replaced("prompts: garble", "prompts: garbel"))
    assert "garble" in caught.value.next
    with pytest.raises(UsageError, match="cannot be read"):
        load(replaced("prompts: garble", "prompts: ./no-such.yaml"))
    with pytest.raises(UsageError, match="There is no plan 'ddtree-gabble'") as caught:
        plan.load("ddtree-gabble")
    assert "ddtree-garble" in caught.value.next
    with pytest.raises(UsageError, match="cannot be read"):
        plan.load(str(tmp_path / "no.yaml"))
    with pytest.raises(UsageError, match="cannot be read"):
        plan.load(f"{tmp_path}/")


def test_a_suite_beside_the_plan_and_its_problems(load: Callable[[str | bytes], Plan], tmp_path: Path) -> None:
    text = replaced("prompts: garble", "prompts: ./mine.yaml")
    (tmp_path / "mine.yaml").write_text("schema: 1\nname: mine\nprompts: [{name: a, text: Hello}]\n")
    assert [p.name for p in load(text).suite.prompts] == ["a"]
    (tmp_path / "mine.yaml").write_text("schema: 1\nname: mine\nprompts: [{name: a, txt: Hello}]\n")
    with pytest.raises(PlanError) as caught:
        load(text)
    assert "mine.yaml:3:21: unknown key 'txt'; did you mean 'text'?" in str(caught.value)


# Copies of the shipped plan with something wrong anywhere: a plan, or a UsageError with places; never anything else.

PIECES = ["&", "*", "!", "!!", "|", ">", ">-", "%", "@", "`", "{", "}", "[", "]", ",", ": ", "- ", "? ", "#", "'", '"']
PIECES += [
    "\t",
    "\n",
    "  ",
    "\\",
    "\0",
    "\x1b",
    "\ufeff",
    "\u2028",
    "é",
    "𝄞",
    "~",
    "null",
    ".nan",
    ".inf",
    "0o17",
    "1e400",
]
PIECES += ["<<: *x", "&x", "*x", "--- ", "... ", "%YAML 1.1\n---\n", "!!binary aGk=", "!!set {a}", "!!omap [a: 1]"]
PIECES += ["2001-01-01", "{port}", "{", "}}", "1_000", "yes", "- 1\n", "a: b: c", "99999999999999999999999", "-", ":"]


@given(st.integers(0, len(SHIPPED)), st.integers(0, 12), st.sampled_from(PIECES) | st.text(max_size=6), st.integers())
@settings(max_examples=250, deadline=None)
def test_mutated_copies_of_the_shipped_plan(
    tmp_path_factory: pytest.TempPathFactory, at: int, cut: int, piece: str, seed: int
) -> None:
    lines = SHIPPED[:at] + piece + SHIPPED[at + cut :]
    if seed % 3 == 0:  # and two lines change places
        rows = lines.split("\n")
        chance = random.Random(seed)
        i, j = chance.randrange(len(rows)), chance.randrange(len(rows))
        rows[i], rows[j] = rows[j], rows[i]
        lines = "\n".join(rows)
    path = tmp_path_factory.getbasetemp() / "mutated.yaml"
    path.write_bytes(lines.encode("utf-8", "surrogatepass"))
    try:
        loaded = plan.load(str(path))
    except PlanError as error:
        misplaced = [p for p in error.problems if not PLACED.match(p)]
    except UsageError:
        misplaced = []
    else:
        misplaced = [] if isinstance(BayesianSearch(loaded.space).next([]), Next) else ["no first trial"]
    assert misplaced == []
