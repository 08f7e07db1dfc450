"""Traces that were loaded, found by their names; for who reads traces from files too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.store import Store
from tracekit.traces.load import LoadedTrace, read_trace, report_of
from tracekit.traces.source import TraceSource

if TYPE_CHECKING:
    import duckdb

__all__ = ["loaded_or_read", "stored_number"]


def stored_number(con: duckdb.DuckDBPyConnection, name: str) -> int | None:
    """The number of the trace that was loaded as ``name``; ``None``: there is none, or no trace at all."""
    there = con.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = 'traces'").fetchall()
    rows = con.execute("SELECT trace FROM traces WHERE name = ?", [name]).fetchall() if there else []
    return int(rows[0][0]) if rows else None


def loaded_or_read(inputs: str | Sequence[str], db: str | Path) -> LoadedTrace:
    """The trace in files, or the one that was loaded by a name that no file has. Errors: ``InputError``, ``UsageError``."""
    names, store = [inputs] if isinstance(inputs, str) else list(inputs), Store(db)
    if len(names) == 1 and not Path(names[0]).exists() and store.exists():
        with store.read() as con:
            number = stored_number(con, names[0])
            if number is not None:
                found = TraceSource.rows_of(con, number)
                return LoadedTrace(report=report_of(con, number), arrivals=found.arrivals, extras=found.extras, runs=found.runs)
    return read_trace(names)
