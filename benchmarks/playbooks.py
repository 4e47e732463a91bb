"""kill -9 while a playbook runs, then `diag playbook resume`: does it come to the same end, and is the host as it was?

    python benchmarks/playbooks.py                       each boundary and ten moments, a run each, on a toy host
    python benchmarks/playbooks.py --lab PLAN --every 4  some of them on the lab that DIAG_BENCH_LAB names (its folder
                                                         below the state folder), with a plan of few trials

Prints a table: where it was killed, how long to go on took, and whether the end is that of an unbroken run: the same
verdict, the same values of each step, every change given back, the file pristine, no server left.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.playbook import kills, toys
from tests.playbook.kills import Course, Forks
from tests.playbook.toys import Toy

SEED = 20261130
MOMENTS = 10


class LabHost(Toy):
    """The lab that is up, with the interface of a toy host: root holds the runs' own state."""

    @property
    def file(self) -> Path:
        from diag.lab.layout import Lab

        return Lab(Path(os.environ["DIAG_BENCH_LAB"])).site_packages / toys.PATH

    def servers(self) -> list[str]:
        return list(toys.running(str(Path(os.environ["DIAG_BENCH_LAB"]) / "host" / "venv")))


@dataclass(frozen=True)
class Row:
    """resume_s: from the kill to the end. wrong: what is not as after an unbroken run."""

    where: str
    killed_at: str
    resume_s: float
    wrong: tuple[str, ...]


def differences(course: Course, unbroken: dict[str, Any]) -> Iterator[str]:
    if kills.wait_until_quiet(course.toy, 60):
        yield "a server is left"
    if not course.toy.is_pristine():
        yield "the file is not pristine"
    if course.journal is None:
        yield "no journal"
        return
    state = kills.end_state(course.journal)
    yield from (key for key in unbroken if state[key] != unbroken[key])


def unbroken_run(make: Callable[[], Course]) -> tuple[dict[str, Any], list[str], float]:
    """(its end, the lines of its steps in order, seconds)"""
    course, began = make(), time.monotonic()
    course.go_on()
    took = time.monotonic() - began
    if course.journal is None:
        sys.exit("the unbroken run wrote no journal")
    lines = [one for one in toys.entries(course.journal) if one["kind"] == "step"]
    return kills.end_state(course.journal), [f"{one['id']} {one['state']}" for one in lines], took


def killed(make: Callable[[], Course], where: str, when: Callable[[Course, float], bool], end: dict[str, Any]) -> Row:
    course = make()
    if not course.killed(lambda spent: when(course, spent)):
        return Row(where, "it had ended", 0.0, tuple(differences(course, end)))
    began = time.monotonic()
    course.go_on()
    return Row(where, course.at[-1], time.monotonic() - began, tuple(differences(course, end)))


def rows(make: Callable[[], Course], every: int, skip: int = 0) -> Iterator[Row]:
    end, lines, took = unbroken_run(make)
    print(f"unbroken: {took:.1f} s, {len(lines)} boundaries, verdict {end['verdict'][0]}", flush=True)
    for line in lines[skip::every]:
        yield killed(make, f"at '{line}'", lambda course, _, line=line: line in course.seen(), end)
    chance = random.Random(SEED)
    for _ in range(MOMENTS if every == 1 else max(2, MOMENTS // every)):
        moment = chance.uniform(0, took)
        yield killed(make, f"after {moment:.1f} s", lambda _, spent, moment=moment: spent > moment, end)


def maker(forks: Forks, scratch: Path, lab: str | None) -> Callable[[], Course]:
    numbers = iter(range(10_000))

    def make() -> Course:
        root = scratch / str(next(numbers))
        if lab is None:
            return Course(toys.build(root), forks)
        (root / "config" / "hosts.d").mkdir(parents=True)
        known = Path(os.environ["DIAG_BENCH_LAB"]).parent.parent / "config" / "hosts.d" / "lab.toml"
        (root / "config" / "hosts.d" / "lab.toml").write_bytes(known.read_bytes())
        return Course(LabHost(root), forks, host="lab", sets={"ask": "false", "plan": lab})

    return make


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--lab", metavar="PLAN", help="on the lab whose folder DIAG_BENCH_LAB names, with this plan")
    parser.add_argument("--every", type=int, default=1, help="only every n-th boundary")
    parser.add_argument("--skip", type=int, default=0, help="without the first n boundaries")
    given = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="diag-playbooks-") as scratch, kills.forked() as forks:
        print(f"{'killed':28} {'last line of a step':22} {'to go on':>9}  end")
        for row in rows(maker(forks, Path(scratch), given.lab), given.every, given.skip):
            wrong += bool(row.wrong)
            end = ", ".join(row.wrong) or "as unbroken"
            print(f"{row.where:28} {row.killed_at:22} {row.resume_s:7.1f} s  {end}", flush=True)
    print(f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
