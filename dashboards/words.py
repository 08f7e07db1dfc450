"""Numbers as people read them: with their unit, three digits, and a dash where there is none."""

from __future__ import annotations

import math

__all__ = ["MISSING", "count", "number", "percent", "rate", "seconds", "short"]

MISSING = "-"


_SCALES = ((0.9995e-6, 1e9, "ns"), (0.9995e-3, 1e6, "µs"), (0.9995, 1e3, "ms"), (900.0, 1.0, "s"), (7200.0, 1 / 60, "min"))
"""Up to where a unit is used (what would read as a thousand of it is one of the next), its size, its name."""


def short(value: float, digits: int = 3) -> str:
    """A finite number to so many digits, whole where it has more before its point, thousands apart, never with an exponent."""
    said = f"{value:,.{digits}g}"
    if "e" not in said:
        return said
    if abs(value) >= 1:
        return f"{value:,.0f}"
    return f"{value:.{digits - 1 - math.floor(math.log10(abs(value)))}f}".rstrip("0")


def seconds(value: float | None) -> str:
    """``0.0123`` as ``12.3 ms``; above a quarter of an hour in minutes or hours."""
    if value is None or not math.isfinite(value):
        return MISSING
    size = abs(value)
    if size == 0:
        return "0 s"
    for limit, factor, unit in _SCALES:
        if size < limit:
            return f"{short(value * factor)} {unit}"
    return f"{short(value / 3600)} h"


def count(value: float | None) -> str:
    """A whole number with its thousands apart."""
    return MISSING if value is None or not math.isfinite(value) else f"{value:,.0f}"


def number(value: float | None) -> str:
    """A quantity that need not be whole, to four digits, never with an exponent."""
    if value is None or not math.isfinite(value):
        return MISSING
    return short(value, 4)


def percent(share: float | None) -> str:
    """A share of 1 in per cent."""
    if share is None or not math.isfinite(share):
        return MISSING
    return f"{100 * share:.1f} %"


def rate(value: float | None) -> str:
    """A number per second, three digits."""
    return MISSING if value is None or not math.isfinite(value) else f"{short(value)}/s"
