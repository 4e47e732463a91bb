"""Probes are kept as runs, bounded; a probe never fails for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diag.records import changes, probes, runs
from diag.report import run as reports
from tests.report.stories import FACTS


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DIAG_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


def document(*findings: tuple[str, str], **facts: Any) -> dict[str, Any]:
    told = [{"id": name, "severity": severity, "what": f"{name} is so", "next": "do it"} for name, severity in findings]
    return {**FACTS, "facts": {**FACTS["facts"], **facts}, "findings": told}


def test_a_probe_is_listed_and_reported(state: Path) -> None:
    run = probes.record("gpu1", {"gpu1": document(("mask-indptr", "fault"), ("odd", "notice"))}, 1, warn=pytest.fail)
    assert run is not None
    (listed,) = runs.listed(warn=pytest.fail)
    assert (listed.program, listed.name, listed.hosts, listed.ended) == ("probe", "gpu1", ("gpu1",), "fault")
    made = reports.document(runs.whole(run))
    assert made["answer"] == ["FAULT   gpu1: 1 fault found"]
    assert made["reasons"][0] == {"label": "fault", "text": "mask-indptr: mask-indptr is so"}
    assert made["next"] == ["do it"]
    assert made["exit_code"] == 1
    assert ["driver", "580.1"] in made["facts"][0]["lines"]


def test_a_group_is_one_run(state: Path) -> None:
    gone = {"error": {"what": "It cannot be reached."}}
    differ = [{"what": "driver", "matters": True, "values": {"a": "1", "b": "2"}}]
    run = probes.record("all", {"a": document(), "b": document(), "c": gone}, 4, differ, pytest.fail)
    assert run is not None
    found = runs.whole(run)
    assert (found.run.hosts, dict(found.left_out)) == (("a", "b", "c"), {"c": "It cannot be reached."})
    made = reports.document(found)
    assert (made["ended"], made["exit_code"]) == ("unreachable", 4)
    assert made["reasons"] == [{"label": "differs", "text": "driver: a 1, b 2"}]


def test_the_oldest_go(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "KEPT", 3)
    names = [f"2026112{day}-000000-aaaaaa{probes.SUFFIX}" for day in range(5)]
    for name in names:
        (state / "runs" / name).mkdir(parents=True)
        (state / "runs" / name / "journal.jsonl").write_text("x")
    other = state / "runs" / "20200101-000000-aaaaaa"
    other.mkdir()
    run = probes.record("gpu1", {"gpu1": document()}, 0, warn=pytest.fail)
    left = {path.name for path in (state / "runs").iterdir()}
    assert left == {names[3], names[4], str(run), other.name}
    monkeypatch.setattr(probes, "KEPT_BYTES", 10)
    probes.record("gpu1", {"gpu1": document()}, 0, warn=pytest.fail)
    assert {path.name for path in (state / "runs").iterdir()} == {other.name}


def test_where_nothing_can_be_written_it_is_said(state: Path) -> None:
    state.mkdir()
    (state / "runs").write_text("a file")
    told: list[str] = []
    assert probes.record("gpu1", {"gpu1": document()}, 0, warn=told.append) is None
    assert "not kept" in told[0]


def test_what_changed_between_two_probes_of_a_host(state: Path) -> None:
    before = document(("mask-indptr", "fault"))
    after = document(driver="590.2")
    after["environments"] = [{**FACTS["environments"][0], "packages": {"sglang": "0.5.16", "torch": "2.9.1"}}]
    names = [probes.record("gpu1", {"gpu1": one}, code, warn=pytest.fail) for one, code in ((before, 1), (after, 0))]
    wholes = [runs.whole(str(name)) for name in names]
    facts = [whole.said_of_hosts() for whole in wholes]
    found = changes.changes(*(reports.document(whole) for whole in wholes), facts)
    told = {(one.group, one.what): (one.before, one.after) for one in found}
    assert told["run", "ended"] == ("fault", "healthy")
    assert told["run", "fault is gone"][0] == "mask-indptr: mask-indptr is so"
    assert told["host gpu1", "driver"] == ("580.1", "590.2")
    assert told["host gpu1", "package sglang"] == ("0.5.12", "0.5.16")
    assert told["host gpu1", "package triton"] == ("3.5.0", "(absent)")
    assert ("host gpu1", "package torch") not in told
