"""Tables of a database as polars frames, for whoever goes on from there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.errors import UsageError, shown
from tracekit.store import Store
from tracekit.store.schema import EVENT_TABLES

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

__all__ = ["requests_frame", "run_frame"]


def run_frame(db: str | Path, run: int, table: str) -> pl.DataFrame:
    """An event table of a run (``outcomes``, ``iterations``, ``spans``, ...), a row per row; units are in the columns' names."""
    if table not in EVENT_TABLES:
        raise UsageError(f"{shown(table)}: no table of a run; expected one of {', '.join(EVENT_TABLES)}")
    order = "request" if table in ("outcomes", "spans") else "ALL"
    with Store(db).read() as con:
        query = f"SELECT * EXCLUDE (run) FROM {table} WHERE run = {int(run)} ORDER BY {order}"
        return _polars(con.sql(query).to_arrow_table())


def requests_frame(db: str | Path, trace: int) -> pl.DataFrame:
    """The requests of a loaded trace, in the order of their arrival; columns that it does not know are left out."""
    with Store(db).read() as con:
        query = f"SELECT * EXCLUDE (trace) FROM requests WHERE trace = {int(trace)} ORDER BY req_idx"
        frame = _polars(con.sql(query).to_arrow_table())
    return frame[[column.name for column in frame if column.null_count() < frame.height]]


def _polars(table: pa.Table) -> pl.DataFrame:
    import polars as pl

    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame
