"""Rivals in their own code, where they are installed (git-bayesect, rimbisect, mlbisect, picire); None where not."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from rivals.classic import Ask

Find = Callable[[Ask, int], frozenset[int] | None]


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def picire(repeats: int) -> Find | None:
    module = _module("picire")
    if module is None:
        return None
    logging.getLogger("picire").setLevel(logging.ERROR)

    def find(ask: Ask, count: int) -> frozenset[int] | None:
        first = True

        def test(config: list[int], _: object) -> Any:
            nonlocal first
            if first:  # that everything fails is known
                first = False
                return module.Outcome.FAIL
            fails = any(ask(frozenset(config)) for _ in range(repeats))
            return module.Outcome.FAIL if fails else module.Outcome.PASS

        try:
            return frozenset(module.DD(test)(list(range(count))))
        except AssertionError:
            return None

    return find


def rimbisect(repeats: int) -> Find | None:
    search, trial = _module("rimbisect.search"), _module("rimbisect.trial")
    if search is None:
        return None

    def find(ask: Ask, count: int) -> frozenset[int] | None:
        names = [str(i) for i in range(count)]
        order = SimpleNamespace(
            order=names,
            trial_list=lambda ids, excluded: [n for n in names if n in ids],
            closure=lambda ids, excluded: set(ids),
            dependents=lambda ids: [],
            written=lambda ids: list(ids),
        )

        def run(mods: list[str], label: str, criterion: object) -> Any:
            outcome = trial.FAIL if ask(frozenset(map(int, mods))) else trial.PASS
            return SimpleNamespace(outcome=outcome, mod_count=len(mods), number=0, excerpt="", log="", line=lambda: "")

        one = search.Search(order, SimpleNamespace(run=run), None, [], repeats, log=lambda text: None)
        one.record(names, True)
        one.record([], False)
        try:
            found = one.locate_all(names)
        except search.Inconclusive:
            return None
        return frozenset(map(int, found[0])) if len(found) == 1 else None

    return find


def mlbisect(budget: int) -> Find | None:
    search, manifest, base = (
        _module("mlbisect.search"),
        _module("mlbisect.manifest"),
        _module("mlbisect.executors.base"),
    )
    if search is None:
        return None

    def find(ask: Ask, count: int) -> frozenset[int] | None:
        plan = manifest.Manifest(
            version=1,
            name="benchmark",
            metric={"name": "healthy", "direction": "higher_is_better", "min_effect": 0.3},
            run={"command": "none"},
            axes=[{"name": f"f{i}", "old": "0", "new": "1"} for i in range(count)],
            budget={"max_runs": budget},
        )

        def run(config: Any, seed: int) -> Any:
            healthy = 0.0 if ask(frozenset(int(a[1:]) for a in config.axes)) else 1.0
            return _result(base, config, seed, healthy)

        found = search.find_culprits(SimpleNamespace(run=run), plan)
        if found.status != "culprit_found" or len(found.culprit_sets) != 1:
            return None
        return frozenset(int(a[1:]) for a in found.culprit_sets[0])

    return find


def _result(base: Any, config: Any, seed: int, metric: float) -> Any:
    values = {"config": config.axes, "seed": seed, "metric": metric, "duration_s": 0.0, "ok": True, "error": None}
    fields = base.RunResult.__dataclass_fields__
    return base.RunResult(**{name: values.get(name) for name in fields})


def git_bayesect() -> Any:
    """(ask(commit), count, stop) -> (commit, trials), or None."""
    module = _module("git_bayesect")
    if module is None:
        return None

    def find(ask: Callable[[int], bool], count: int, stop: float) -> tuple[int, int]:
        # Its index 0 is the newest commit; P(yes | index <= B) is the new rate.
        one, spent = module.Bisector([1.0] * (count - 1) + [1e-9]), 0
        one.record(0, True)
        one.record(count - 1, False)
        while one.distribution.max() < stop and spent < 400:
            index = one.select()
            one.record(index, ask(count - 1 - index))
            spent += 1
        return count - 1 - int(one.distribution.argmax()), spent

    return find
