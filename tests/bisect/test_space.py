"""What a configuration is: levels on a command line, and effective values."""

from __future__ import annotations

import pytest
from simulated_host import factor, space

from diag.bisect.expr import Value, parse
from diag.bisect.space import Constraint, Derived, Factor, How, Space, describe, differences, level_text, same


@pytest.mark.parametrize(
    ("how", "level", "argv", "env"),
    [
        ("flag", 7, ["--x", "7"], {}),
        ("flag", 0.25, ["--x", "0.25"], {}),
        ("flag", "fa 3", ["--x", "fa 3"], {}),
        ("switch", True, ["--x"], {}),
        ("switch", False, [], {}),
        ("switch_off", True, [], {}),
        ("switch_off", False, ["--x"], {}),
        ("env", 7, [], {"--x": "7"}),
        ("env", True, [], {"--x": "1"}),
        ("env", False, [], {"--x": "0"}),
        ("env", "a b", [], {"--x": "a b"}),
    ],
)
def test_how_a_level_reaches_the_server(how: How, level: Value, argv: list[str], env: dict[str, str]) -> None:
    one = Factor("x", "--x", how, level, level, (level,))
    assert (one.argv(level), one.env(level)) == (argv, env)
    over = Space((one,))
    assert (over.argv({"x": level}), over.env({"x": level})) == (argv, env)


def test_argv_keeps_the_order_of_the_plan() -> None:
    over = space(factor("b", 1, 2), factor("a", 3, 4))
    assert over.argv(over.bad) == ["--b", "2", "--a", "4"]


def test_effective_is_asked_then_reported_then_derived() -> None:
    over = space(factor("budget", 7, 16), factor("block_size", 8, 8, 17), mismatch="budget + 1 != block_size")
    assert over.effective(over.bad, {}) == {"budget": 16, "block_size": 8, "mismatch": True}
    # The server put 17 into force by itself: what was asked is overwritten, the rule recomputed.
    assert over.effective(over.bad, {"block_size": 17}) == {"budget": 16, "block_size": 17, "mismatch": False}


def test_what_cannot_be_derived_is_absent_not_false() -> None:
    over = space(factor("budget", 7, 16), padding="padded_rows > 0")
    assert "padding" not in over.effective(over.bad, {})
    assert over.effective(over.bad, {"padded_rows": 0})["padding"] is False
    assert Derived("padding", parse("padded_rows > 0")).holds({}) is None


def test_every_combination_once() -> None:
    over = space(factor("a"), factor("b", 0, 1, 2), factor("c", 5, 5, 6))
    configs = list(over.configs())
    assert len(configs) == 2 * 3 * 2 == len({tuple(c.items()) for c in configs})
    assert over.good in configs
    assert over.bad in configs


def test_on_and_one_are_different_levels() -> None:
    assert not same(True, 1)
    assert not same(0, False)
    assert same(1, 1.0)
    assert differences({"a": True, "b": 2}, {"a": 1, "b": 2}) == {"a": True}


def test_a_factor_whose_ends_are_on_and_one_is_a_suspect() -> None:
    assert factor("x", True, 1).suspect
    assert factor("x", True, 1).levels == (True, 1)
    assert not factor("x", 1, 1, 2).suspect


def test_words_for_a_person() -> None:
    assert describe({"budget": 16, "graph": True, "x": False}) == "budget=16 graph=on x=off"
    assert describe({"budget": 16, "graph": True}, ["graph"]) == "graph=on"
    assert level_text(1) == "1"


def implied(when: str) -> Space:
    return Space(tuple(factor(f"f{i}") for i in range(3)), constraints=(Constraint("implied", parse(when)),))


def test_configurations_are_the_valid_ones() -> None:
    over = implied("f0 == 0 or f1 == 1")
    assert len(list(over.configs())) == 6
    assert all(c["f0"] == 0 or c["f1"] == 1 for c in over.configs())
    broken = over.violated({"f0": 1, "f1": 0, "f2": 0})
    assert broken is not None
    assert broken.name == "implied"


def test_what_a_constraint_cannot_tell_is_allowed() -> None:
    assert len(list(implied("elsewhere > 1").configs())) == 8


@pytest.mark.parametrize(("when", "end"), [("f0 == 1", "good"), ("f0 + f1 + f2 < 3", "failing")])
def test_an_end_that_violates_a_constraint_is_refused_by_name(when: str, end: str) -> None:
    with pytest.raises(ValueError, match=f"the {end} configuration violates 'implied'"):
        implied(when)


def test_minutes_of_a_trial() -> None:
    kernel = Factor("kernel", "--kernel", "flag", 0, 1, (0, 1), minutes=20)
    ask = Factor("ask", "ask", "trial", 0, 1, (0, 1), apply="request")
    over = Space((kernel, factor("f"), ask))
    base = {"kernel": 0, "f": 0, "ask": 0}
    assert over.minutes(base, None) == 20.5
    assert over.minutes({**base, "kernel": 1}, base) == 20.5
    assert over.minutes({**base, "f": 1, "ask": 1}, base) == 5.5
    assert over.minutes({**base, "ask": 1}, base) == 0.5
    assert over.minutes(base, base) == 5.5, "once more is a new process"
