"""Cells of text to canonical values, as SQL expressions: a fast cast for what is plainly valid, a careful one for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracekit.traces.columns import Mapped
from tracekit.traces.inputs import Source
from tracekit.traces.readers.cell_times import NAIVE, iso_dates, number_cells, time_cells
from tracekit.traces.readers.conversion import ABSENT, Converted
from tracekit.traces.stage import Facts
from tracekit.traces.units import duration_unit, nanoseconds

if TYPE_CHECKING:
    import duckdb

__all__ = ["ABSENT", "GROUPED", "Converted", "convert"]

_LIMITS = {"count": (0, 4294967295), "integer": (-2147483648, 2147483647)}
GROUPED = "[+-]?\\d{1,3}([.,'' ]\\d{3})+"
"""What may be a thousands separator or a fraction: 1,234 or 12.000. Nobody can tell, so it is no number."""


def convert(con: duckdb.DuckDBPyConnection, source: Source, facts: Facts, fields: Sequence[Mapped], cells: dict[str, str],
            scan: str, *, dates: str | None = None) -> list[Converted]:  # fmt: skip
    """The conversions for ``fields``; time units are detected over the whole of ``scan`` where they are not given.

    ``dates``: arrivals are known to be dates that end so (``+00:00``, or nothing: no offset).
    Errors: ``InputError`` for mixed units.
    """
    out = []
    for field in fields:
        cell, kind = cells[field.column.name], field.column.kind
        if kind == "time" and dates is not None:
            facts.absolute, facts.zone_assumed = True, not dates
            facts.times[field.source] = f"dates with the offset {dates}" if dates else NAIVE
            out.append(iso_dates(field, cell, dates))
        elif kind == "time":
            out.append(time_cells(con, source, facts, field, cell, scan))
        elif kind in ("duration", "gap"):
            out.append(_duration(con, facts, field, cell, scan))
        elif kind in _LIMITS:
            out.append(_whole(field, cell))
        else:
            out.append(_text(field, cell))
    return out


def _whole(field: Mapped, cell: str) -> Converted:
    name = field.column.name
    low, high = _LIMITS[field.column.kind]
    number = f'TRY_CAST(trim("t_{name}") AS DOUBLE)'
    grouped = f"regexp_full_match(trim(\"t_{name}\"), '{GROUPED}')"
    return Converted(
        field,
        f'TRY_CAST({cell} AS {field.column.sql_type}) AS "v_{name}"',
        # the cast rounds 1.5 and takes 1e3: only what prints back as it was read is plainly right
        f'CASE WHEN "v_{name}" IS NULL OR "v_{name}"::VARCHAR <> {cell} THEN {cell} END',
        f"CASE WHEN isfinite({number}) AND {number} = floor({number}) AND {number} BETWEEN {low} AND {high}"
        f" AND NOT {grouped} THEN {number}::{field.column.sql_type} END",
        f"WHEN {grouped} THEN 'a thousands separator or a fraction'"
        f" WHEN {number} IS NULL OR NOT isfinite({number}) THEN 'not a number'"
        + (f" WHEN {number} < 0 THEN 'negative'" if low == 0 else f" WHEN {number} < {low} THEN 'too small'")
        + f" WHEN {number} <> floor({number}) THEN 'not a whole number' WHEN {number} > {high} THEN 'too large'",
    )


def _text(field: Mapped, cell: str) -> Converted:
    name = field.column.name
    return Converted(field, f'NULLIF({cell}, \'\') AS "v_{name}"', "NULL::VARCHAR", "NULL", "")


def _duration(con: duckdb.DuckDBPyConnection, facts: Facts, field: Mapped, cell: str, scan: str) -> Converted:
    median = None
    if field.unit is None:
        median = con.execute(f"SELECT median(TRY_CAST({cell} AS DOUBLE)) FROM {scan}").fetchall()[0][0]
    unit = nanoseconds(duration_unit(field, median, facts))
    return number_cells(field, cell, unit, signed=field.column.kind == "gap")
