"""kill -9 at a random moment, again and again: the running trial is lost at most, nothing counts twice or stays.

Each run is a process of its own, forked from one that has everything imported, so that the moments fall on what the
command does and not on what Python does before it.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.forks import Forks

KILLS = int(os.environ.get("DIAG_TEST_KILLS", "40"))
"""Two hundred were done for docs/measured.md; forty are enough to notice."""
SEED = 20261129
LATEST_S = 0.2
"""After the first line of the journal; about as long as three trials take."""

NAMES = "abcdef"
PLAN = "max_trials: 60\nfactors:\n" + "".join(f"  {name}: {{good: 0, bad: 1, sweep: false}}\n" for name in NAMES)
# One line when a trial begins. Its grandchild would stay for a minute, if nobody ended it.
TRY = 'echo "$DIAG_A$DIAG_B$DIAG_C$DIAG_D$DIAG_E$DIAG_F" >> made; sleep 60 & sleep 0.03; test "$DIAG_B$DIAG_E" != 11'


@pytest.fixture
def forks() -> Iterator[Forks]:
    forks = Forks()
    yield forks
    forks.close()


def journals(folder: Path) -> list[Path]:
    return sorted((folder / "state" / "runs").glob("*/journal.jsonl"))


def trials(journal: Path) -> list[dict[str, object]]:
    """Of the whole lines; a torn last one is what the next session cuts off."""
    lines = journal.read_bytes().split(b"\n")[:-1]
    return [entry for line in lines if (entry := json.loads(line))["kind"] == "trial"]


def left_running(folder: Path) -> list[str]:
    """Processes that work in the folder: trial commands inherit it from the run."""
    left = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and entry.name != str(os.getpid()):
            with suppress(OSError):
                if (entry / "cwd").readlink() == folder and (entry / "cmdline").read_bytes():
                    left.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return left


@dataclass
class Course:
    """One run, killed and gone on with until it is done."""

    folder: Path
    forks: Forks
    kills: int = 0

    def go(self, chance: random.Random, most: int) -> None:
        self.folder.mkdir()
        (self.folder / "mine.yaml").write_text(PLAN)
        while not self.ended():
            before = self.written()
            self.forks.start(self.arguments(), self.folder)
            if self.kills >= most:
                assert self.forks.ends_within(60)
                continue
            if chance.random() < 0.75:  # else anywhere, while it starts
                self.wait_for_work(before)
            if not self.forks.ends_within(chance.uniform(0, LATEST_S)):
                self.forks.kill()
                self.kills += 1
                self.check()

    def written(self) -> int:
        return sum(journal.stat().st_size for journal in journals(self.folder))

    def wait_for_work(self, before: int) -> None:
        """Until the journal grows."""
        while self.written() == before and not self.forks.ends_within(0.005):
            pass

    def arguments(self) -> list[str]:
        found = journals(self.folder)
        if found and found[0].read_bytes().count(b"\n"):
            return ["bisect", "--resume", found[0].parent.name, "--json"]
        for empty in found:  # killed before its first line was whole: there is nothing to go on with
            empty.unlink()
            empty.parent.rmdir()
        return ["bisect", "--plan", "./mine.yaml", "--trial-cmd", TRY, "--json"]

    def ended(self) -> bool:
        found = journals(self.folder)
        return bool(found) and b'"kind": "verdict"' in found[0].read_bytes()

    def check(self) -> None:
        deadline = time.monotonic() + 10
        while (left := left_running(self.folder)) and time.monotonic() < deadline:
            time.sleep(0.005)
        assert left == [], "a trial command outlived its run"
        for journal in journals(self.folder):
            done = trials(journal)
            assert [trial["number"] for trial in done] == list(range(1, len(done) + 1))
            configs = [json.dumps(trial["config"]) for trial in done]
            assert len(set(configs)) == len(configs), "a trial was made again although it was known"
            assert self.made() - len(done) <= self.kills, "more than the running trial was lost"

    def made(self) -> int:
        made = self.folder / "made"
        return len(made.read_text().splitlines()) if made.exists() else 0


@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="processes are looked for in /proc")
def test_kill_9_at_a_random_moment(tmp_path: Path, forks: Forks) -> None:
    chance, kills, runs = random.Random(SEED), 0, 0
    while kills < KILLS:
        runs += 1
        course = Course(tmp_path / f"run-{runs}", forks)
        course.go(chance, KILLS - kills)
        kills += course.kills
        (journal,) = journals(course.folder)
        entries = [json.loads(line) for line in journal.read_text().splitlines()]
        assert [e["culprit"] for e in entries if e["kind"] == "verdict"][-1] == "b=1 and e=1"
        assert entries[-1]["kind"] in ("report", "verdict")  # killed between the two, it has its verdict all the same
        course.check()
    assert kills == KILLS
    print(f"{kills} kills in {runs} runs")
