"""A loaded trace in memory again, for who reads traces from files too."""

from __future__ import annotations

from tracekit.store import Store
from tracekit.traces.load import LoadedTrace, report_of
from tracekit.traces.source import TraceSource

__all__ = ["stored_trace"]


def stored_trace(store: Store, name: str) -> LoadedTrace | None:
    """The trace that was loaded as ``name``; ``None``: there is none, or no database."""
    if not store.exists():
        return None
    with store.read() as con:
        there = con.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = 'traces'").fetchall()
        rows = con.execute("SELECT trace FROM traces WHERE name = ?", [name]).fetchall() if there else []
        if not rows:
            return None
        trace = int(rows[0][0])
        found = TraceSource.rows_of(con, trace)
        return LoadedTrace(report=report_of(con, trace), arrivals=found.arrivals, extras=found.extras, runs=found.runs)
