"""Runs in the database: list, find by what a person types, remove, and free queries."""

from __future__ import annotations

import difflib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracekit.errors import UsageError, shown
from tracekit.store.database import Store, one_line
from tracekit.store.schema import EVENT_TABLES

__all__ = ["QueryResult", "Removed", "database_size", "list_runs", "load_run", "remove_runs", "resolve_run", "run_rows", "sql"]

_LISTED = (
    "run", "name", "trace_name", "started_at", "wall_s", "engine", "profile", "events", "seed", "state", "requests",
    "iterations", "tracekit_version", "command",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    """What a query gave: column names, DuckDB type names, and rows of Python values."""

    columns: list[str]
    types: list[str]
    rows: list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """What ``remove_runs`` did; bytes by which the file shrank, and bytes within it that are free to be written again."""

    runs: list[int]
    events: int
    freed_bytes: int
    reusable_bytes: int


def list_runs(store: Store) -> list[dict[str, Any]]:
    """The runs, oldest first, without their JSON columns."""
    with store.read() as con:
        rows = con.execute(f"SELECT {', '.join(_LISTED)} FROM runs ORDER BY run").fetchall()
    return [dict(zip(_LISTED, row, strict=True)) for row in rows]


def load_run(store: Store, run: int) -> dict[str, Any]:
    """The whole ``runs`` row, its JSON columns as values. ``UsageError`` where there is none."""
    with store.read() as con:
        result = con.execute("SELECT * FROM runs WHERE run = ?", [run])
        names = [column[0] for column in result.description]
        rows = result.fetchall()
    if not rows:
        raise UsageError(f"run {run}: no such run in {store.path}; `tracekit runs` lists them")
    row = dict(zip(names, rows[0], strict=True))
    for name in ("policy", "slo", "matrix", "slice", "setup"):
        row[name] = None if row[name] is None else json.loads(row[name])
    return row


def resolve_run(store: Store, text: str) -> int:
    """The run that a number, ``last``, or a name means (of several of one name, the latest)."""
    with store.read() as con:
        known = con.execute("SELECT run, name FROM runs ORDER BY run DESC").fetchall()
    if not known:
        raise UsageError(f"'{shown(text)}': {store.path} holds no runs yet; `tracekit replay` makes one")
    if text == "last":
        return int(known[0][0])
    for run, name in known:
        if name == text or (text.isascii() and text.isdigit() and int(text) == run):
            return int(run)
    near = difflib.get_close_matches(text, [name for _, name in known if name], 3)
    hint = f"names like it: {', '.join(near)}" if near else f"the latest is {known[0][0]}"
    raise UsageError(f"'{shown(text)}': no such run in {store.path}; expected a run's number, its name, or last; {hint}")


def run_rows(store: Store) -> dict[int, dict[str, int]]:
    """Event rows per run and table."""
    counts: dict[int, dict[str, int]] = {}
    with store.read() as con:
        for table in EVENT_TABLES:
            for run, rows in con.execute(f"SELECT run, count(*) FROM {table} GROUP BY run ORDER BY run").fetchall():
                counts.setdefault(run, {})[table] = rows
    return counts


def remove_runs(store: Store, runs: Sequence[int]) -> Removed:
    """Remove runs and their events in one transaction; ``UsageError`` when one of them is not there."""
    wanted = sorted(set(runs))
    before = database_size(store)
    events = 0
    with store.write("remove runs") as con:
        there = {row[0] for row in con.execute("SELECT run FROM runs").fetchall()}
        missing = [run for run in wanted if run not in there]
        if missing:
            raise UsageError(f"run {missing[0]}: no such run in {store.path}; nothing was removed")
        for table in (*EVENT_TABLES, "findings", "runs"):
            gone = con.execute(f"DELETE FROM {table} WHERE list_contains(?, run)", [wanted]).fetchall()
            events += int(gone[0][0]) if table in EVENT_TABLES else 0
    for run in wanted:
        shutil.rmtree(store.folder / "runs" / str(run), ignore_errors=True)  # manifest and verdict
    after = database_size(store)
    return Removed(
        runs=wanted,
        events=events,
        freed_bytes=max(0, before["file_bytes"] - after["file_bytes"]),
        reusable_bytes=after["free_bytes"],
    )


def database_size(store: Store) -> dict[str, int]:
    """Bytes: ``file_bytes`` on disk, ``free_bytes`` of it reusable, ``wal_bytes``, ``spool_bytes``."""
    with store.read() as con:
        block, free = con.execute(
            "SELECT block_size, free_blocks FROM pragma_database_size() WHERE database_name = current_database()"
        ).fetchall()[0]
    wal = store.path.with_name(store.path.name + ".wal")
    return {
        "file_bytes": store.path.stat().st_size,
        "free_bytes": int(block) * int(free),
        "wal_bytes": _bytes_of(wal),
        "spool_bytes": sum(_bytes_of(file) for file in store.spool_folder.rglob("*")),
    }


def _bytes_of(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:
        return 0


def sql(store: Store, query: str) -> QueryResult:
    """Run a query on a read-only connection. A mistake in it is a ``UsageError`` of one line."""
    import duckdb

    with store.read() as con:
        try:
            result = con.execute(query)
            description = result.description or []
            rows = result.fetchall() if description else []
        except duckdb.Error as error:
            raise UsageError(f"sql: {one_line(error)}") from None
    return QueryResult(columns=[c[0] for c in description], types=[str(c[1]) for c in description], rows=rows)
