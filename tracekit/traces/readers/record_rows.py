"""From a log's records to rows: flattening what is nested, moments to durations, rows that are no requests set aside."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from tracekit.traces.columns import COLUMNS, Column, Mapped
from tracekit.traces.inputs import Source
from tracekit.traces.readers.json_lines import Batches, Derive, read_batches
from tracekit.traces.readers.json_values import Values
from tracekit.traces.stage import Facts, Stage

__all__ = ["Flatten", "between", "canonical", "first_of", "inner", "loaded", "moment", "per_token", "read_rows", "real"]

Row = dict[str, Any]
Flatten = Callable[[Row], list[Row | str]]
"""From a record to the rows it holds; a text in place of a row says why it is no request."""


def canonical(name: str, source: str | None = None, unit: str | None = None) -> Mapped:
    """A canonical column and the key of the flat rows that it is read from (its own name when not given)."""
    return Mapped(COLUMNS[name], source or name, unit)


def moment(name: str, source: str, unit: str | None = None) -> Mapped:
    """A moment on the clock of the arrivals that is used up by a derivation."""
    return Mapped(Column(name, "time", name), source, unit)


def inner(record: Any, *path: str) -> Any:
    """The value at a path of keys, or ``None``."""
    for key in path:
        if not isinstance(record, dict):
            return None
        record = record.get(key)
    return record


def first_of(record: Any, *keys: str) -> Any:
    """The first of ``keys`` that has a value in ``record``, or ``None``."""
    if isinstance(record, dict):
        for key in keys:
            value = record.get(key)
            if value is not None and value != "":
                return value
    return None


def real(value: Any) -> float | None:
    """A number as a float; ``None`` for anything else, and for numbers beyond all floats."""
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    except OverflowError:
        return None


def loaded(value: Any) -> Any:
    """An object that may be written as JSON text; ``None`` where it is neither."""
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, dict | list) else None


def read_rows(source: Source, stage: Stage, fields: Sequence[Mapped], batches: Batches, flatten: Flatten, *,
              used: Collection[str], derive: Derive | None = None, numbered: bool = False) -> None:  # fmt: skip
    """Flatten the records of ``batches`` and read ``fields`` of the rows into ``stage``.

    ``used`` are the records' keys that ``flatten`` looks at; the others are told as not used. With ``numbered`` a row is known
    by its number in the file, from 1, where lines say nothing.
    """
    seen: set[str] = set()

    def flat() -> Batches:
        count = 0
        for lines, records in batches:
            at: list[int] = []
            rows: list[Row] = []
            for line, record in zip(lines.tolist(), records, strict=True):
                seen.update(record)
                for row in flatten(record):
                    count += 1
                    if isinstance(row, str):
                        stage.set_aside(row, 1)
                    else:
                        at.append(count if numbered else line)
                        rows.append(row)
            yield np.asarray(at, np.int64), rows

    read_batches(source, stage, fields, flat(), derive=derive)
    stage.facts.ignore(sorted(map(str, seen - set(used))))


def _nulls(*columns: Values) -> npt.NDArray[np.bool_]:
    null = np.zeros(len(columns[0].data), bool)
    for values in columns:
        if values.null is not None:
            null |= values.null
    return null


def between(begin: Values, end: Values, facts: Facts, what: str) -> Values:
    """The duration between two moments, unknown where it would be negative: clocks of several machines disagree."""
    null = _nulls(begin, end)
    span = end.data - begin.data
    backwards = (span < 0) & ~null
    if backwards.any():
        facts.warn(f"{what}: ends before it begins on some rows, so it is unknown there")
        null |= backwards
    span[null] = 0
    return Values(span, null if null.any() else None, begin.bad | end.bad)


def per_token(ttft: Values, e2e: Values, output: Values) -> Values:
    """Mean time per output token after the first; unknown for answers of fewer than two tokens."""
    span = e2e.data - ttft.data
    null = _nulls(ttft, e2e, output) | (output.data < 2) | (span < 0) | (ttft.data == 0)
    each = np.rint(span / np.maximum(output.data - 1, 1)).astype(np.int64)
    each[null] = 0
    return Values(each, null if null.any() else None)
