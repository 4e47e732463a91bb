"""The record is as the journals are, whatever happens to its file; the journals can always answer."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.errors import PreconditionFailed, UsageError
from diag.records import ingest, runs, schema, store
from tests.records.journals import START, finished, journal, line, text, trial

RUN = "20261129-120000-aaaaaa"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DIAG_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(store, "BUSY_S", 0.05)
    return tmp_path / "state"


def listed() -> list[tuple[str, int, str]]:
    return [(run.run, run.trials, run.ended) for run in runs.listed(warn=pytest.fail)]


def test_a_run_is_listed_and_shown_whole(state: Path) -> None:
    finished(state)
    assert listed() == [(RUN, 2, "culprit")]
    found = runs.whole(RUN)
    assert (found.run.program, found.run.name, found.run.hosts, found.run.culprit) == (
        *("bisect", "mine", ("box",), "budget=16"),
    )
    assert [(t.outcome, t.alone, t.together) for t in found.trials] == [
        ("pass", (0, 1), (0, 0)),
        ("fail", (1, 2), (1, 1)),
    ]
    assert [(bad.trial, bad.place, bad.kind) for bad in found.bad] == [(2, 0, "garbled"), (2, 2, "no_answer")]
    assert found.read(found.trials[1].line)["number"] == 2
    assert found.last("verdict") == {
        "schema": 1,
        "kind": "verdict",
        "at_unix": 1000.0,
        "verdict": "culprit",
        "culprit": "budget=16",
    }
    assert found.last("report") is None


def test_nothing_is_made_where_there_are_no_runs(state: Path) -> None:
    assert listed() == []
    assert not state.exists()


def test_the_file_is_its_owners_alone(state: Path) -> None:
    finished(state)
    listed()
    with sqlite3.connect(state / store.NAME) as record:
        record.execute("PRAGMA journal_mode").fetchone()
        modes = {path.name: path.stat().st_mode & 0o777 for path in state.iterdir() if path.is_file()}
    assert modes
    assert set(modes.values()) == {0o600}


def test_what_has_grown_is_read_on_from_there(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = journal(state, RUN, line("start", **START), trial(1))
    assert listed() == [(RUN, 1, "cut off")]
    taken: list[int] = []
    take = ingest.take
    monkeypatch.setattr(ingest, "take", lambda record, run, one: (taken.append(one.number), take(record, run, one)))
    journal(state, RUN, trial(2, "fail", text()), line("verdict", verdict="narrowed", culprit=None))
    assert listed() == [(RUN, 2, "narrowed")]
    assert taken == [3, 4]
    assert listed() == [(RUN, 2, "narrowed")]
    assert taken == [3, 4]
    # Another file by that name, and one that became shorter, are read from the beginning.
    whole = path.read_bytes()
    path.unlink()
    path.write_bytes(whole.replace(b"narrowed", b"culprit ") + trial(3))
    assert (listed(), taken) == ([(RUN, 3, "culprit ")], [3, 4, 1, 2, 3, 4, 5])
    path.write_bytes(line("start", **START) + trial(1))
    assert (listed(), taken[7:]) == ([(RUN, 1, "cut off")], [1, 2])


def test_a_torn_line_is_read_when_it_is_whole(state: Path) -> None:
    whole = trial(2)
    journal(state, RUN, line("start", **START), trial(1), whole[:40])
    assert listed() == [(RUN, 1, "cut off")]
    journal(state, RUN, whole[40:])
    assert listed() == [(RUN, 2, "cut off")]


def test_a_run_that_was_removed_is_gone(state: Path) -> None:
    path = finished(state)
    finished(state, "20261129-130000-bbbbbb")
    assert len(listed()) == 2
    path.unlink()
    assert listed() == [("20261129-130000-bbbbbb", 2, "culprit")]
    with sqlite3.connect(state / store.NAME) as record:
        for table in ("entries", "hosts", "trials", "evidence", "verdicts"):
            assert record.execute(f"SELECT DISTINCT run FROM {table}").fetchall() == [("20261129-130000-bbbbbb",)]


@pytest.mark.parametrize("bad", [b"not json\n", b"[1]\n", b'{"kind": 7}\n', line("trial", number=1), b"\xff\xfe\n"])
def test_a_bad_line_costs_its_run_alone(state: Path, bad: bytes) -> None:
    finished(state)
    journal(state, "20261129-140000-cccccc", line("start", **START), trial(1), bad, trial(2))
    assert listed()[1] == (RUN, 2, "culprit")
    assert "line 3" in listed()[0][2]
    with pytest.raises(PreconditionFailed, match="line 3"):
        runs.whole("20261129-140000-cccccc")


def test_a_journal_of_nothing_is_said_to_be_empty(state: Path) -> None:
    journal(state, RUN)
    assert listed() == [(RUN, 0, "its journal cannot be read: it is empty")]
    journal(state, RUN, trial(1))
    assert "does not begin" in listed()[0][2]


def test_an_unknown_run_names_the_nearest(state: Path) -> None:
    finished(state)
    with pytest.raises(UsageError) as told:
        runs.whole("20261129-120000-aaaaab")
    assert RUN in told.value.details[0]


def test_who_works_on_it_now_is_seen(state: Path) -> None:
    from diag.journal import Journal

    journal(state, RUN, line("start", **START), trial(1))
    with Journal.reopen(state / "runs" / RUN, RUN):
        assert listed() == [(RUN, 1, "running" if Path("/proc/locks").exists() else "cut off")]
    assert listed() == [(RUN, 1, "cut off")]


# --- a record that cannot be used ----------------------------------------------------------------------------------


def _damaged(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "other":
        path.write_bytes(b"Dear diary, " * 999)
    elif how == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif how == "empty table":
        with sqlite3.connect(path) as record:
            record.execute("DROP TABLE trials")
    elif how == "flipped":
        for at in range(4096, len(content), 7):
            content[at] ^= 0xFF
        path.write_bytes(content)


@pytest.mark.parametrize("how", ["other", "cut", "empty table", "flipped"])
def test_a_broken_file_is_made_anew(state: Path, how: str) -> None:
    finished(state)
    for number in range(30):
        finished(state, f"20261128-1200{number:02}-aaaaaa")
    assert len(listed()) == 31
    _damaged(state / store.NAME, how)
    told: list[str] = []
    found = runs.listed(warn=told.append)
    assert [(run.trials, run.ended) for run in found] == [(2, "culprit")] * 31
    assert "made anew" in told[0]
    assert len(runs.whole(RUN, warn=pytest.fail).trials) == 2
    assert len(listed()) == 31


def test_damage_that_only_a_later_question_meets(state: Path) -> None:
    finished(state)
    listed()
    with sqlite3.connect(state / store.NAME) as record:
        record.execute("DROP TABLE evidence")
    told: list[str] = []
    assert len(runs.whole(RUN, warn=told.append).bad) == 2
    assert len(told) == 1


def test_a_newer_file_is_left_alone_and_the_answer_is_there(state: Path) -> None:
    finished(state)
    listed()
    with sqlite3.connect(state / store.NAME) as record:
        record.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    before = (state / store.NAME).read_bytes()
    told: list[str] = []
    assert [run.ended for run in runs.listed(warn=told.append)] == ["culprit"]
    assert "newer" in told[0]
    assert (state / store.NAME).read_bytes() == before


def test_a_file_in_use_keeps_no_answer_back(state: Path) -> None:
    finished(state)
    listed()
    other = sqlite3.connect(state / store.NAME, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert len(listed()) == 1  # nothing new: reading is enough
    finished(state, "20261129-130000-bbbbbb")
    told: list[str] = []
    assert [run.trials for run in runs.listed(warn=told.append)] == [2, 2]
    assert "left alone" in told[0]
    other.execute("ROLLBACK")
    other.close()
    assert len(listed()) == 2


def test_a_place_that_cannot_be_written(state: Path) -> None:
    finished(state)
    (state / store.NAME).mkdir()
    told: list[str] = []
    assert [run.ended for run in runs.listed(warn=told.append)] == ["culprit"]
    assert "left alone" in told[0]


def test_eight_at_once_see_the_same(state: Path) -> None:
    for number in range(20):
        finished(state, f"20261128-1200{number:02}-aaaaaa")
    ask = "from diag.records import runs; print(sum(run.trials for run in runs.listed()))"
    children = [
        subprocess.Popen([sys.executable, "-c", ask], stdout=subprocess.PIPE, env=os.environ, text=True)
        for _ in range(8)
    ]
    assert [child.communicate()[0].strip() for child in children] == ["40"] * 8
    assert sum(run.trials for run in runs.listed(warn=pytest.fail)) == 40


# --- whatever a line holds -----------------------------------------------------------------------------------------

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)
_NAMES = (
    "number",
    "outcome",
    "texts",
    "config",
    "effective",
    "host",
    "hosts",
    "verdict",
    "id",
    "state",
    "at_unix",
    "out",
)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries({"kind": st.sampled_from(sorted(ingest._READERS))}, optional=dict.fromkeys(_NAMES, _JSON))
    )
)
def test_any_line_is_rows_or_a_problem(entries: list[dict[str, object]]) -> None:
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as record:
        schema.migrate(record)
        record.execute("INSERT INTO runs VALUES ('r', '?', '?', 0, 0, NULL, NULL, NULL, 0, 0, 0, 0, '')")
        for number, entry in enumerate([{"kind": "start"}, *entries], 1):
            raw = json.dumps(entry).encode()
            with contextlib.suppress(ingest.BadLine):
                ingest.take(record, "r", ingest.Line(number, 0, raw, json.loads(raw)))
        assert [run.run for run in runs._listed(record)] == ["r"]
        assert isinstance(runs._whole(record, "r"), runs.Whole)
