"""From the recorded arrivals to the engine's clock, as a slice has them; and the same requests under another rate and bursts."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tracekit.errors import UsageError
from tracekit.traces.bursts import warp_roots

if TYPE_CHECKING:
    from tracekit.traces.slicing import Slice
    from tracekit.traces.source import TraceSource

__all__ = ["engine_clock", "moved"]

Ints = npt.NDArray[np.int64]
Gaps = tuple[float | None, float | None]


def engine_clock(recorded: Ints, parent: Ints | None, part: Slice, edges: Sequence[int]) -> tuple[Ints, Gaps]:
    """Recorded arrivals (ns from trace start) from where the lead-in begins, as fast as ``part`` has them, as if nobody waited
    for anybody; and ``gap_cv`` of the roots before and after their bursts were scaled. ``edges``: where the lead-in begins, the
    window, and where it ends. ``parent``: below 0 for a root; ``None``: all are."""
    gaps: Gaps = (None, None)
    arrival = recorded
    if part.burst_scale != 1.0:
        arrival, gaps = warp_roots(arrival, np.full(len(arrival), -1) if parent is None else parent, edges, part.burst_scale)
    moment = arrival - part.begin_ns
    return (moment if part.rate_scale == 1.0 else np.rint(moment / part.rate_scale).astype(np.int64)), gaps


def moved(source: TraceSource, *, rate_scale: float = 1.0, burst_scale: float = 1.0) -> TraceSource:
    """The same requests with arrivals so many times as fast, and gaps between them to this power (``Slice``), on top of how the
    source's own slice has them: what a slice with the products would have read. ``source`` is left alone; deadlines and cancels
    keep their distance from the arrival. Errors: ``UsageError``: a number that cannot be, or requests that wait for others,
    whose arrivals are not free to move."""
    part = source.part.moved(rate_scale, burst_scale)
    if source.parent is not None:
        raise UsageError("requests of this trace wait for each other, so their arrivals are not free to move")
    found = copy.copy(source)
    found.part, found.rate_scale = part, part.rate_scale
    found.arrival_ns, found.gap_cv = engine_clock(source.recorded_ns, None, part, source.edges)
    found.start_ns = found.arrival_ns
    for name in ("deadline_ns", "cancel_ns"):
        column = getattr(source, name)
        if column is not None:
            setattr(found, name, np.where(column < 0, -1, column + found.arrival_ns - source.arrival_ns))
    found.window_ns = max(round(source.span_ns / part.rate_scale), 0)
    return found
