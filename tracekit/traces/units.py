"""Which unit a column of times is in, when nobody said: by magnitude, once per file."""

from __future__ import annotations

from tracekit.errors import shown
from tracekit.traces.columns import UNITS, Mapped
from tracekit.traces.stage import Facts

__all__ = ["DATED", "bucket", "duration_unit", "epoch_unit", "nanoseconds"]

DATED = 10**17
"""Nanoseconds since 1970 (a moment of 1973) from which a number is taken for a date."""

_SAID = "the format, the column's name or --map says so"
_EDGES = ((1e8, None), (1e11, "s"), (1e14, "ms"), (1e17, "us"), (float("inf"), "ns"))


def bucket(value: float) -> str | None:
    """The unit in which ``value`` is a date from 1973 on; ``None`` for a time since some start."""
    return next(unit for edge, unit in _EDGES if abs(value) < edge)


def nanoseconds(unit: str) -> int:
    """Nanoseconds in one ``unit``."""
    return UNITS[unit]


def epoch_unit(field: Mapped, largest: float, facts: Facts) -> tuple[str, bool]:
    """Unit of a numeric time column whose largest value is given, and whether the values count from 1970."""
    found = bucket(largest)
    if field.unit is not None:
        dated = abs(largest) * UNITS[field.unit] >= DATED
        facts.times[field.source] = f"{field.unit} {'since 1970' if dated else 'from a start of their own'}: {_SAID}"
        return field.unit, abs(largest) * UNITS[field.unit] >= DATED
    if found is None:
        facts.warn(f"column {field.source}: times from a start of their own, read as seconds (say {field.column.name}="
                   f"{field.source}:ms if they are milliseconds)")  # fmt: skip
    told = f"since 1970: {shown(largest)} is a date in this unit" if found else "from a start of their own: too small for dates"
    facts.times[field.source] = f"{found or 's'} {told}"
    return found or "s", found is not None


def duration_unit(field: Mapped, median: float | None, facts: Facts) -> str:
    """Unit of a duration column: as named, else the smallest step in which the median is at most ten minutes."""
    if field.unit is not None:
        facts.times[field.source] = f"{field.unit}: {_SAID}"
        return field.unit
    unit = "s"
    for edge, next_unit in ((600.0, "ms"), (6e5, "us"), (6e8, "ns")):
        if median is not None and median > edge:
            unit = next_unit
    facts.times[field.source] = f"{unit}: by magnitude, half of the values are at most ten minutes so"
    said = f"{field.column.name}={field.source}:{unit}"
    facts.warn(f"column {field.source}: no unit in its name, read as {unit} by magnitude (say {said} to be sure)")
    return unit
