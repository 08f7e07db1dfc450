"""The tables of a tracekit database, and how an older file becomes a current one.

Event tables follow the row layouts of ``replay_engine.tables``: ``run`` and ``replica`` first, then the columns that are
constant within a run, then the rows' own. They have no keys or indexes: rows are written once, in order, and scanned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from replay_engine.tables import ENUMS, LONGEST, TABLES
from tracekit.store.split_view import create_split_view

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

__all__ = [
    "CONSTANTS",
    "ENUM_TYPES",
    "EVENT_TABLES",
    "EXPERIMENT_COLUMNS",
    "FINDING_COLUMNS",
    "MIGRATIONS",
    "PER_REQUEST",
    "RUN_COLUMNS",
    "SCHEMA_VERSION",
    "STORAGE_VERSION",
    "code_names",
    "event_columns",
    "migrate",
    "schema_version",
]

STORAGE_VERSION = "v1.2.0"
"""Format of the file: every DuckDB shell from 1.2.0 on opens it. It costs nothing against the newest format."""

ENUM_TYPES: dict[tuple[str, str], str] = {
    ("iterations", "head_refused_by"): "refusal",
    ("spans", "phase"): "span_phase",
    ("spans", "reason"): "refusal",
    ("outcomes", "state"): "request_state",
    ("outcomes", "reason"): "outcome_reason",
    ("preemptions", "kind"): "preemption_kind",
    ("decisions", "decision"): "decision_kind",
    ("decisions", "reason"): "outcome_reason",
    ("transfers", "ended"): "transfer_end",
}
"""SQL type of each coded column; its values are the names in ``replay_engine.tables.ENUMS``."""

CONSTANTS: dict[str, dict[str, str]] = {
    "iterations": {
        "budget": "INTEGER",
        "kv_total": "INTEGER",
        "paused": "INTEGER",
        "swapped": "INTEGER",
        "mode": "VARCHAR",
        "padded_tokens": "INTEGER",
        LONGEST[0]: "INTEGER",
        "schedule_ns": "BIGINT",
        "submit_ns": "BIGINT",
        "wait_ns": "BIGINT",
    },
    "prefill_entries": {},
    "spans": {},
    "outcomes": {},
    "preemptions": {},
    "decisions": {},
    "transfers": {},
    "routing": {},
}
"""Columns that a simulator's rows do not have (name -> SQL type). Handed over with the spool's header where they have one value
for a whole run; NULL where not given."""

PER_REQUEST: dict[str, dict[str, str]] = {
    "outcomes": {"tenant": "VARCHAR", "class": "VARCHAR", "slo_met": "BOOLEAN", "counted": "BOOLEAN"}
}
"""Columns that are looked up by request when a run is committed; NULL where not given."""

EVENT_TABLES: tuple[str, ...] = tuple(TABLES)

RUN_COLUMNS: dict[str, str] = {
    "run": "INTEGER PRIMARY KEY",
    "name": "VARCHAR",
    "trace": "INTEGER",
    "trace_name": "VARCHAR",
    "started_at": "TIMESTAMP",
    "wall_s": "DOUBLE",
    "engine": "VARCHAR",
    "profile": "VARCHAR",
    "policy": "JSON",
    "slo": "JSON",
    "events": "VARCHAR",
    "seed": "BIGINT",
    "state": "VARCHAR NOT NULL",
    "requests": "BIGINT",
    "iterations": "BIGINT",
    "command": "VARCHAR",
    "matrix": "JSON",
    "tracekit_version": "VARCHAR",
    "spool": "VARCHAR NOT NULL UNIQUE",
    "slice": "JSON",
    "setup": "JSON",
}
"""``runs``: one row per run. ``slice``: which part of the trace was replayed, and how its arrivals were placed. ``setup``: what
else it takes to replay it again, the profile as TOML among it. ``spool`` names the folder it came from, so that no spool is
committed twice."""

_SQL_TYPES = {"<i8": "BIGINT", "<i4": "INTEGER", "<i2": "SMALLINT", "<f8": "DOUBLE", "|b1": "BOOLEAN"}


def event_columns(table: str) -> dict[str, str]:
    """Columns of an event table in order, name -> SQL type. Times are ns, lengths tokens, KV blocks."""
    columns = {"run": "INTEGER", "replica": "USMALLINT"}
    dtype = TABLES[table]
    for name in dtype.names or ():
        columns.setdefault(name, ENUM_TYPES.get((table, name)) or _SQL_TYPES[np.dtype(dtype[name]).str])
    return columns | CONSTANTS[table] | PER_REQUEST.get(table, {})


def code_names(table: str, column: str) -> list[str]:
    """The names of a coded column, by code; the codes are those of spooled rows and DuckDB's ``enum_code``."""
    return list(ENUMS[table, column])


def _seconds_view(table: str) -> str:
    """A view with every ``_ns`` column as seconds, under the table's name and ``_s``."""
    parts = [f'"{c}" / 1e9 AS "{c[:-3]}_s"' if c.endswith("_ns") else f'"{c}"' for c in event_columns(table)]
    return f"CREATE VIEW {table}_s AS SELECT {', '.join(parts)} FROM {table}"


def _columns_sql(columns: dict[str, str]) -> str:
    return ", ".join(f'"{name}" {kind}' for name, kind in columns.items())


def _enums() -> dict[str, list[str]]:
    """The names of each SQL type."""
    return {kind: ENUMS[key] for key, kind in ENUM_TYPES.items()}


def _create_type(kind: str, names: list[str]) -> str:
    listed = ", ".join(f"'{name}'" for name in names)
    return f"CREATE TYPE {kind} AS ENUM ({listed})"


def _create_runs(con: DuckDBPyConnection) -> None:
    """Version 1: runs and their events."""
    con.execute("CREATE TABLE meta (key VARCHAR PRIMARY KEY, value VARCHAR NOT NULL)")
    for kind, names in _enums().items():
        con.execute(_create_type(kind, names))
    con.execute(f"CREATE TABLE runs ({_columns_sql(RUN_COLUMNS)})")
    for table in EVENT_TABLES:
        con.execute(f"CREATE TABLE {table} ({_columns_sql(event_columns(table))})")
        if any(name.endswith("_ns") for name in event_columns(table)):
            con.execute(_seconds_view(table))


_COLUMNS = (
    "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE database_name = current_database() AND NOT internal"
)
_TYPES = (
    "SELECT type_name, labels FROM duckdb_types()"
    " WHERE database_name = current_database() AND logical_type = 'ENUM' AND NOT internal"
)


def _follow_layouts(con: DuckDBPyConnection) -> None:
    """A later version: whatever the rows have gained since the file was made. Rows written before have NULL there."""
    there: dict[str, dict[str, str]] = {}
    for table, name, kind in con.execute(_COLUMNS).fetchall():
        there.setdefault(table, {})[name] = kind
    for table in EVENT_TABLES:
        con.execute(f"DROP VIEW IF EXISTS {table}_s")
    _extend_types(con, there)
    for table in EVENT_TABLES:
        columns = event_columns(table)
        con.execute(f"CREATE TABLE IF NOT EXISTS {table} ({_columns_sql(columns)})")
        for name, kind in columns.items():
            if table in there and name not in there[table]:
                con.execute(f'ALTER TABLE {table} ADD COLUMN "{name}" {kind}')
        if any(name.endswith("_ns") for name in columns):
            con.execute(_seconds_view(table))


def _extend_types(con: DuckDBPyConnection, there: Mapping[str, Mapping[str, str]]) -> None:
    """Types whose names have become more. A type cannot change while columns use it: they are text in between."""
    known = dict(con.execute(_TYPES).fetchall())
    for kind, names in _enums().items():
        if known.get(kind) == names:
            continue
        users = [key for key, own in ENUM_TYPES.items() if own == kind and key[1] in there.get(key[0], ())]
        for table, column in users:
            con.execute(f'ALTER TABLE {table} ALTER "{column}" TYPE VARCHAR')
        con.execute(f"DROP TYPE IF EXISTS {kind}")
        con.execute(_create_type(kind, names))
        for table, column in users:
            con.execute(f'ALTER TABLE {table} ALTER "{column}" TYPE {kind}')


EXPERIMENT_COLUMNS: dict[str, str] = {
    "experiment": "INTEGER PRIMARY KEY",
    "key": "VARCHAR NOT NULL",
    "name": "VARCHAR",
    "started_at": "TIMESTAMP",
    "wall_s": "DOUBLE",
    "factor": "VARCHAR NOT NULL",
    "levels": "JSON",
    "traces": "JSON",
    "spec": "JSON",
    "results": "JSON",
    "verdicts": "JSON",
    "command": "VARCHAR",
    "tracekit_version": "VARCHAR",
}
"""``experiments``: one row per experiment. ``spec`` is its plan, ``results`` the figures of every replay, ``verdicts`` the
changes and what holds across traces. ``key`` is the same for experiments whose replays are the same."""


FINDING_COLUMNS: dict[str, str] = {
    "diagnosis": "INTEGER NOT NULL",
    "run": "INTEGER NOT NULL",
    "rank": "INTEGER NOT NULL",
    "id": "VARCHAR",
    "under": "VARCHAR",
    "what": "VARCHAR NOT NULL",
    "share": "DOUBLE",
    "excess_s": "DOUBLE",
    "confidence": "VARCHAR",
    "confirmed": "BOOLEAN",
    "document": "JSON",
    "key": "VARCHAR",
    "tracekit_version": "VARCHAR",
}
"""``findings``: what diagnoses of a run found. Rank 0 is the diagnosis as a whole, its ``document`` the verdict, ``key`` the same
for equal ones; then a row a finding. ``confirmed``: whether a replay confirmed its change; NULL where nothing was replayed."""


def _create_findings(con: DuckDBPyConnection) -> None:
    con.execute(f"CREATE TABLE IF NOT EXISTS findings ({_columns_sql(FINDING_COLUMNS)})")


def _create_experiments(con: DuckDBPyConnection) -> None:
    con.execute(f"CREATE TABLE IF NOT EXISTS experiments ({_columns_sql(EXPERIMENT_COLUMNS)})")


def _note_slices(con: DuckDBPyConnection) -> None:
    con.execute("ALTER TABLE runs ADD COLUMN IF NOT EXISTS slice JSON")
    _follow_layouts(con)  # which requests were counted


def _note_setups(con: DuckDBPyConnection) -> None:
    con.execute("ALTER TABLE runs ADD COLUMN IF NOT EXISTS setup JSON")


MIGRATIONS: tuple[Callable[[DuckDBPyConnection], None], ...] = (
    _create_runs,
    _follow_layouts,
    _follow_layouts,
    _follow_layouts,
    _create_experiments,
    _follow_layouts,
    _note_slices,
    _note_setups,
    create_split_view,
    _create_findings,
    _follow_layouts,
    create_split_view,
)
"""Step ``i`` brings a database from schema version ``i`` to ``i + 1``; append only. Append ``_follow_layouts`` again whenever a
row layout or a list of names grows."""

_LATER = (_follow_layouts, _note_slices, _note_setups)
"""Steps that give an older file what a new one is made with."""
SCHEMA_VERSION = len(MIGRATIONS)


def schema_version(con: DuckDBPyConnection) -> int:
    """Schema version of an open database, 0 for one without tracekit's tables."""
    found = con.execute(
        "SELECT count(*) FROM duckdb_tables() WHERE table_name = 'meta' AND database_name = current_database()"
    ).fetchall()
    if not found[0][0]:
        return 0
    rows = con.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchall()
    return int(rows[0][0]) if rows else 0


def migrate(con: DuckDBPyConnection) -> bool:
    """Bring an open database to ``SCHEMA_VERSION``, inside the caller's transaction; whether anything was done."""
    version = schema_version(con)
    if version >= SCHEMA_VERSION:
        return False
    for step in MIGRATIONS[version:]:
        if version or step not in _LATER:
            step(con)
    con.execute("INSERT OR REPLACE INTO meta VALUES ('schema_version', ?)", [str(SCHEMA_VERSION)])
    return True
