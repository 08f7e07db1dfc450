"""Delimited text by SQL set operations: DuckDB splits the cells, typed expressions convert them, rejects keep exact lines.

The clean case is one scan and one copy, without a Python object per row. Cells that are not plainly valid keep their text,
and only those rows are looked at again.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tracekit.errors import InputError
from tracekit.traces.columns import Mapped
from tracekit.traces.inputs import Source
from tracekit.traces.readers.cells import Converted, convert
from tracekit.traces.readers.record_lines import RecordLines
from tracekit.traces.stage import EXAMPLES, Stage

__all__ = ["Table", "header_of", "read_delimited", "read_relation"]

RECORD_LIMIT = 16 << 20
TORN = {"MISSING COLUMNS": "too few columns", "TOO MANY COLUMNS": "too many columns"}


@dataclass(frozen=True, slots=True)
class Table:
    """How a delimited file is laid out; ``names`` as its header has them."""

    delimiter: str
    names: list[str]
    header_line: int


def header_of(source: Source, delimiters: str = ",;\t|") -> Table:
    """Delimiter and column names from the first non-blank line."""
    line = source.head.lines[0].decode("utf-8", "replace")
    widths = {mark: len(next(csv.reader([line], delimiter=mark), [])) for mark in delimiters}
    delimiter = max(widths, key=lambda mark: widths[mark])
    names = [name.strip() for name in next(csv.reader([line], delimiter=delimiter))]
    blank = 0
    for raw in source.head.data.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        if raw.strip():
            break
        blank += 1
    return Table(delimiter, names, blank + 1)


def read_delimited(source: Source, stage: Stage, table: Table, fields: Sequence[Mapped], *, dates: bool = False) -> None:
    """Read ``fields`` of ``source`` into ``stage``; ``dates``: arrivals are known to be dates without an offset.

    Errors: ``InputError`` when rows and lines cannot be reconciled, or two columns that are read have one name.
    """
    for field in fields:
        if table.names.count(field.source) > 1:
            raise InputError("two columns have this name", file=source.name, line=table.header_line, column=field.source,
                             expected="one column of each name that is read")  # fmt: skip
    path = _tidy(source, table)
    cells = {field.column.name: f"c{table.names.index(field.source)}" for field in fields}
    conversions = convert(stage.con, source, stage.facts, fields, cells, _scan(path, source, table), dates=dates)
    _fill_cells(source, stage, conversions, _scan(path, source, table, rejects=True))
    torn = stage.con.execute(
        "SELECT line_byte_position, arg_min(error_type::VARCHAR, column_idx) FROM reject_errors GROUP BY ALL ORDER BY 1"
    ).fetchall()
    stage.con.execute("DROP TABLE reject_errors; DROP TABLE reject_scans")
    rows = int(stage.one("SELECT count(*) FROM cells")[0])
    lines = RecordLines(source, path, table.header_line, rows, [position for position, _ in torn])
    for (_, kind), line in zip(torn, lines.torn.tolist(), strict=True):
        stage.reject(source.name, line, None, None, _cut(source, line) or TORN.get(kind, kind.lower()))
    _deliver(source, stage, conversions, lines)


def read_relation(source: Source, stage: Stage, fields: Sequence[Mapped], cells: dict[str, str], relation: str) -> None:
    """Read ``fields`` from a relation whose columns ``cells`` are text; a row's number, from 1, stands for its line."""
    conversions = convert(stage.con, source, stage.facts, fields, cells, relation)
    _fill_cells(source, stage, conversions, relation)
    _deliver(source, stage, conversions, None)


def _cut(source: Source, line: int) -> str | None:
    """The reason of a broken row that is only the last line's unfinished half."""
    if line != source.physical_lines or source.ends_with_newline:
        return None
    return f"incomplete line (cut at byte {source.size if source.cut_at is None else source.cut_at})"


def _tidy(source: Source, table: Table) -> Path:
    """The file itself, or (mixed line ends, blank lines before the header) a copy that the reader's state machine takes."""
    if source.count(b"\r") in (0, source.count(b"\n")) and table.header_line == 1:
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
        f" columns = {{{columns}}}, max_line_size = {RECORD_LIMIT}, compression = 'none'"
        + (", store_rejects = true)" if rejects else ", ignore_errors = true)")
    )


def _fill_cells(source: Source, stage: Stage, conversions: Sequence[Converted], scan: str) -> None:
    picked = ", ".join(part for conversion in conversions for part in (conversion.fast, conversion.doubt))
    try:
        stage.con.execute(f"CREATE OR REPLACE TABLE cells AS SELECT {picked} FROM {scan}")
    except Exception as error:
        raise InputError(str(error).splitlines()[0], file=source.name, expected="a table with one request a row") from error


def _deliver(source: Source, stage: Stage, conversions: Sequence[Converted], lines: RecordLines | None) -> None:
    """Rows whose every cell converts go to the stage; the others are counted by their first bad cell."""
    line, relation, order = f"cells.rowid + {lines.base if lines else 1}", "cells", ""
    if lines is not None and lines.kept is not None:
        import pyarrow as pa

        numbered = pa.table({"k": np.arange(len(lines.kept)), "n": lines.kept})
        stage.con.register("numbered", numbered)
        stage.con.execute("CREATE OR REPLACE TABLE line_of AS SELECT * FROM numbered")
        stage.con.unregister("numbered")
        line, relation, order = "line_of.n", "cells JOIN line_of ON cells.rowid = line_of.k", " ORDER BY cells.rowid"
    doubtful = " OR ".join(conversion.is_doubtful for conversion in conversions)
    clean = not int(stage.one(f"SELECT count(*) FROM cells WHERE {doubtful}")[0])
    values = ", ".join(conversion.plain if clean else conversion.careful for conversion in conversions)
    reason = "NULL" if clean else f"CASE {' '.join(conversion.reason for conversion in conversions)} END"
    names = [conversion.field.column.name for conversion in conversions]
    kept = "" if clean else f" WHERE ({reason}) IS NULL"
    stage.append_query(
        names, f"SELECT {source.number}::USMALLINT AS file, ({line})::UBIGINT AS line, {values} FROM {relation}{kept}{order}"
    )
    if not clean:
        texts = ", ".join(conversion.text for conversion in conversions)
        bad = f"SELECT {line} AS line, ({reason}) AS why, {texts} FROM {relation} WHERE ({reason}) IS NOT NULL"
        _reject_cells(source, stage, conversions, bad)
    stage.con.execute("DROP TABLE cells")


def _reject_cells(source: Source, stage: Stage, conversions: Sequence[Converted], bad: str) -> None:
    stage.con.execute(f"CREATE OR REPLACE TABLE bad AS {bad} ORDER BY line")
    fields = {conversion.field.column.name: conversion.field for conversion in conversions}
    told: Counter[str] = Counter()
    for line, why, *cells in stage.con.execute(f"SELECT * FROM bad ORDER BY line LIMIT {EXAMPLES}").fetchall():
        name, _, reason = why.partition("|")
        value = dict(zip(fields, cells, strict=True))[name]
        stage.reject(source.name, line, fields[name].source, value, _cut(source, line) or reason)
        told[why] += 1
    for why, count in stage.con.execute("SELECT why, count(*) FROM bad GROUP BY why ORDER BY why").fetchall():
        if count > told[why]:
            stage.count_dropped(why.partition("|")[2], count - told[why])
    stage.con.execute("DROP TABLE bad")
