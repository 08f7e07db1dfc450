"""From the spool into the tables: one transaction, in pieces of bounded size."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from replay_engine.tables import ENUMS, NULLABLE
from tracekit.errors import InputError
from tracekit.store.database import Store, one_line
from tracekit.store.files import write_json
from tracekit.store.schema import PER_REQUEST, RUN_COLUMNS, event_columns
from tracekit.store.spool import STATE, SpoolSink, cut_columns, read_header, remove_spool, row_layout, spool_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection

__all__ = ["commit_folder", "commit_rows", "commit_run", "note_complete"]

PIECE = 2 * 122_880
"""Rows inserted at a time: two of DuckDB's row groups, 28 MB of iterations."""
MEMORY = "400MB"
"""What DuckDB may keep of the blocks it wrote: enough for any piece, and a long run does not fill the memory."""
PER_REQUEST_FILE = "{table}.requests.arrow"
_JSON = ("policy", "slo", "matrix", "slice", "setup")


def _no_look() -> None:
    pass


def commit_run(
    store: Store,
    spool: SpoolSink | Path,
    run_row: Mapping[str, Any],
    per_request: Mapping[str, Mapping[str, Any]] | None = None,
) -> int:
    """Move a complete run from its spool into the database and return its number.

    ``run_row`` holds columns of ``runs`` (``RUN_COLUMNS`` without ``run`` and ``spool``; ``state`` defaults to ``finished``,
    ``policy``, ``slo``, ``matrix``, ``slice`` and ``setup`` are JSON values). ``per_request`` has per table (``outcomes``:
    ``tenant``, ``class``, ``slo_met``, ``counted``) arrays of one value per request index. The spool is removed after the
    commit; a kill before it leaves a spool from which ``recover`` completes the run.
    """
    folder = spool.folder if isinstance(spool, SpoolSink) else spool
    return commit_folder(store, folder, note_complete(spool, run_row, per_request or {}))


def note_complete(
    spool: SpoolSink | Path, run_row: Mapping[str, Any], per_request: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Say in the spool that its run is whole, so that it can be committed even after a kill; the columns of ``runs``, checked."""
    row = _checked_row(run_row)
    folder = spool.folder if isinstance(spool, SpoolSink) else spool
    _write_per_request(folder, per_request)
    if isinstance(spool, SpoolSink):
        spool.finish(row)
    else:
        write_json(folder / STATE, {"state": "complete", "run": row})
    return row


def commit_folder(store: Store, folder: Path, row: Mapping[str, Any]) -> int:
    """Put a spool's rows and its ``runs`` row into the database and remove the spool; nothing is committed twice."""
    run = commit_rows(store, folder, lambda: row)
    remove_spool(folder)
    return run


def commit_rows(store: Store, folder: Path, row_of: Callable[[], Mapping[str, Any]], look: Callable[[], None] = _no_look) -> int:
    """The transaction: a spool's rows, then its ``runs`` row; the run's number. ``row_of`` is asked for the row, and may wait,
    once all is inserted that does not depend on it; ``look`` is called now and then, and may raise to roll all back."""
    import duckdb
    import pyarrow as pa

    header = read_header(folder)
    first = [table for table in header["tables"] if table not in PER_REQUEST]
    try:
        with store.write("commit a run") as con:
            con.execute(f"SET memory_limit = '{MEMORY}'")
            there = con.execute("SELECT run FROM runs WHERE spool = ?", [folder.name]).fetchall()
            run = int(there[0][0]) if there else _next_run(con)
            if not there:
                for table in first:
                    _copy_table(con, folder, header, table, run, look)
                row = row_of()
                for table in PER_REQUEST:
                    if table in header["tables"]:
                        _copy_table(con, folder, header, table, run, look)
                _insert_run(con, {**row, "run": run, "spool": folder.name})
    except (duckdb.Error, pa.ArrowException, KeyError, IndexError) as error:
        raise InputError(f"the spool cannot be committed: {one_line(error)}", file=str(folder)) from error
    return run


def _checked_row(run_row: Mapping[str, Any]) -> dict[str, Any]:
    unknown = set(run_row) - set(RUN_COLUMNS) | set(run_row) & {"run", "spool"}
    if unknown:
        raise ValueError(f"not settable columns of runs: {', '.join(sorted(unknown))}")
    row = {"state": "finished", **run_row}
    when = row.get("started_at")
    if isinstance(when, datetime):  # stored in UTC
        row["started_at"] = (when.astimezone(UTC) if when.tzinfo else when).replace(tzinfo=None).isoformat(" ")
    return row


def _write_per_request(folder: Path, per_request: Mapping[str, Mapping[str, Any]]) -> None:
    for table, columns in per_request.items():
        if not columns:
            continue
        import pyarrow as pa

        unknown = set(columns) - set(PER_REQUEST[table])
        if unknown:
            raise ValueError(f"not columns of {table} that are looked up by request: {', '.join(sorted(unknown))}")
        lookup = pa.table(dict(columns))
        part = folder / ".requests.part"
        with pa.OSFile(str(part), "wb") as file, pa.ipc.new_file(file, lookup.schema) as writer:
            writer.write_table(lookup)
        part.rename(folder / PER_REQUEST_FILE.format(table=table))


def _read_per_request(folder: Path, table: str) -> pa.Table | None:
    import pyarrow as pa

    path = folder / PER_REQUEST_FILE.format(table=table)
    if not path.exists():
        return None
    with pa.OSFile(str(path)) as file:
        return pa.ipc.open_file(file).read_all()


def _next_run(con: DuckDBPyConnection) -> int:
    """The next number; numbers of removed runs are not given out again, other processes may have kept their rows."""
    rows = con.execute(
        "SELECT greatest((SELECT coalesce(max(run), 0) FROM runs),"
        " coalesce((SELECT value::INTEGER FROM meta WHERE key = 'last_run'), 0))"
    ).fetchall()
    run = int(rows[0][0]) + 1
    con.execute("INSERT OR REPLACE INTO meta VALUES ('last_run', ?)", [str(run)])
    return run


def _insert_run(con: DuckDBPyConnection, row: Mapping[str, Any]) -> None:
    values = {k: json.dumps(v) if k in _JSON and v is not None else v for k, v in row.items()}
    names = ", ".join(f'"{name}"' for name in values)
    con.execute(f"INSERT INTO runs ({names}) VALUES ({', '.join('?' * len(values))})", list(values.values()))


def _copy_table(
    con: DuckDBPyConnection, folder: Path, header: Mapping[str, Any], table: str, run: int, look: Callable[[], None]
) -> None:
    rows = spool_rows(folder, table, header)
    if not rows:
        return
    layout = row_layout(header, table)
    lookup = _read_per_request(folder, table)
    constants = {"run": run, "replica": 0, **header["tables"][table]["constants"]}
    statement, values = _insert_statement(table, layout, constants, lookup)
    pieces = {name: np.empty(min(PIECE, rows), layout[name]) for name in layout.names or ()}
    with (folder / f"{table}.rows").open("rb", buffering=0) as file:
        for start in range(0, rows, PIECE):
            look()
            count = min(PIECE, rows - start)
            cut_columns(file, layout, pieces, count)
            piece = _arrow_piece(table, {name: column[:count] for name, column in pieces.items()}, lookup)
            con.register("spool_piece", piece)
            con.execute(statement, values)
            con.unregister("spool_piece")


def _insert_statement(
    table: str, layout: np.dtype[np.void], constants: Mapping[str, Any], lookup: pa.Table | None
) -> tuple[str, list[Any]]:
    """The INSERT that takes a piece into a table, and the values of its parameters (the run's constants; a
    list has one for each replica)."""
    present = set(layout.names or ()) | set(lookup.column_names if lookup is not None else ())
    picks: list[str] = []
    values: list[Any] = []
    for name, kind in event_columns(table).items():
        if name not in present:
            value = constants.get(name)
            picks.append(f"(?::{kind}[])[replica + 1]" if isinstance(value, list) else f"?::{kind}")
            values.append(value)
        elif name not in NULLABLE[table] and name != "replica":
            picks.append(f'"{name}"')
        elif layout[name].kind == "f":
            picks.append(f'CASE WHEN isnan("{name}") THEN NULL ELSE "{name}" END')
        else:
            picks.append(f'nullif("{name}", -1)')
    columns = ", ".join(f'"{name}"' for name in event_columns(table))  # in a migrated file they stand in another order
    return f"INSERT INTO {table} ({columns}) SELECT {', '.join(picks)} FROM spool_piece", values


def _arrow_piece(table: str, columns: Mapping[str, npt.NDArray[Any]], lookup: pa.Table | None) -> pa.Table:
    """Columns as an Arrow table that shares their memory; codes become dictionaries of names."""
    import pyarrow as pa

    arrays: dict[str, Any] = {}
    for name, column in columns.items():
        names = ENUMS.get((table, name))
        if names is None:
            arrays[name] = pa.array(column)
        else:
            arrays[name] = pa.DictionaryArray.from_arrays(pa.array(column.astype(np.int16)), pa.array(names))
    if lookup is not None:
        arrays.update(_looked_up(lookup, columns["request"]))
    return pa.table(arrays)


def _looked_up(lookup: pa.Table, requests: npt.NDArray[Any]) -> dict[str, Any]:
    """The columns of ``lookup`` for ``requests``. Yes or no goes by numpy: Arrow's ``take`` loads all its functions first."""
    import pyarrow as pa

    if all(pa.types.is_boolean(column.type) and not column.null_count for column in lookup.columns):
        plain = {name: lookup.column(name).to_numpy() for name in lookup.column_names}
        return {name: pa.array(values[requests]) for name, values in plain.items()}
    taken = lookup.take(pa.array(requests))
    return {name: taken.column(name) for name in taken.column_names}
