"""Several hosts at once, with benches that are scripted but threads that are real."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from diag import journal
from diag.bisect import crew, executor, run
from diag.bisect.bayesian import BayesianSearch
from diag.bisect.decision import BothEnds, Next, Search
from diag.bisect.executor import Cancelled, Workers
from diag.bisect.expr import Value
from diag.bisect.run import Result
from diag.bisect.space import Config, Factor, Space, same
from diag.bisect.trial import Outcome, Trial
from diag.errors import (
    AuthenticationFailed,
    DiagError,
    HostError,
    Interrupted,
    LinkLost,
    PreconditionFailed,
    ServerDied,
)
from diag.journal import Journal

NAMES = ("a", "b", "c", "d", "e", "f")
SPACE = Space(tuple(Factor(name, f"--{name}", "flag", 0, 1, (0, 1)) for name in NAMES))
GOOD, BAD = SPACE.good, SPACE.bad
HOSTS = ("one", "two", "three")


def pair(config: Config) -> bool:
    return config["b"] == config["e"] == 1


def is_good(config: Config) -> bool:
    return all(same(config[name], 0) for name in config)


Behave = Callable[[str, Config], bool]


@dataclass
class Bench:
    """behave: whether it fails there, or raises what a trial raises."""

    host: str
    behave: Behave
    cancelled: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    closed: int = 0
    running: bool = False

    def trial(self, number: int, step: Next) -> Trial:
        self.running = True
        try:
            outcome = Outcome.FAIL if self.behave(self.host, step.config) else Outcome.PASS
        finally:
            self.running = False
        return Trial(number, step.purpose, step.config, SPACE.effective(step.config, {}), outcome, reason="seen")

    def wait(self) -> None:
        """A trial that takes until it is cancelled."""
        if self.cancelled.wait(20):
            raise Cancelled
        pytest.fail("nobody cancelled it")

    def cancel(self) -> None:
        self.cancelled.set()

    def abandon(self) -> None:
        self.released.set()

    def close(self) -> None:
        self.closed += 1


@dataclass
class Shop:
    """One run of the search over HOSTS, and what was seen of it."""

    folder: Path
    hosts: tuple[str, ...] = HOSTS
    done: list[Trial] = field(default_factory=list)
    told: list[Trial] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    benches: dict[str, Bench] = field(default_factory=dict)
    on_trial: Callable[[Trial], None] = lambda trial: None
    on_leave: Callable[[], None] = lambda: None
    journal: Journal | None = None
    search: Search = field(default_factory=lambda: BayesianSearch(SPACE, deterministic=True, max_trials=60))

    def run(self, behave: Behave) -> Result:
        self.benches = {host: Bench(host, behave) for host in self.hosts}
        self.journal = Journal.create(self.folder)
        with self.journal:
            workers = Workers(self.benches)
            return run.run(self.search, workers, self.journal, self, good=GOOD, start={}, done=self.done)

    def entries(self) -> list[dict[str, Any]]:
        assert self.journal is not None
        return journal.read(self.journal.path)

    # the listener

    def trial_starts(self, number: int, expected: int, step: Next, host: str = "") -> None: ...

    def waits_for(self, what: str) -> None: ...

    def trial_done(self, trial: Trial) -> None:
        self.told.append(trial)
        self.on_trial(trial)

    def outlook(self, leader: str, share: float, rest: int) -> None:
        assert 0 <= share <= 1
        assert rest >= 0

    def host_leaves(self, host: str, why: str) -> None:
        self.left[host] = why
        self.on_leave()


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "runs")


def culprit(result: Result) -> str:
    assert result.verdict.culprit is not None, result.verdict
    return result.verdict.culprit.name


def by_host(result: Result) -> dict[str, list[Trial]]:
    return {host: [t for t in result.trials if t.host == host] for host in result.hosts}


def test_hosts_work_at_the_same_time_and_each_begins_with_its_control(shop: Shop) -> None:
    together = threading.Barrier(3, timeout=20)

    def behave(host: str, config: Config) -> bool:
        if is_good(config):
            together.wait()  # broken, and a failure, unless all three are at it at once
        return pair(config)

    result = shop.run(behave)
    assert culprit(result) == "b=1 and e=1"
    for trials in by_host(result).values():
        assert is_good(trials[0].config)
        assert "control" in trials[0].purpose
    assert sum(len(trials) > 1 for trials in by_host(result).values()) >= 2
    assert result.left_out == {}
    assert all(bench.closed == 1 for bench in shop.benches.values())


def test_trials_are_numbered_and_written_down_as_they_come(shop: Shop) -> None:
    """The first host's control comes last of all."""
    late = threading.Event()

    def behave(host: str, config: Config) -> bool:
        if host == "one" and is_good(config):
            assert late.wait(20)
        return pair(config)

    shop.on_trial = lambda trial: late.set() if trial.number == 3 else None
    result = shop.run(behave)
    assert culprit(result) == "b=1 and e=1"
    assert [t.number for t in result.trials] == list(range(1, len(result.trials) + 1))
    assert "one" not in [t.host for t in result.trials[:3]]
    written = [(e["number"], e["host"], e["config"]) for e in shop.entries() if e["kind"] == "trial"]
    assert written == [(t.number, t.host, dict(t.config)) for t in result.trials]


@pytest.mark.parametrize("first", [True, False])
def test_a_host_whose_good_configuration_fails_is_quarantined_and_named(shop: Shop, first: bool) -> None:
    """Whether it is the first to answer or not: it fails whatever it is given, and nobody believes it."""
    others = threading.Event()
    broken = threading.Event()

    def behave(host: str, config: Config) -> bool:
        if host == "two":
            if not first:
                assert others.wait(20)
            return True
        if first and is_good(config):
            assert broken.wait(20)
        return pair(config)

    def on_trial(trial: Trial) -> None:
        (broken if trial.host == "two" else others).set()

    shop.on_trial = on_trial
    result = shop.run(behave)
    assert culprit(result) == "b=1 and e=1"
    assert list(result.left_out) == ["two"]
    assert "good configuration does not pass" in shop.left["two"]
    assert len(by_host(result)["two"]) == 1
    assert [e["host"] for e in shop.entries() if e["kind"] == "host"] == ["two"]


def test_a_good_configuration_that_passes_nowhere_is_not_the_hosts_fault(shop: Shop) -> None:
    result = shop.run(lambda host, config: True)
    assert result.verdict.kind == "environmental"
    assert result.left_out == {}
    assert len(result.trials) == 3


@pytest.mark.parametrize("error", [LinkLost, AuthenticationFailed])
def test_a_dead_host_costs_its_own_trials_and_no_other(shop: Shop, error: type[DiagError]) -> None:
    count, gone = itertools.count(1), threading.Event()

    def behave(host: str, config: Config) -> bool:
        if host == "two" and next(count) > 1:
            raise error("The connection ended.", next="Again.")
        if not is_good(config) and config != BAD:
            assert gone.wait(20)
        return pair(config)

    shop.on_leave = gone.set
    result = shop.run(behave)
    assert culprit(result) == "b=1 and e=1"
    infra = [t for t in result.trials if t.outcome is Outcome.INFRA]
    assert {t.host for t in infra} == {"two"}
    assert len(infra) == (3 if error is LinkLost else 1)
    assert result.left_out == shop.left == {"two": "The connection ended."}
    # What it was at has been tried by another, or was not needed: none of its infra trials is evidence.
    assert all(t.number not in (*result.verdict.sufficient, *result.verdict.necessary) for t in infra)


def test_a_good_configuration_that_does_not_start_on_one_host_leaves_that_out(shop: Shop) -> None:
    def behave(host: str, config: Config) -> bool:
        if host == "three":
            raise ServerDied("The good configuration does not start.", next="Look.")
        return pair(config)

    result = shop.run(behave)
    assert culprit(result) == "b=1 and e=1"
    assert result.left_out == {"three": "The good configuration does not start."}
    assert by_host(result)["three"] == []


def test_when_every_host_is_dead_the_last_one_says_why(shop: Shop) -> None:
    def behave(host: str, config: Config) -> bool:
        raise AuthenticationFailed(f"{host} refused the key.", next="Look.")

    with pytest.raises(AuthenticationFailed, match="refused the key"):
        shop.run(behave)
    assert {t.host for t in shop.told} == set(HOSTS)
    assert all(bench.closed == 1 for bench in shop.benches.values())


def test_what_is_wrong_with_the_trial_itself_ends_the_run_everywhere(shop: Shop) -> None:
    def behave(host: str, config: Config) -> bool:
        if config == BAD:
            raise PreconditionFailed("The trial command ended with exit code 127.", next="Look.")
        if not is_good(config):
            shop.benches[host].wait()
        return False

    with pytest.raises(PreconditionFailed, match="127"):
        shop.run(behave)
    assert all(bench.cancelled.is_set() and bench.closed == 1 for bench in shop.benches.values())


def test_ctrl_c_stops_what_runs_on_every_host(shop: Shop) -> None:
    running = threading.Barrier(2, timeout=20)

    def behave(host: str, config: Config) -> bool:
        if host != "one":
            running.wait()
            shop.benches[host].wait()
        return False

    def interrupt(trial: Trial) -> None:
        while not all(shop.benches[host].running for host in ("two", "three")):
            threading.Event().wait(0.01)
        raise KeyboardInterrupt

    shop.on_trial = interrupt
    with pytest.raises(KeyboardInterrupt):
        shop.run(behave)
    assert all(bench.cancelled.is_set() and not bench.running for bench in shop.benches.values())
    assert all(bench.closed == 1 for bench in shop.benches.values())
    assert [e["kind"] for e in shop.entries()] == ["start", "trial", "interrupted"]
    assert threading.active_count() == 1 or not [t for t in threading.enumerate() if t.name.startswith("diag-bisect")]


def test_who_does_not_wait_for_the_stop_is_told_what_is_left(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Workers, "cancel", interrupt)
    shop.on_trial = interrupt
    with pytest.raises(Interrupted, match="Interrupted twice: what runs on one, two, three"):
        shop.run(lambda host, config: False)
    assert shop.entries()[-1]["kind"] == "interrupted"


def test_a_host_that_does_not_answer_is_cut_off_and_said(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled, it goes on; its link cut, it ends."""
    monkeypatch.setattr(executor, "CANCEL_S", 0.05)

    def behave(host: str, config: Config) -> bool:
        if host == "two":
            assert shop.benches[host].released.wait(20)
        return False

    def interrupt(trial: Trial) -> None:
        raise KeyboardInterrupt

    shop.on_trial = interrupt
    with pytest.raises(KeyboardInterrupt):
        shop.run(behave)
    assert shop.benches["two"].released.is_set()
    assert not shop.benches["one"].released.is_set()


def test_a_host_that_cannot_even_be_cut_off_is_an_error_that_names_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "CANCEL_S", 0.05)
    monkeypatch.setattr(executor, "ABANDON_S", 0.05)
    never = threading.Event()

    def behave(host: str, config: Config) -> bool:
        if host == "two":
            never.wait(20)
        return False

    def interrupt(trial: Trial) -> None:
        raise KeyboardInterrupt

    shop.on_trial = interrupt
    try:
        with pytest.raises(HostError, match="Nobody answers on two"):
            shop.run(behave)
    finally:
        never.set()


def test_gone_on_with_no_host_that_had_its_control_has_another(shop: Shop) -> None:
    before = shop.run(lambda host, config: pair(config))
    cut = [t for t in before.trials if is_good(t.config)][:3]
    assert {t.host for t in cut} == set(HOSTS)
    shop.done, shop.told = list(cut), []
    again = shop.run(lambda host, config: pair(config))
    assert culprit(again) == "b=1 and e=1"
    assert not [t for t in again.trials[3:] if "control" in t.purpose]
    assert shop.entries()[0]["kind"] == "resumed"


@pytest.mark.parametrize(("fails", "kind"), [(True, "fails"), (False, "clean")])
def test_the_check_of_both_ends_is_not_misled_by_controls(shop: Shop, fails: bool, kind: str) -> None:
    shop.search = BothEnds(SPACE)
    result = shop.run(lambda host, config: fails and config == BAD)
    assert result.verdict.kind == kind
    assert [t.config for t in result.trials].count(BAD) == 1


def test_a_fault_that_flakes_is_found_on_several_hosts(shop: Shop) -> None:
    """It shows in two of three trials, wherever they are made."""
    count = itertools.count()
    shop.search = BayesianSearch(SPACE, max_trials=200)
    result = shop.run(lambda host, config: pair(config) and next(count) % 3 != 1)
    assert culprit(result) == "b=1 and e=1"
    assert result.verdict.rates is not None
    assert min(len(trials) for trials in by_host(result).values()) >= 3


# the pure part


def trial(host: str, outcome: Outcome, config: Config = GOOD) -> Trial:
    return Trial(1, "", config, config, outcome, reason=f"{host} {outcome.value}", host=host)


@pytest.mark.parametrize(
    ("outcomes", "sound", "shut", "seen"),
    [
        ({"one": "pass", "two": "pass"}, ("one", "two"), {}, 2),
        ({"one": "pass", "two": "fail"}, ("one",), {"two": "two fail"}, 1),
        ({"one": "skip", "two": "pass"}, ("two",), {"one": "one skip"}, 1),
        ({"one": "fail", "two": "fail"}, (), {}, 2),
        ({"one": "infra", "two": "pass"}, ("two",), {}, 1),
        ({"one": "infra", "two": "fail"}, (), {}, 1),
        ({}, (), {}, 0),
    ],
)
def test_who_is_believed(outcomes: dict[str, str], sound: tuple[str, ...], shut: dict[str, str], seen: int) -> None:
    trials = [trial(host, Outcome(outcome)) for host, outcome in outcomes.items()]
    hosts = ("one", "two")
    assert crew.sound(trials, hosts, GOOD) == sound
    assert crew.quarantined(trials, hosts, GOOD) == shut
    assert len(crew.evidence(trials, hosts, GOOD)) == seen


def test_a_control_is_the_first_answer_about_the_good_configuration() -> None:
    other: dict[str, Value] = {**GOOD, "a": 1}
    later = [trial("one", Outcome.INFRA), trial("one", Outcome.FAIL, other), trial("one", Outcome.PASS)]
    assert crew.control(later, "one", GOOD) is later[2]
    assert crew.control(later[:2], "one", GOOD) is None


def test_one_host_alone_is_never_quarantined() -> None:
    trials = [trial("one", Outcome.FAIL), trial("one", Outcome.PASS)]
    assert crew.evidence(trials, ("one",), GOOD) == trials
