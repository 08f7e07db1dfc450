"""Delimited text by SQL set operations: DuckDB splits the cells, typed expressions convert them, rejects keep exact lines.

The clean case is one scan and one copy, without a Python object per row. Cells that are not plainly valid keep their text,
and only those rows are looked at again.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tracekit.errors import InputError, shown
from tracekit.traces.columns import Mapped
from tracekit.traces.inputs import Source
from tracekit.traces.readers.cells import Converted, convert
from tracekit.traces.readers.record_lines import RecordLines, refuse_open_quote
from tracekit.traces.stage import EXAMPLES, Stage

__all__ = ["Table", "header_of", "read_delimited", "read_relation"]

RECORD_LIMIT = 16 << 20
READ_BUFFER = 2 * RECORD_LIMIT
"""The reader holds several of these; left alone it makes each sixteen times the longest line."""

TORN = {"MISSING COLUMNS": "too few columns", "TOO MANY COLUMNS": "too many columns"}


@dataclass(frozen=True, slots=True)
class Table:
    """How a delimited file is laid out; ``names`` as its header has them."""

    delimiter: str
    names: list[str]
    header_line: int


def header_of(source: Source, delimiters: str = ",;\t|") -> Table:
    """Delimiter and column names from the first non-blank line."""
    line = source.head.lines[0].decode("utf-8", "replace").replace("\r", " ").replace("\0", " ")
    widths = {mark: len(_cells_of(line, mark)) for mark in delimiters}
    delimiter = max(widths, key=lambda mark: widths[mark])
    names = [name.strip() for name in _cells_of(line, delimiter)]
    blank = 0
    for raw in source.head.data.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        if raw.strip():
            break
        blank += 1
    return Table(delimiter, names, blank + 1)


def _cells_of(line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        # a cell beyond the module's limit: whatever that is, it is not quoted
        return line.split(delimiter)


def read_delimited(source: Source, stage: Stage, table: Table, fields: Sequence[Mapped], *,
                   dates: str | None = None) -> None:  # fmt: skip
    """Read ``fields`` of ``source`` into ``stage``; ``dates``: arrivals are known to be dates that end so.

    Errors: ``InputError`` when rows and lines cannot be reconciled, or two columns that are read have one name.
    """
    for field in fields:
        if table.names.count(field.source) > 1:
            raise InputError("two columns have this name", file=source.name, line=table.header_line, column=field.source,
                             expected="one column of each name that is read")  # fmt: skip
    with readable(source, "a table with one request a row"):
        _read_table(source, stage, table, fields, dates)


def _read_table(source: Source, stage: Stage, table: Table, fields: Sequence[Mapped], dates: str | None) -> None:
    path = _tidy(source, table)
    scan = _scan(path, source, table)
    cells = {field.column.name: f"c{table.names.index(field.source)}" for field in fields}
    for name in ("cells", "reject_errors", "reject_scans"):
        stage.con.execute(f"DROP TABLE IF EXISTS {name}")
    try:
        conversions = convert(stage.con, source, stage.facts, fields, cells, scan, dates=dates)
        _fill_cells(stage, conversions, _scan(path, source, table, rejects=True), scan)
    except duckdb_error():
        # a quote that is never closed makes one record of the rest of the file: say that, if that is what it is
        refuse_open_quote(source, path, table.header_line, table.delimiter)
        raise
    torn = stage.con.sql(
        "SELECT line_byte_position AS at, arg_min(error_type::VARCHAR, column_idx) AS kind FROM reject_errors"
        " GROUP BY ALL ORDER BY ALL"
    ).to_arrow_table()
    rows = int(stage.one("SELECT count(*) FROM cells")[0])
    positions = np.asarray(torn["at"].to_numpy(), np.int64)
    lines = RecordLines(source, path, table.header_line, rows, positions, table.delimiter)
    _reject_torn(source, stage, torn["kind"].to_pylist(), lines.torn.tolist())
    _deliver(source, stage, conversions, lines, table.names)


def _reject_torn(source: Source, stage: Stage, kinds: list[str], lines: list[int]) -> None:
    told: Counter[str] = Counter()
    for kind, line in list(zip(kinds, lines, strict=True))[:EXAMPLES]:
        stage.reject(source.name, line, None, None, _cut(source, line) or TORN.get(kind, kind.lower()))
        told[kind] += 1
    for kind, count in Counter(kinds).items():
        stage.count_dropped(TORN.get(kind, kind.lower()), count - told[kind])


def read_relation(source: Source, stage: Stage, fields: Sequence[Mapped], cells: dict[str, str], relation: str) -> None:
    """Read ``fields`` from a relation whose columns ``cells`` are text; a row's number, from 1, stands for its line."""
    with readable(source, "a whole file of one request a row"):
        conversions = convert(stage.con, source, stage.facts, fields, cells, relation)
        _fill_cells(stage, conversions, relation, relation)
        _deliver(source, stage, conversions, None)


@contextmanager
def readable(source: Source, expected: str) -> Iterator[None]:
    """What the database says against a file becomes an ``InputError`` without paths of our own."""
    try:
        yield
    except duckdb_error() as error:
        if "Out of Memory" in str(error):  # no fault of the file
            raise
        reason = str(error).splitlines()[0].replace(str(source.path), source.name)
        raise InputError(shown(reason, 200), file=source.name, expected=expected) from error


def duckdb_error() -> type[Exception]:
    import duckdb

    return duckdb.Error


def _cut(source: Source, line: int) -> str | None:
    """The reason of a broken row that is only the last line's unfinished half."""
    if line != source.physical_lines or source.ends_with_newline:
        return None
    return f"incomplete line (cut at byte {source.size if source.cut_at is None else source.cut_at})"


def _tidy(source: Source, table: Table) -> Path:
    """The file itself, or (mixed line ends, blank lines before the header) a copy that the reader's state machine takes."""
    returns = source.count(b"\r")
    if (not returns or returns == source.count(b"\r\n") == source.count(b"\n")) and table.header_line == 1:
        return source.path
    target = source.scratch / f"{source.number}.tidy"
    with open(source.path, "rb") as data, open(target, "wb") as out:
        for number, raw in enumerate(data, 1):
            if number >= table.header_line:
                out.write(raw.replace(b"\r\n", b"\n").replace(b"\r", b" "))
    return target


def _scan(path: Path, source: Source, table: Table, rejects: bool = False) -> str:
    columns = ", ".join(f"'c{i}': 'VARCHAR'" for i in range(len(table.names)))
    quote = "'\"', escape = '\"'" if source.count(b'"') else "'', escape = ''"
    name = str(path).replace("'", "''")
    return (
        f"read_csv('{name}', header = true, auto_detect = false, delim = '{table.delimiter}', quote = {quote},"
        f" columns = {{{columns}}}, max_line_size = {RECORD_LIMIT}, buffer_size = {READ_BUFFER}, compression = 'none'"
        + (", store_rejects = true)" if rejects else ", ignore_errors = true)")
    )


def _fill_cells(stage: Stage, conversions: Sequence[Converted], first: str, again: str) -> None:
    """Make ``cells``, a value per cell and whether the row is ``bad``, and ``doubtful``: texts and reasons of bad rows.

    Texts are not kept for all rows, most of which have none: a NULL text costs as much as four token counts.
    """
    fast = ", ".join(conversion.fast for conversion in conversions)
    doubt = " OR ".join(conversion.is_doubtful for conversion in conversions)
    stage.con.execute(f"CREATE OR REPLACE TABLE cells AS SELECT {fast}, {doubt} AS bad FROM {first}")
    texts = ", ".join(f"{conversion.doubt} AS {conversion.text}" for conversion in conversions)
    if stage.one("SELECT count(*) FROM cells WHERE bad")[0]:
        numbered = f"SELECT row_number() OVER () - 1 AS k, {fast}, {texts}, {doubt} AS bad FROM {again}"
    else:
        numbered = f"SELECT NULL::BIGINT AS k, {fast}, {texts}, true AS bad FROM {again} LIMIT 0"
    reason = f"CASE {' '.join(conversion.reason for conversion in conversions)} END"
    stage.con.execute(f"CREATE OR REPLACE TABLE doubtful AS SELECT *, {reason} AS why FROM ({numbered}) WHERE bad")


def _deliver(source: Source, stage: Stage, conversions: Sequence[Converted], lines: RecordLines | None,
             names: Sequence[str] = ()) -> None:  # fmt: skip
    """Rows whose every cell converts go to the stage; the others are counted by their first bad cell."""
    _mend(stage, conversions)
    line, relation = f"cells.rowid + {lines.base if lines else 1}", "cells"
    if lines is not None and lines.shifted:
        line, relation = "line_of.n", "cells POSITIONAL JOIN line_of"
        stage.con.register("line_of", lines.batches())
    filled = [conversion.field.column.name for conversion in conversions]
    values = ", ".join(f'{conversion.value} AS "{conversion.field.column.stored}"' for conversion in conversions)
    stage.append_query(
        filled, f"SELECT {source.number}::USMALLINT AS file, ({line})::UBIGINT AS line, {values} FROM {relation} WHERE NOT bad"
    )
    if stage.one("SELECT count(*) FROM doubtful WHERE why IS NOT NULL")[0]:
        if lines is not None and lines.shifted:
            stage.con.register("line_of", lines.batches())
        places = f"SELECT cells.rowid AS k, {line} AS line FROM {relation} WHERE bad"
        stage.con.execute(f"CREATE OR REPLACE TABLE bad_lines AS {places}")
        _reject_cells(source, stage, conversions, names)
    stage.con.execute("DROP TABLE doubtful; DROP TABLE cells")


def _mend(stage: Stage, conversions: Sequence[Converted]) -> None:
    """Values of doubtful rows that are right after all."""
    if stage.one("SELECT count(*) FROM doubtful WHERE why IS NULL")[0]:
        careful = ", ".join(f"{conversion.careful} AS {conversion.value}" for conversion in conversions)
        stage.con.execute(f"CREATE OR REPLACE TABLE mended AS SELECT k, {careful} FROM doubtful WHERE why IS NULL")
        better = ", ".join(f"{conversion.value} = mended.{conversion.value}" for conversion in conversions)
        stage.con.execute(f"UPDATE cells SET bad = false, {better} FROM mended WHERE cells.rowid = mended.k")
        stage.con.execute("DROP TABLE mended")


def _reject_cells(source: Source, stage: Stage, conversions: Sequence[Converted], names: Sequence[str]) -> None:
    texts = ", ".join(conversion.text for conversion in conversions)
    fields = {conversion.field.column.name: conversion.field for conversion in conversions}
    told: Counter[str] = Counter()
    bad = f"SELECT line, why, {texts} FROM doubtful JOIN bad_lines USING (k) ORDER BY line LIMIT {EXAMPLES}"
    for line, why, *cells in stage.con.execute(bad).fetchall():
        name, _, reason = why.partition("|")
        value = dict(zip(fields, cells, strict=True))[name]
        if isinstance(value, str) and value.strip() in names and value.strip() != fields[name].source:
            raise InputError("a header with the columns in another order", file=source.name, line=line,
                             column=fields[name].source, value=value, expected="one order of columns in a file")  # fmt: skip
        stage.reject(source.name, line, fields[name].source, value, _cut(source, line) or reason)
        told[why] += 1
    counted = "SELECT why, count(*) FROM doubtful WHERE why IS NOT NULL GROUP BY why ORDER BY why"
    for why, count in stage.con.execute(counted).fetchall():
        if count > told[why]:
            stage.count_dropped(why.partition("|")[2], count - told[why])
    stage.con.execute("DROP TABLE bad_lines")
