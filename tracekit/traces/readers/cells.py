"""Cells of text to canonical values, as SQL expressions: a fast cast for what is plainly valid, a careful one for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracekit.errors import InputError
from tracekit.traces.columns import Mapped
from tracekit.traces.inputs import Source
from tracekit.traces.stage import Facts
from tracekit.traces.units import bucket, duration_unit, epoch_unit, nanoseconds

if TYPE_CHECKING:
    import duckdb

__all__ = ["ABSENT", "Converted", "convert"]

ABSENT = ("", "nan", "null", "none", "n/a", "-")
"""How logs write that a value is unknown (compared in lower case)."""

_ABSENT_SQL = "(" + ", ".join(f"'{word}'" for word in ABSENT) + ")"
_LIMITS = {"count": (0, 4294967295), "integer": (-2147483648, 2147483647)}


@dataclass(frozen=True, slots=True)
class Converted:
    """SQL pieces that turn one column of text into its canonical one.

    ``fast`` and ``doubt`` are selected from the file (value, and the text where the value is not plainly right);
    ``plain``, ``careful`` and ``reason`` from the table of these.
    """

    field: Mapped
    fast: str
    doubt: str
    slow: str
    why: str

    @property
    def value(self) -> str:
        return f'"v_{self.field.column.name}"'

    @property
    def text(self) -> str:
        return f'"t_{self.field.column.name}"'

    @property
    def is_doubtful(self) -> str:
        absent = "" if self.field.column.nullable else f"{self.value} IS NULL OR "
        return f"{absent}{self.text} IS NOT NULL"

    @property
    def plain(self) -> str:
        return f'{self.value} AS "{self.field.column.stored}"'

    @property
    def careful(self) -> str:
        return f'CASE WHEN {self.text} IS NULL THEN {self.value} ELSE {self.slow} END AS "{self.field.column.stored}"'

    @property
    def reason(self) -> str:
        """``WHEN`` branches for a ``CASE``: 'column|why' where the cell is bad."""
        name, text = self.field.column.name, self.text
        missing = f"{text} IS NULL" if not self.field.column.nullable else "false"
        absent = "'missing'" if not self.field.column.nullable else "NULL"
        inner = f"CASE WHEN lower(trim({text})) IN {_ABSENT_SQL} THEN {absent} {self.why} END"
        return (
            f"WHEN {missing} AND {self.value} IS NULL THEN '{name}|missing'"
            f" WHEN {text} IS NOT NULL AND ({inner}) IS NOT NULL THEN '{name}|' || ({inner})"
        )


def convert(con: duckdb.DuckDBPyConnection, source: Source, facts: Facts, fields: Sequence[Mapped], cells: dict[str, str],
            scan: str, *, dates: bool = False) -> list[Converted]:  # fmt: skip
    """The conversions for ``fields``; time units are detected over the whole of ``scan`` where they are not given.

    ``dates``: arrivals are known to be dates without an offset (no look at the data). Errors: ``InputError`` for mixed units.
    """
    out = []
    for field in fields:
        cell, kind = cells[field.column.name], field.column.kind
        if kind == "time" and dates:
            facts.absolute, facts.zone_assumed = True, True
            out.append(_date(field, cell, offsets=False))
        elif kind == "time":
            out.append(_time(con, source, facts, field, cell, scan))
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
    return Converted(
        field,
        f'TRY_CAST({cell} AS {field.column.sql_type}) AS "v_{name}"',
        # the cast rounds 1.5 and takes 1e3: only what prints back as it was read is plainly right
        f'CASE WHEN "v_{name}" IS NULL OR "v_{name}"::VARCHAR <> {cell} THEN {cell} END AS "t_{name}"',
        f"CASE WHEN isfinite({number}) AND {number} = floor({number}) AND {number} BETWEEN {low} AND {high}"
        f" THEN {number}::{field.column.sql_type} END",
        f"WHEN {number} IS NULL OR NOT isfinite({number}) THEN 'not a number'"
        + (f" WHEN {number} < 0 THEN 'negative'" if low == 0 else f" WHEN {number} < {low} THEN 'too small'")
        + f" WHEN {number} <> floor({number}) THEN 'not a whole number' WHEN {number} > {high} THEN 'too large'",
    )


def _text(field: Mapped, cell: str) -> Converted:
    name = field.column.name
    return Converted(field, f'NULLIF({cell}, \'\') AS "v_{name}"', f'NULL::VARCHAR AS "t_{name}"', "NULL", "")


def _date(field: Mapped, cell: str, *, offsets: bool) -> Converted:
    name = field.column.name
    # the nanosecond cast ignores an offset; the one that honours it keeps microseconds
    cast = f"epoch_us(TRY_CAST({cell} AS TIMESTAMPTZ)) * 1000" if offsets else f"epoch_ns(TRY_CAST({cell} AS TIMESTAMP_NS))"
    return Converted(
        field, f'{cast} AS "v_{name}"', f'CASE WHEN "v_{name}" IS NULL THEN {cell} END AS "t_{name}"', "NULL",
        "ELSE 'not a time'",
    )  # fmt: skip


def _number(field: Mapped, cell: str, unit: str, *, signed: bool) -> Converted:
    name, factor = field.column.name, nanoseconds(unit)
    exact = f"TRY_CAST({cell} AS DECIMAL(38, 9))"
    low = -(9 * 10**18) // factor if signed else 0
    value = f'TRY_CAST(trim("t_{name}") AS DOUBLE)'
    return Converted(
        field,
        f'CASE WHEN {exact} BETWEEN {low} AND {9 * 10**18 // factor} THEN ({exact} * {factor})::BIGINT END AS "v_{name}"',
        f'CASE WHEN "v_{name}" IS NULL THEN {cell} END AS "t_{name}"',
        "NULL",
        f"WHEN {value} IS NULL OR NOT isfinite({value}) THEN '{'not a time' if signed else 'not a number'}'"
        + ("" if signed else f" WHEN {value} < 0 THEN 'negative'")
        + " ELSE 'too large'",
    )


def _time(con: duckdb.DuckDBPyConnection, source: Source, facts: Facts, field: Mapped, cell: str, scan: str) -> Converted:
    number = f"TRY_CAST({cell} AS DOUBLE)"
    query = (
        f"SELECT count({cell}), count(n), min(abs(n)) FILTER (abs(n) >= 1e8), max(abs(n)),"
        f" count(*) FILTER (o), count(*) FILTER (z)"
        f" FROM (SELECT {cell}, CASE WHEN isfinite({number}) THEN {number} END AS n,"
        f" regexp_matches({cell}, ':.*[+-]\\d\\d:?\\d\\d$') AND NOT regexp_matches({cell}, '[+-]00:?00$') AS o,"
        f" regexp_matches({cell}, ':.*(Z|[+-]\\d\\d:?\\d\\d)$') AS z FROM {scan})"
    )
    total, numbers, smallest, largest, offsets, zones = con.execute(query).fetchall()[0]
    main = field.column.name == "arrival"
    if field.unit is None and numbers * 2 < total:
        if main:
            facts.absolute, facts.zone_assumed = True, zones < total - numbers
        return _date(field, cell, offsets=bool(offsets))
    if field.unit is None and smallest is not None and bucket(smallest) != bucket(largest):
        _refuse_mixed(con, source, field, cell, scan)
    unit, absolute = epoch_unit(field, largest or 0.0, facts)
    if main:
        facts.absolute = absolute
    return _number(field, cell, unit, signed=True)


def _refuse_mixed(con: duckdb.DuckDBPyConnection, source: Source, field: Mapped, cell: str, scan: str) -> None:
    values = con.execute(f"SELECT {cell} FROM (SELECT *, TRY_CAST({cell} AS DOUBLE) AS n FROM {scan}) WHERE n IS NOT NULL")
    first: str | None = None
    line = 1
    while rows := values.fetchmany(10_000):
        for (text,) in rows:
            line += 1
            unit = bucket(float(text))
            first = first or unit
            if unit is not None and unit != first:
                raise InputError(
                    f"the unit of time changes from {first} to {unit}", file=source.name, line=line, column=field.source,
                    value=text, expected="one unit in a file",
                )  # fmt: skip


def _duration(con: duckdb.DuckDBPyConnection, facts: Facts, field: Mapped, cell: str, scan: str) -> Converted:
    median = None
    if field.unit is None:
        median = con.execute(f"SELECT median(TRY_CAST({cell} AS DOUBLE)) FROM {scan}").fetchall()[0][0]
    return _number(field, cell, duration_unit(field, median, facts), signed=field.column.kind == "gap")
