"""The spool: a run's event rows as plain files, written as they come, readable while the run goes on.

``<db>.d/spool/NAME/`` holds ``header.json`` (the run, each table's row layout and constants; there from the first moment),
``TABLE.rows`` (packed rows), and ``state.json`` once the run is complete.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from replay_engine.tables import TABLES
from tracekit.columns import Columns
from tracekit.errors import InputError, TracekitError, UsageError
from tracekit.store.files import read_json, write_json
from tracekit.store.processes import process_mark

__all__ = [
    "EVENT_LEVELS",
    "HEADER",
    "STATE",
    "SpoolSink",
    "SpoolTail",
    "read_header",
    "read_spool",
    "remove_spool",
    "spool_columns",
    "spool_rows",
]

HEADER = "header.json"
STATE = "state.json"
FORMAT = 1
BLOCK = 16384
"""Rows turned into columns at a time: two megabytes of iterations. Fewer would ask for the interpreter's lock too often."""

EVENT_LEVELS: dict[str, tuple[str, ...]] = {"none": (), "outcomes": ("outcomes",), "full": tuple(TABLES)}
"""Which tables each value of ``--events`` records."""


class SpoolSink:
    """An event sink that appends rows to one file per table; tables that ``events`` leaves out are dropped.

    ``run`` is what is known of the ``runs`` row at the start, ``constants`` has per table the columns that are the same in
    every row; ``layouts`` the tables whose rows have more columns than those of ``replay_engine.tables``. ``append`` takes
    structured arrays of the tables' layouts and keeps nothing.
    """

    def __init__(
        self,
        spool_folder: Path,
        run: Mapping[str, Any],
        *,
        constants: Mapping[str, Mapping[str, Any]] | None = None,
        events: str = "full",
        layouts: Mapping[str, np.dtype[np.void]] | None = None,
    ) -> None:
        if events not in EVENT_LEVELS:
            raise UsageError(f"events = {events!r}: expected one of {', '.join(EVENT_LEVELS)}")
        self.name = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%f}-{os.getpid()}-{secrets.token_hex(2)}"
        self.folder = spool_folder / self.name
        made = spool_folder / f".new-{self.name}"
        try:
            made.mkdir(parents=True)
            tables = EVENT_LEVELS[events]
            write_json(made / HEADER, _header({**run, "events": events}, constants or {}, tables, layouts or {}))
            self._files = {table: FileIO(made / f"{table}.rows", "xb") for table in tables}
            made.rename(self.folder)
        except OSError as error:
            raise TracekitError(f"{spool_folder}: cannot write the spool ({error.strerror})") from None

    def append(self, table: str, rows: npt.NDArray[np.void]) -> None:
        """Append rows (1-D, contiguous, of the table's layout); a second process sees them at once."""
        file = self._files.get(table)
        if file is None or not len(rows):
            return
        try:
            written = file.write(rows)  # type: ignore[arg-type]
            if written != rows.nbytes:
                left = memoryview(rows.tobytes())
                while written < rows.nbytes:
                    written += file.write(left[written:])
        except OSError as error:
            raise TracekitError(f"{file.name!s}: cannot write the spool ({error.strerror})") from None

    def finish(self, run: Mapping[str, Any]) -> None:
        """Mark the run complete: ``run`` is its whole ``runs`` row, from which it can be committed even after a kill."""
        self.close()
        write_json(self.folder / STATE, {"state": "complete", "run": dict(run)})

    def close(self) -> None:
        """Close the files; the spool stays."""
        for file in self._files.values():
            file.close()


def _header(
    run: Mapping[str, Any],
    constants: Mapping[str, Mapping[str, Any]],
    tables: tuple[str, ...],
    layouts: Mapping[str, np.dtype[np.void]],
) -> dict[str, Any]:
    described = {t: {"dtype": layouts.get(t, TABLES[t]).descr, "constants": dict(constants.get(t, {}))} for t in tables}
    return {"format": FORMAT, "pid": os.getpid(), "mark": process_mark(), "run": dict(run), "tables": described}


def read_header(folder: Path) -> dict[str, Any]:
    """A spool's header; ``InputError`` when the folder is not a spool that this program reads."""
    header = read_json(folder / HEADER)
    if header is None or header.get("format") != FORMAT:
        raise InputError("not a spool of this program", file=str(folder), expected=f"a folder with {HEADER}")
    return header


def row_layout(header: Mapping[str, Any], table: str) -> np.dtype[np.void]:
    """Row layout of a spooled table, as its writer declared it."""
    return np.dtype([(name, kind) for name, kind in header["tables"][table]["dtype"]])


def spool_rows(folder: Path, table: str, header: Mapping[str, Any] | None = None) -> int:
    """Whole rows of a table that are in the spool now; 0 for a table that is not recorded."""
    header = read_header(folder) if header is None else header
    if table not in header["tables"]:
        return 0
    try:
        size = (folder / f"{table}.rows").stat().st_size
    except FileNotFoundError:
        return 0
    return size // row_layout(header, table).itemsize


def read_spool(folder: Path, table: str) -> npt.NDArray[np.void]:
    """The rows of a table that are in the spool now, mapped read-only; a row half written is left out."""
    header = read_header(folder)
    rows = spool_rows(folder, table, header)
    if not rows:
        layout = row_layout(header, table) if table in header["tables"] else TABLES[table]
        return np.empty(0, dtype=layout)
    return np.memmap(folder / f"{table}.rows", dtype=row_layout(header, table), mode="r", shape=(rows,))


def spool_columns(folder: Path, table: str, together: Sequence[Sequence[str]] = ()) -> Columns:
    """The rows of a table that are in the spool now, by column. Each column is read when it is first asked for; the names of one
    group of ``together`` are read in one pass over the file."""
    header = read_header(folder)
    rows = spool_rows(folder, table, header)
    layout = row_layout(header, table) if table in header["tables"] else TABLES[table]

    def cut(name: str) -> Mapping[str, npt.NDArray[Any]]:
        group = next((group for group in together if name in group), (name,))
        found = {each: np.empty(rows, layout[each]) for each in group if each in (layout.names or ())}
        if rows:
            with (folder / f"{table}.rows").open("rb", buffering=0) as file:
                cut_columns(file, layout, found, rows)
        return found

    return Columns(layout, rows, cut)


def cut_columns(file: FileIO, layout: np.dtype[np.void], columns: Mapping[str, npt.NDArray[Any]], rows: int) -> None:
    """Fill ``columns`` with the next ``rows`` rows of a file, a block at a time, so that the rows stay in the cache while each
    column is cut out."""
    block = np.empty(min(BLOCK, rows), layout)
    for low in range(0, rows, BLOCK):
        count = min(BLOCK, rows - low)
        _fill(file, block[:count].view(np.uint8).data)
        for name, column in columns.items():
            column[low : low + count] = block[name][:count]


def _fill(file: FileIO, into: memoryview) -> None:
    got = 0
    while got < len(into):
        more = file.readinto(into[got:])
        if not more:
            raise InputError("the spool ends too early", file=str(file.name))
        got += more


class SpoolTail:
    """One table of a spool, read as it grows: each look gives the rows that came since the last one."""

    def __init__(self, folder: Path, table: str) -> None:
        header = read_header(folder)
        self._path = folder / f"{table}.rows"
        self._layout = row_layout(header, table) if table in header["tables"] else None
        self.seen = 0
        """Rows given so far."""

    def new_rows(self, most: int) -> npt.NDArray[np.void]:
        """The next rows, at most ``most`` and none that is half written; ``FileNotFoundError`` once the spool is removed."""
        if self._layout is None:
            return np.empty(0, dtype=np.void)
        rows = np.fromfile(self._path, self._layout, most, offset=self.seen * self._layout.itemsize)
        self.seen += len(rows)
        return rows


def remove_spool(folder: Path) -> None:
    """Remove a spool; it vanishes at once under its name, and what a kill leaves of it is swept later."""
    gone = folder.with_name(f".gone-{folder.name}")
    try:
        folder.rename(gone)
    except FileNotFoundError:
        return
    shutil.rmtree(gone, ignore_errors=True)


def sweep(spool_folder: Path, older_than_s: float = 60.0) -> None:
    """Remove what kills left of half-made and half-removed spools."""
    for left in spool_folder.glob(".[ng]*"):
        try:
            if time.time() - left.stat().st_mtime > older_than_s:
                shutil.rmtree(left, ignore_errors=True)
        except FileNotFoundError:
            continue
