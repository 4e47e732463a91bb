"""The tables of the record, and how an older file becomes a newer one.

Nothing bulky is kept here: `entries` says where each line stands in its journal, the rest is what lists, tables and
comparisons need. `user_version` counts the migrations that a file has had.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

_FIRST = """
CREATE TABLE runs (
  run TEXT PRIMARY KEY,
  program TEXT NOT NULL,          -- bisect, playbook, probe
  name TEXT NOT NULL,             -- of the plan, the playbook, or what was probed
  began_unix REAL,
  ended_unix REAL,
  verdict TEXT,                   -- the last one; NULL while there is none
  culprit TEXT,
  problem TEXT,                   -- why the journal could not be read on, or NULL
  size_bytes INTEGER NOT NULL,    -- of the journal when it was read, and the next two likewise
  mtime_ns INTEGER NOT NULL,
  inode INTEGER NOT NULL,
  read_bytes INTEGER NOT NULL,    -- whole lines, all of them in the tables
  last_hash TEXT NOT NULL         -- of the last of them: it is what tells this journal from another one in its place
) WITHOUT ROWID;

CREATE TABLE entries (
  run TEXT NOT NULL REFERENCES runs ON DELETE CASCADE,
  number INTEGER NOT NULL,        -- of the line, from 1
  kind TEXT NOT NULL,
  at_unix REAL,
  offset_bytes INTEGER NOT NULL,
  size_bytes INTEGER NOT NULL,
  PRIMARY KEY (run, number)
) WITHOUT ROWID;

CREATE TABLE hosts (
  run TEXT NOT NULL REFERENCES runs ON DELETE CASCADE,
  host TEXT NOT NULL,
  position INTEGER NOT NULL,
  left_out TEXT,                  -- why nothing more was tried there, or NULL
  facts INTEGER,                  -- number of the line that holds what the host said of itself
  PRIMARY KEY (run, host)
) WITHOUT ROWID;

CREATE TABLE steps (
  run TEXT NOT NULL REFERENCES runs ON DELETE CASCADE,
  entry INTEGER NOT NULL,
  step TEXT NOT NULL,             -- its id in the playbook
  kind TEXT NOT NULL,
  state TEXT NOT NULL,
  seconds REAL,
  PRIMARY KEY (run, entry)
) WITHOUT ROWID;

CREATE TABLE trials (
  run TEXT NOT NULL REFERENCES runs ON DELETE CASCADE,
  number INTEGER NOT NULL,
  entry INTEGER NOT NULL,
  host TEXT NOT NULL,
  outcome TEXT NOT NULL,
  signature TEXT NOT NULL,
  purpose TEXT NOT NULL,
  reason TEXT NOT NULL,
  config TEXT NOT NULL,           -- JSON
  effective TEXT NOT NULL,        -- JSON
  garbled_alone INTEGER NOT NULL,
  asked_alone INTEGER NOT NULL,
  garbled_together INTEGER NOT NULL,
  asked_together INTEGER NOT NULL,
  start_s REAL NOT NULL,
  total_s REAL NOT NULL,
  PRIMARY KEY (run, number)
) WITHOUT ROWID;

CREATE TABLE evidence (           -- texts that were not healthy
  run TEXT NOT NULL REFERENCES runs ON DELETE CASCADE,
  trial INTEGER NOT NULL,
  text INTEGER NOT NULL,          -- its place among the trial's texts, from 0
  prompt TEXT NOT NULL,
  how TEXT NOT NULL,
  kind TEXT NOT NULL,
  worst_gap_nats REAL,
  PRIMARY KEY (run, trial, text)
) WITHOUT ROWID;

CREATE TABLE verdicts (
  run TEXT NOT NULL REFERENCES runs ON DELETE CASCADE,
  entry INTEGER NOT NULL,
  verdict TEXT NOT NULL,
  culprit TEXT,
  PRIMARY KEY (run, entry)
) WITHOUT ROWID;
"""

MIGRATIONS: tuple[str, ...] = (_FIRST,)
"""In the order they came; never changed afterwards, only added to."""

VERSION = len(MIGRATIONS)


def version_of(record: sqlite3.Connection) -> int:
    (version,) = record.execute("PRAGMA user_version").fetchone()
    return int(version)


def migrate(record: sqlite3.Connection, migrations: Sequence[str] = MIGRATIONS) -> None:
    """To the newest version, in one transaction for each step. For whoever holds it already, nothing."""
    while (version := version_of(record)) < len(migrations):
        record.execute("BEGIN IMMEDIATE")
        try:
            if version_of(record) == version:  # nobody else did it while we waited
                for statement in _statements(migrations[version]):
                    record.execute(statement)
                record.execute(f"PRAGMA user_version = {version + 1}")
            record.execute("COMMIT")
        except BaseException:
            record.execute("ROLLBACK")
            raise


def _statements(script: str) -> list[str]:
    """`executescript` would end the transaction."""
    plain = "\n".join(line.partition("--")[0] for line in script.splitlines())
    return [statement for statement in plain.split(";") if statement.strip()]
