"""Numbers as people read them: with their unit, three digits, and a dash where there is none."""

from __future__ import annotations

import math

__all__ = ["MISSING", "count", "number", "percent", "rate", "seconds"]

MISSING = "-"


_SCALES = ((1e-6, 1e9, "ns"), (1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (900.0, 1.0, "s"), (7200.0, 1 / 60, "min"))


def seconds(value: float | None) -> str:
    """``0.0123`` as ``12.3 ms``; above a quarter of an hour in minutes or hours."""
    if value is None or not math.isfinite(value):
        return MISSING
    size = abs(value)
    if size == 0:
        return "0 s"
    for limit, factor, unit in _SCALES:
        if size < limit:
            return f"{value * factor:,.3g} {unit}"
    return f"{value / 3600:,.3g} h"


def count(value: float | None) -> str:
    """A whole number with its thousands apart."""
    return MISSING if value is None or not math.isfinite(value) else f"{value:,.0f}"


def number(value: float | None) -> str:
    """A quantity that need not be whole, to four digits, never with an exponent."""
    if value is None or not math.isfinite(value):
        return MISSING
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}" if abs(value) >= 1e-4 or not value else f"{value:.6f}"


def percent(share: float | None) -> str:
    """A share of 1 in per cent."""
    if share is None or not math.isfinite(share):
        return MISSING
    return f"{100 * share:.1f} %"


def rate(value: float | None) -> str:
    """A number per second, three digits."""
    return MISSING if value is None or not math.isfinite(value) else f"{value:,.3g}/s"
