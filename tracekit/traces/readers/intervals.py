"""Time covered by intervals that may overlap, as tools that run side by side do."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["covered"]


def covered(intervals: Iterable[tuple[int, int]], low: int, high: int) -> int:
    """ns between ``low`` and ``high`` in which at least one of ``intervals`` (begin, end) is open."""
    total, reached = 0, low
    for begin, end in sorted(intervals):
        begin, end = max(begin, reached), min(end, high)
        if end > begin:
            total += end - begin
            reached = end
    return total
