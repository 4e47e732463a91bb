"""Scenarios over versions or commits, for test_transcripts.py.

over: {versions: [ids]} or {commits: {id: [parents, the first one first]}}, older ones first; bases (default 1): how
many of the first are under no suspicion; titles, builds: {id: text}; first_bad; does_not_start: [ids]; command: true
where a command is the trial.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from simulated_host import SimulatedHost

from diag.bisect.over import page
from diag.bisect.over.axis import Axis, Place, row
from diag.bisect.over.search import FirstBadSearch
from diag.bisect.over.session import Asked, Question, Ready
from diag.bisect.run import Result


def axis_of(over: Mapping[str, Any]) -> Axis:
    if "versions" in over:
        return row("version", over["versions"])
    ids = list(over["commits"])
    titles, builds = over.get("titles", {}), over.get("builds", {})
    places = (
        Place(one, tuple(ids.index(parent) for parent in parents), builds.get(one, ""), titles.get(one, ""))
        for one, parents in over["commits"].items()
    )
    return Axis("commit", tuple(places), over.get("bases", 1))


def scenario(header: Mapping[str, Any], disturb: Any) -> tuple[SimulatedHost, FirstBadSearch]:
    over = header["over"]
    axis = axis_of(over)
    first_bad, dead = axis.index[over["first_bad"]], over.get("does_not_start", [])
    host = SimulatedHost(
        axis.space,
        lambda values: bool(axis.contains[axis.index[str(values[axis.name])], first_bad]),
        starts=lambda config: config[axis.name] not in dead,
        disturb=disturb,
    )
    search = FirstBadSearch(axis, flaky=header.get("flaky", False), max_trials=header.get("max_trials"))
    return host, search


def told(header: Mapping[str, Any], result: Result) -> Iterator[tuple[str, str]]:
    """The page at the end."""
    axis = axis_of(header["over"])
    what = "versions" if axis.name == "version" else "commits"
    question = Question(what, axis.places[0].id, axis.places[-1].id, "toy")
    command = "a command" if header["over"].get("command") else None
    asked = Asked(question, None, command, (), ("a-host",) if command is None else (), {}, header.get("flaky", False))
    return page.page(result, Ready(asked, axis))
