"""Columns of moments in delimited text: which way they are written, found once per file, and the SQL that reads them.

ISO dates with or without an offset, numbers since 1970 or since some start (with a decimal comma too), days as a spreadsheet
counts them, and dates with the year last, whose order of day and month the file itself must tell.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracekit.errors import InputError
from tracekit.traces.columns import Mapped
from tracekit.traces.inputs import Source
from tracekit.traces.readers.conversion import Converted
from tracekit.traces.stage import Facts
from tracekit.traces.units import DATED, bucket, epoch_unit, nanoseconds

if TYPE_CHECKING:
    import duckdb

__all__ = ["NAIVE", "iso_dates", "number_cells", "time_cells"]

NAIVE = "dates without an offset, read as UTC"
SAMPLE = 10_000
DAY = 86_400_000_000_000
SHEET_EPOCH = 25_569
"""1970-01-01 in the day numbers of spreadsheets."""

_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$")
_ISO = re.compile(r"\s*\d{4}-\d\d")
_COMMA = re.compile(r"\s*[+-]?\d+,\d+\s*$")
_SHEET = re.compile(r"\s*[3-7]\d{4}\.\d{4,}\s*$")
_OFFSET = re.compile(r":.*?(Z|[+-]\d\d(?::?\d\d)?)\s*$")
_YEAR_LAST = re.compile(r"\s*(\d{1,2})([/.-])(\d{1,2})\2\d{4}\b")
_CLOCKS = ("%H:%M:%S", "%H:%M:%S.%f", "%I:%M:%S %p", "%I:%M:%S.%f %p", "%H:%M", "%I:%M %p")


def time_cells(con: duckdb.DuckDBPyConnection, source: Source, facts: Facts, field: Mapped, cell: str, scan: str) -> Converted:
    """The conversion of ``field``, whose text is ``cell`` of ``scan``. Errors: ``InputError`` for mixed or unclear dates."""
    taken = con.execute(f"SELECT {cell} FROM {scan} WHERE {cell} IS NOT NULL AND trim({cell}) <> '' LIMIT {SAMPLE}").fetchall()
    texts = [str(text) for (text,) in taken]
    if _mostly(_COMMA, texts):
        facts.warn(f"column {field.source}: the comma was read as the decimal point")
        cell, texts = f"replace({cell}, ',', '.')", [text.replace(",", ".") for text in texts]
    if field.unit is None and _mostly(_YEAR_LAST, texts):
        return _year_last(con, source, facts, field, cell, scan)
    if field.unit is None and texts and _matches(_NUMBER, texts) <= _matches(_ISO, texts):
        offsets = [match[1] if (match := _OFFSET.search(text)) else "" for text in texts]
        _dated(facts, field, offsets.count("") * 2 <= len(texts))
        return iso_dates(field, cell, max(("Z", "+00:00", ""), key=offsets.count))
    if field.unit is None and _mostly(_SHEET, texts):
        facts.warn(f"column {field.source}: read as the day numbers of a spreadsheet, to about 0.1 ms"
                   f" (say {field.column.name}={field.source}:s if they are seconds)")  # fmt: skip
        _dated(facts, field, False, "day numbers of a spreadsheet: from 30000 to 80000, with a fraction")
        return number_cells(field, f"({cell} - {SHEET_EPOCH})", DAY, signed=True, text=cell)
    return _counted(con, source, facts, field, cell, scan)


def _matches(pattern: re.Pattern[str], texts: list[str]) -> int:
    return sum(pattern.match(text) is not None for text in texts)


def _mostly(pattern: re.Pattern[str], texts: list[str]) -> bool:
    return _matches(pattern, texts) * 2 > len(texts)


def _dated(facts: Facts, field: Mapped, zoned: bool, how: str = "") -> None:
    facts.times[field.source] = how or ("dates with an offset" if zoned else NAIVE)
    if field.column.name == "arrival":
        facts.absolute, facts.zone_assumed = True, not zoned


def iso_dates(field: Mapped, cell: str, ends: str = "") -> Converted:
    """Dates that begin with the year: no offset means UTC, others are honoured; up to nine digits of seconds.

    ``ends`` is how most of them end: with ``Z``, ``+00:00``, or without an offset. They are read the quick way.
    """
    name = field.column.name
    text = f'"t_{name}"'
    # the nanosecond cast is quick and ignores an offset: it gets what has none, or that of UTC
    plain = f"suffix({cell}, '{ends}')" if ends else f"NOT contains({cell}, '+') AND NOT contains(substr({cell}, 12), '-')"
    nanos = f"rpad(regexp_extract({text}, ':\\d\\d[.,](\\d+)', 1), 9, '0')[7:9]::BIGINT"

    def careful(value: str) -> str:
        return f"TRY(epoch_us(TRY_CAST({value} AS TIMESTAMPTZ)) * 1000 + {nanos})"

    leap = f"{careful(f'''replace({text}, ':60', ':59')''')} + 1000000000"
    slow = f"CASE WHEN contains({text}, ':60') THEN {leap} ELSE {careful(text)} END"
    return Converted(
        field,
        f'CASE WHEN {plain} THEN epoch_ns(TRY_CAST({cell} AS TIMESTAMP_NS)) END AS "v_{name}"',
        f'CASE WHEN "v_{name}" IS NULL THEN {cell} END',
        slow,
        f"WHEN ({slow}) IS NULL THEN 'not a time'",
    )


def _year_last(con: duckdb.DuckDBPyConnection, source: Source, facts: Facts, field: Mapped, cell: str, scan: str) -> Converted:
    """Dates as 8/18/2025 or 18.8.2025, times with or without AM and PM, naive."""
    begin = f"regexp_extract({cell}, '^\\s*\\d{{1,2}}[/.-]\\d{{1,2}}[/.-]\\d{{4}}')"
    found = con.execute(f"SELECT DISTINCT {begin} FROM {scan} LIMIT 5000")
    pairs = [(int(match[1]), int(match[3]), match[2]) for (text,) in found.fetchall() if (match := _YEAR_LAST.match(text or ""))]
    day_first, month_first = any(a > 12 for a, _, _ in pairs), any(b > 12 for _, b, _ in pairs)
    half_days = bool(con.execute(f"SELECT count(*) FROM (SELECT {cell} AS t FROM {scan} LIMIT {SAMPLE})"
                                 " WHERE regexp_matches(upper(t), '[AP]M')").fetchall()[0][0])  # fmt: skip
    if not day_first and not month_first:
        day_first, month_first = pairs[0][2] == ".", half_days
    if day_first == month_first:
        raise InputError("day and month cannot be told apart in these dates", file=source.name, column=field.source,
                         expected="dates as 2025-08-18 12:00:38")  # fmt: skip
    order = "day, month, year" if day_first else "month, day, year"
    _dated(facts, field, False, f"dates as {order} without an offset, read as UTC")
    facts.warn(f"column {field.source}: dates read as {order}")
    day = "%d{0}%m{0}%Y" if day_first else "%m{0}%d{0}%Y"
    layouts = ", ".join(f"'{day.format(pairs[0][2])}{comma} {clock}'" for clock in _CLOCKS for comma in (",", ""))
    name = field.column.name
    return Converted(
        field, f'epoch_us(TRY_STRPTIME(trim({cell}), [{layouts}])) * 1000 AS "v_{name}"',
        f'CASE WHEN "v_{name}" IS NULL THEN {cell} END', "NULL", "ELSE 'not a time'",
    )  # fmt: skip


def _counted(con: duckdb.DuckDBPyConnection, source: Source, facts: Facts, field: Mapped, cell: str, scan: str) -> Converted:
    """Numbers, in the unit that was said or that their size tells."""
    number, factor = f"TRY_CAST({cell} AS DOUBLE)", nanoseconds(field.unit or "s")
    query = (
        "SELECT count(c), count(n), min(abs(n)) FILTER (d), max(abs(n)) FILTER (d), count(*) FILTER (d)"
        f" FROM (SELECT {cell} AS c, CASE WHEN isfinite({number}) THEN {number} END AS n, abs(n) * {factor} >= {DATED} AS d"
        f" FROM {scan})"
    )
    total, numbers, smallest, largest, dated = con.execute(query).fetchall()[0]
    if field.unit is None and not numbers and total:
        _dated(facts, field, False)
        return iso_dates(field, cell, "Z")
    most = dated * 2 > numbers
    if field.unit is None and dated and (not most or bucket(smallest) != bucket(largest)):
        _refuse_mixed(con, source, field, cell, scan, relative=not most)
    unit, absolute = epoch_unit(field, largest if most else 0.0, facts)
    if field.column.name == "arrival":
        facts.absolute = absolute
    return number_cells(field, cell, nanoseconds(unit), signed=True, dated=absolute)


def number_cells(field: Mapped, cell: str, factor: int, *, signed: bool, dated: bool = False,
                 text: str | None = None) -> Converted:  # fmt: skip
    """Numbers of ``factor`` ns each; ``dated``: they count from 1970, so that small ones are none of them."""
    name, text = field.column.name, text or cell
    exact = f"TRY_CAST({cell} AS DECIMAL(38, 9))" if cell == text else f"TRY(TRY_CAST({text} AS DECIMAL(38, 9)) - {SHEET_EPOCH})"
    low = -(9 * 10**18) // factor if signed else 0
    value = f'TRY_CAST(trim("t_{name}") AS DOUBLE)'
    inside = f"{exact} BETWEEN {low} AND {9 * 10**18 // factor}" + (f" AND abs({exact}) >= {DATED // factor}" if dated else "")
    return Converted(
        field,
        f'CASE WHEN {inside} THEN ({exact} * {factor})::BIGINT END AS "v_{name}"',
        f'CASE WHEN "v_{name}" IS NULL THEN {text} END',
        "NULL",
        f"WHEN {value} IS NULL OR NOT isfinite({value}) THEN '{'not a time' if signed else 'not a number'}'"
        + ("" if signed else f" WHEN {value} < 0 THEN 'negative'")
        + (f" WHEN abs({value}) < {DATED // factor} THEN 'not a date, as the others are'" if dated else "")
        + " ELSE 'too large'",
    )


def _refuse_mixed(con: duckdb.DuckDBPyConnection, source: Source, field: Mapped, cell: str, scan: str, *,
                  relative: bool) -> None:  # fmt: skip
    values = con.execute(f"SELECT {cell} FROM (SELECT *, TRY_CAST({cell} AS DOUBLE) AS n FROM {scan}) WHERE n IS NOT NULL")
    first = "small numbers" if relative else None
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
