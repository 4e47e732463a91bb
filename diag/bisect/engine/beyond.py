"""Rules outside the hypotheses, over three factors: parity, "a and (b or c)", majority and the like.

Nobody searches for them; they are what hold-outs are chosen against. A rule that fits every trial and contradicts
the leader on a configuration nobody has tried says where to look before the leader is named.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from diag.bisect.engine.rows import TRUE, Bools, Codes

MAX_MEMBERS = 14
_FORMS: tuple[tuple[str, Callable[[Bools, Bools, Bools], Bools], int], ...] = (
    ("{a} xor {b} xor {c}", lambda a, b, c: a ^ b ^ c, 1),
    ("({a} xor {b}) or {c}", lambda a, b, c: (a ^ b) | c, 3),
    ("{a} and ({b} or {c})", lambda a, b, c: a & (b | c), -3),
    ("({a} and {b}) or {c}", lambda a, b, c: (a & b) | c, 3),
    ("two of {a}, {b}, {c}", lambda a, b, c: (a & b) | (a & c) | (b & c), 1),
    ("{a} or {b} or {c}", lambda a, b, c: a | b | c, 1),
)
Rule = tuple[str, tuple[int, int, int]]


def rules(members: int) -> list[Rule]:
    """(form, members) for every three of them; asymmetric forms in each of their three orders."""
    out: list[Rule] = []
    for a, b, c in itertools.combinations(range(min(members, MAX_MEMBERS)), 3):
        for form, _, orders in _FORMS:
            turns = [(a, b, c)] if orders == 1 else [(a, b, c), (a, c, b), (b, c, a)]
            out += [(form, (z, x, y) if orders < 0 else (x, y, z)) for x, y, z in turns]
    return out


def columns(over: list[Rule], facts: Codes) -> Bools:
    """facts (configurations, members) -> (configurations, rules): where each rule is active."""
    truth = facts == TRUE
    out = np.zeros((len(facts), len(over)), dtype=bool)
    functions = {form: function for form, function, _ in _FORMS}
    for form, function in functions.items():
        where = [i for i, (own, _) in enumerate(over) if own == form]
        if where:
            which = np.array([over[i][1] for i in where])
            out[:, where] = function(truth[:, which[:, 0]], truth[:, which[:, 1]], truth[:, which[:, 2]])
    return out


def told(rule: Rule, names: list[str]) -> str:
    form, (a, b, c) = rule
    return form.format(a=names[a], b=names[b], c=names[c])
