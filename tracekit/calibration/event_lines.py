"""JSONL rows of iterations as a frame, and which line it was where one of them cannot be used.

Whole files are parsed as columns at once; only where that fails are lines looked at one by one. A last line that has no end is
one that a writer is still at: the lines before it are the log.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.errors import InputError, shown, shown_path

if TYPE_CHECKING:
    import polars as pl

__all__ = ["EXPECTED", "first_wrong", "line_of_row", "read_rows"]

EXPECTED = "Parquet or JSONL rows, see docs/event_log.md"


def read_rows(file: Path, numbers: Collection[str]) -> tuple[pl.DataFrame, dict[str, Any]]:
    """The rows and the facts of the head line, if there is one; its ``cut`` is the number of a last line that was left out
    because it ends too early. ``numbers``: the columns that hold numbers. ``InputError``: with the first line that is no row."""
    import orjson
    import polars as pl

    data = file.read_bytes()
    first, _, rest = data.partition(b"\n")
    facts: dict[str, Any] = {}
    try:
        head = orjson.loads(first)
    except orjson.JSONDecodeError:
        head = None
    if isinstance(head, Mapping) and "schema" in head:
        facts, data = dict(head), rest
    if not data.strip():
        raise InputError("no row", file=shown_path(file), expected=EXPECTED)
    try:
        return pl.read_ndjson(data, infer_schema_length=None), facts
    except pl.exceptions.PolarsError:
        whole, newline, last = data.rpartition(b"\n")
    if last.strip() and _json(last) is None:
        data = whole + newline
        facts["cut"] = ("schema" in facts) + data.count(b"\n") + 1
    wrong = first_wrong(data, numbers, file, after=1 if "schema" in facts else 0)
    if wrong is not None:
        raise wrong
    try:
        return pl.read_ndjson(data, infer_schema_length=None), facts
    except pl.exceptions.PolarsError:  # what the parser says may repeat what stands in the file
        raise InputError("not an event log", file=shown_path(file), expected=EXPECTED) from None


def _json(line: bytes) -> Any:
    import orjson

    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return None


def first_wrong(data: bytes, numbers: Collection[str], file: Path, after: int) -> InputError | None:
    """The error of the first line of ``data`` that is no row, ``after`` lines of the file standing before it."""
    for number, line in enumerate(data.splitlines(), start=after + 1):
        if not line.strip():
            continue
        row = _json(line)
        if not isinstance(row, Mapping):
            reason = "not a JSON object" if row is not None else "not JSON"
            return InputError(reason, file=shown_path(file), line=number, expected=EXPECTED)
        for name, value in row.items():
            if name in numbers and value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                return InputError("not a number", file=shown_path(file), line=number, column=name,
                                  value=shown(value), expected="0 or more")  # fmt: skip
    return None


def line_of_row(file: Path, row: int) -> int:
    """The line that row ``row`` (from 0) of a log stands in; of Parquet the number of the row."""
    if file.suffix == ".parquet":
        return row + 1
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip() or (number == 1 and b'"schema"' in line and "schema" in (_json(line) or {})):
                continue
            if row == 0:
                return number
            row -= 1
    return 0
