"""The event tables of a run as CSV or Parquet: one file for one table, a folder for several.

Times are ns, lengths tokens, KV blocks. Columns are those of the database, names instead of codes. DuckDB writes the files
itself, a piece at a time.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.errors import UsageError, shown
from tracekit.exports.destination import STDOUT, whole_file, whole_folder
from tracekit.store.schema import EVENT_TABLES, event_columns

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

__all__ = ["KINDS", "chosen_tables", "write_tables"]

KINDS = {"csv": "FORMAT csv, HEADER", "parquet": "FORMAT parquet, COMPRESSION zstd"}
_ORDER = ("replica", "request", "iteration", "start_ns", "end_ns", "at_ns", "preempted_ns", "asked_ns", "attempt")
_BY_TIME = ("iterations", "prefill_entries", "preemptions", "decisions", "transfers", "routing")


def chosen_tables(con: DuckDBPyConnection, run: int, asked: Sequence[str] = ()) -> dict[str, int]:
    """Rows by table: those that were asked for, else all that the run has rows in. ``UsageError``: no such table, or no rows."""
    unknown = [each for each in asked if each not in EVENT_TABLES]
    if unknown:
        raise UsageError(f"--table {shown(unknown[0])}: no such table; expected one of {', '.join(EVENT_TABLES)}")
    counts = {}
    for table in asked or EVENT_TABLES:
        rows = con.execute(f"SELECT count(*) FROM {table} WHERE run = ?", [run]).fetchall()[0][0]
        if rows or asked:
            counts[table] = int(rows)
    if not counts:
        raise UsageError(f"run {run} keeps no events; replay with --events full")
    return counts


def write_tables(con: DuckDBPyConnection, run: int, kind: str, tables: Sequence[str], out: str | Path, *, force: bool) -> None:
    """Write ``tables`` as ``kind`` (of ``KINDS``): one as the file ``out`` (``-``: standard output), several into the folder
    ``out``, each under its name. ``UsageError`` as in ``destination``."""
    if len(tables) == 1:
        with whole_file(out, force=force) as stream, tempfile.TemporaryDirectory(prefix="tracekit-export-") as scratch:
            part = Path(scratch, tables[0])
            _copy(con, run, kind, tables[0], part)
            with part.open("rb") as written:
                shutil.copyfileobj(written, stream)
        return
    if str(out) == STDOUT:
        raise UsageError(f"--out -: {len(tables)} tables do not go into one stream; expected --table NAME, or a folder")
    with whole_folder(out, frozenset(f"{table}.{kind}" for table in EVENT_TABLES), force=force) as folder:
        for table in tables:
            _copy(con, run, kind, table, folder / f"{table}.{kind}")


def _copy(con: DuckDBPyConnection, run: int, kind: str, table: str, path: Path) -> None:
    quoted = str(path).replace("'", "''")
    con.execute(f"COPY (SELECT * FROM {table} WHERE run = {int(run)} ORDER BY {_order(table)}) TO '{quoted}' ({KINDS[kind]})")


def _order(table: str) -> str:
    keys = [key for key in _ORDER if key in event_columns(table)]
    if table in _BY_TIME and "request" in keys:
        keys.sort(key="request".__eq__)  # what happened when, then to whom
    return ", ".join(f'"{key}"' for key in keys)
