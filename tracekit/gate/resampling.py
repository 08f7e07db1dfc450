"""Traffic like a trace's: its stretches of time drawn again, with replacement, and put end to end.

The counted part of a slice is cut into equal stretches; a draw fills each place with one of them, so that bursts, lengths and
sessions keep their shape inside a stretch while a busy one may come twice and a calm one not at all. A session comes whole, with
the stretch in which it starts; the lead-in stays as it is. What only one stretch holds of a prefix is another content each time
the stretch comes again; what several stretches hold (system prompts) is the same.
"""

from __future__ import annotations

import copy

import numpy as np
import numpy.typing as npt

from tracekit.traces.rows_again import rows_again
from tracekit.traces.source import TraceSource

__all__ = ["MOST", "redrawn", "stretches_of"]

Ints = npt.NDArray[np.int64]
MOST, LEAST = 20, 6
"""Stretches of a slice: more break bursts up, fewer say nothing of the spread."""
PER_STRETCH = 4
"""Independent starts (sessions, or requests without one) that a stretch must hold on average."""


def stretches_of(source: TraceSource) -> tuple[Ints, int, int] | None:
    """The stretch of every request, int64, -1 in the lead-in; when the first begins and how long each is, ns on the engine
    clock. ``None`` where there are too few starts, or no time, to cut."""
    counted = source.counted
    starts = counted if source.parent is None else counted & (source.parent < 0)
    count = min(MOST, int(starts.sum()) // PER_STRETCH)
    if count < LEAST or source.window_ns < count:
        return None
    begin = int(source.start_ns[counted][0]) if source.part.window_ns is None else _begin(source)
    length = source.window_ns // count
    at = np.clip((source.start_ns - begin) // length, 0, count - 1)
    return np.where(counted, at, -1), begin, length


def _begin(source: TraceSource) -> int:
    """Where the window begins on the engine clock: the lead-in before it is scaled like all arrivals."""
    assert source.part.window_ns is not None
    return round((source.part.window_ns[0] - source.origin_ns) / source.rate_scale)


def redrawn(source: TraceSource, seed: int) -> TraceSource:
    """One draw of the traffic of ``source``, by ``seed``; its rows in the order that a source has. ``source`` itself, copied,
    where it cannot be cut into stretches."""
    cut = stretches_of(source)
    if cut is None:
        return copy.copy(source)
    stretch, begin, length = cut
    count = int(stretch.max()) + 1
    drawn = np.random.default_rng([seed, 1]).integers(0, count, count)
    where = [np.flatnonzero(stretch == each) for each in range(count)]
    lead = np.flatnonzero(stretch < 0)
    rows = np.concatenate([lead, *(where[each] for each in drawn)])
    sizes = np.array([len(lead), *(len(where[each]) for each in drawn)], np.int64)
    before = [int((drawn[:at] == each).sum()) for at, each in enumerate(drawn)]
    place = np.repeat(np.arange(-1, count), sizes)
    # what lies behind the end of the last stretch (the rest of a division) stays within its place, or the order would change
    inside = np.minimum(source.start_ns[rows] - begin - stretch[rows] * length, length - 1)
    shift = np.where(place < 0, 0, begin + place * length + inside - source.start_ns[rows])
    return rows_again(source, rows, shift, np.repeat(np.array([0, *before], np.int64), sizes), stretch)
