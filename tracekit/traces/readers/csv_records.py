"""Delimited text as records, for exports whose cells hold JSON or whose columns must be combined: only the columns asked for
are ever kept, so that prompts and addresses in the others are gone with their row."""

from __future__ import annotations

import csv
from collections.abc import Collection

import numpy as np

from tracekit.errors import InputError
from tracekit.traces.inputs import Head, Source
from tracekit.traces.readers.delimited import Table, header_of
from tracekit.traces.readers.json_lines import Batches
from tracekit.traces.stage import Stage

__all__ = ["csv_batches", "csv_header"]

CELL_LIMIT = 64 << 20
ROWS = 1000


def csv_header(head: Head, delimiter: str = ",") -> list[str]:
    """The names in the first line (empty for JSON and binary data)."""
    if not head.lines or head.lines[0].lstrip()[:1] in (b"{", b"[") or b"\0" in head.data[:4096]:
        return []
    try:
        row = next(csv.reader([head.lines[0].decode("utf-8", "replace")], delimiter=delimiter), [])
    except csv.Error:
        return []
    return [name.strip() for name in row]


def csv_batches(source: Source, stage: Stage, wanted: Collection[str], table: Table | None = None) -> Batches:
    """Rows as objects with the columns of ``wanted`` (texts; empty cells left out), and their lines.

    Errors: ``InputError`` for a quote that is never closed.
    """
    table = header_of(source) if table is None else table
    places = [(i, name) for i, name in enumerate(table.names) if name in wanted]
    stage.facts.ignore(name for name in table.names if name and name not in wanted)
    csv.field_size_limit(CELL_LIMIT)
    lines: list[int] = []
    rows: list[dict[str, object]] = []
    with open(source.path, encoding="utf-8-sig", errors="replace", newline="") as text:
        for _ in range(table.header_line - 1):
            text.readline()
        reader = csv.reader(text, delimiter=table.delimiter, strict=True)
        begin = table.header_line
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                break
            except csv.Error as error:
                _refuse_open_quote(source, begin, error)
                stage.reject(source.name, begin, None, None, "broken quotes")
                cells = []
            line, begin = begin, table.header_line + reader.line_num
            if not cells or cells == table.names or (line == table.header_line):
                continue
            if len(cells) != len(table.names):
                stage.reject(source.name, line, None, None, f"too {'few' if len(cells) < len(table.names) else 'many'} columns")
                continue
            lines.append(line)
            rows.append({name: cells[i] for i, name in places if cells[i] != ""})
            if len(rows) >= ROWS:
                yield np.asarray(lines, np.int64), rows
                lines, rows = [], []
    yield np.asarray(lines, np.int64), rows


def _refuse_open_quote(source: Source, line: int, error: csv.Error) -> None:
    if "end of data" in str(error) or "field larger" in str(error):
        raise InputError("a quote opened here is never closed", file=source.name, line=line, expected="balanced quotes")
