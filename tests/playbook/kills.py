"""A run of a playbook that is killed (SIGKILL), and gone on with, until it is done."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.forks import Forks
from tests.playbook import toys
from tests.playbook.toys import Toy

RUN_LIMIT_S = 300.0

# What differs between two runs that came to the same.
OWN = {"port", "pid", "ready_after_s", "seconds", "changed", "trials"}


@contextmanager
def forked() -> Iterator[Forks]:
    forks = Forks()
    try:
        yield forks
    finally:
        forks.close()


def boundaries(journal: Path | None) -> int:
    """Lines that say where a step begins or ends."""
    return 0 if journal is None else sum(one["kind"] == "step" for one in toys.entries(journal))


@dataclass
class Course:
    """kills: how often it was killed; at: the step lines of the journal at each."""

    toy: Toy
    forks: Forks
    name: str = "ddtree-garble"
    host: str = "toy"
    sets: Mapping[str, str] = field(default_factory=lambda: {"ask": "false"})
    kills: int = 0
    at: list[str] = field(default_factory=list)

    @property
    def journal(self) -> Path | None:
        runs = [path for path in self.toy.runs() if path.read_bytes().count(b"\n")]
        return runs[-1] if runs else None

    def arguments(self) -> list[str]:
        journal = self.journal
        if journal is not None:
            return ["playbook", "resume", journal.parent.name, "--json"]
        for empty in self.toy.runs():  # killed before its first line was whole: there is nothing to go on with
            empty.unlink()
            empty.parent.rmdir()
        sets = [word for name, value in self.sets.items() for word in ("--set", f"{name}={value}")]
        return ["playbook", "run", self.name, self.host, *sets, "--json"]

    def ended(self) -> bool:
        journal = self.journal
        return journal is not None and any(one["kind"] == "verdict" for one in toys.entries(journal))

    def go_on(self) -> None:
        """To its end, undisturbed."""
        if not self.ended():
            self.forks.start(self.arguments(), self.toy.root)
            if not self.forks.ends_within(RUN_LIMIT_S):
                raise TimeoutError("the run does not end")

    def killed(self, when: Callable[[float], bool]) -> bool:
        """Begun, or gone on with, and killed as soon as when(seconds since); False if it had ended before."""
        self.forks.start(self.arguments(), self.toy.root)
        began = time.monotonic()
        while not when(time.monotonic() - began):
            if self.forks.ends_within(0.002):
                return False
        self.forks.kill()
        self.kills += 1
        journal = self.journal
        steps = [] if journal is None else [one for one in toys.entries(journal) if one["kind"] == "step"]
        self.at.append(f"{steps[-1]['id']} {steps[-1]['state']}" if steps else "before the first step")
        return True

    def at_every_boundary(self) -> None:
        """Killed at the first new line of a step, again and again: each session comes one line further."""
        while not self.ended():
            before = self.seen()
            if not self.killed(lambda _, before=before: bool(self.seen() - before) or self.ended()):
                return

    def seen(self) -> set[str]:
        """Lines of steps so far: "mend begun"."""
        journal = self.journal
        lines = [] if journal is None else toys.entries(journal)
        return {f"{one['id']} {one['state']}" for one in lines if one["kind"] == "step"}

    def at_random(self, chance: random.Random, times: int, latest_s: float) -> None:
        for _ in range(times):
            moment = chance.uniform(0, latest_s)
            if self.ended() or not self.killed(lambda spent, at=moment: spent > at):
                return


def wait_until_quiet(toy: Toy, limit_s: float = 30.0) -> list[str]:
    """Servers of the toy host that are still there after so long: their supervisors have seen the end by then."""
    deadline = time.monotonic() + limit_s
    while (left := toy.servers()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def end_state(journal: Path) -> dict[str, Any]:
    """What a run came to, without what differs from run to run."""
    lines = toys.entries(journal)
    last = {one["id"]: one for one in lines if one["kind"] == "step"}
    verdict = [one for one in lines if one["kind"] == "verdict"][-1]
    return {
        "verdict": (verdict["verdict"], verdict["exit_code"]),
        "steps": {step: _step(one) for step, one in last.items()},
        "outstanding": toys.outstanding(journal),
    }


def _step(one: Mapping[str, Any]) -> Any:
    """Of a probe of the whole machine, on which others may be at work, only that it was done."""
    values = (one["result"] or {}).get("values", {}) if one["step"] != "probe.host" else {}
    return one["state"], {name: value for name, value in values.items() if name not in OWN}
