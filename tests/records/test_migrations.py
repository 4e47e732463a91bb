"""Yesterday's record is opened today; a step that fails leaves the file as it was."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from diag.records import runs, schema, store
from tests.records.journals import finished, journal, trial

RUN = "20261129-120000-aaaaaa"
V1 = Path(__file__).with_name("record-v1.sql")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DIAG_STATE_DIR", str(tmp_path))
    finished(tmp_path)
    with sqlite3.connect(tmp_path / store.NAME) as record:
        record.executescript(V1.read_text())
    return tmp_path


def test_a_record_of_version_1_is_read_and_read_on(state: Path) -> None:
    found = runs.whole(RUN, warn=pytest.fail)
    assert (found.run.ended, found.run.trials, len(found.bad)) == ("culprit", 2, 2)
    journal(state, RUN, trial(3))
    assert runs.whole(RUN, warn=pytest.fail).run.trials == 3
    with sqlite3.connect(state / store.NAME) as record:
        assert schema.version_of(record) == schema.VERSION


def test_the_first_migration_makes_what_version_1_had(state: Path) -> None:
    with sqlite3.connect(state / store.NAME) as old, sqlite3.connect(":memory:", isolation_level=None) as new:
        schema.migrate(new, schema.MIGRATIONS[:1])
        tables = "SELECT name, sql FROM sqlite_master WHERE type = 'table' ORDER BY name"
        plain = [{name: " ".join(sql.split()) for name, sql in one.execute(tables)} for one in (old, new)]
    assert plain[0] == plain[1]


def test_each_step_is_taken_once_and_whole() -> None:
    steps = (
        "CREATE TABLE a (x)",
        "CREATE TABLE b (x); INSERT INTO b VALUES (1) -- one; two\n",
        "CREATE TABLE c (x); BROKEN",
    )
    with sqlite3.connect(":memory:", isolation_level=None) as record:
        schema.migrate(record, steps[:2])
        schema.migrate(record, steps[:2])
        assert record.execute("SELECT count(*) FROM b").fetchone() == (1,)
        with pytest.raises(sqlite3.OperationalError):
            schema.migrate(record, steps)
        assert schema.version_of(record) == 2
        assert record.execute("SELECT name FROM sqlite_master ORDER BY name").fetchall() == [("a",), ("b",)]
