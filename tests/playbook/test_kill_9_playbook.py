"""kill -9 at every boundary of a step, and at random moments, then `resume`: it ends as if nothing had happened.

On a toy host, so that a whole story takes seconds; benchmarks/playbooks.py does each boundary and each moment in a run
of its own, and on the lab.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.playbook import kills, toys
from tests.playbook.kills import Course, Forks

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(600)]

SEED = 20261130
MOMENTS = 10
LATEST_S = 3.0
"""About as long as a few steps take."""


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with kills.forked() as running:
        yield running


@pytest.fixture(scope="module")
def unbroken(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    course = Course(toys.build(tmp_path_factory.mktemp("unbroken")), forks)
    course.go_on()
    return as_it_ended(course)


def as_it_ended(course: Course) -> dict[str, Any]:
    assert kills.wait_until_quiet(course.toy) == [], "a server outlived its run"
    assert course.toy.is_pristine()
    assert course.journal is not None
    state = kills.end_state(course.journal)
    assert state["outstanding"] == []
    return state


def test_at_every_boundary_of_a_step(forks: Forks, unbroken: dict[str, Any], tmp_path: Path) -> None:
    course = Course(toys.build(tmp_path), forks)
    course.at_every_boundary()
    course.go_on()
    assert as_it_ended(course) == unbroken
    # An assertion is over in no time: a kill that is meant for it may fall on what comes next.
    slow = {"before", "cause", "mend", "after", "back", "as_before"}
    assert {line.partition(" ")[0] for line in course.at} >= slow, course.at


def test_at_random_moments(forks: Forks, unbroken: dict[str, Any], tmp_path: Path) -> None:
    course = Course(toys.build(tmp_path), forks)
    course.at_random(random.Random(SEED), MOMENTS, LATEST_S)
    course.go_on()
    assert as_it_ended(course) == unbroken
    assert course.kills > 0
