"""The tick of a trace's clock: how finely its arrivals were written down."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["coarse_tick", "find_tick"]

Ints = npt.NDArray[np.int64]
JITTER = 0.01
"""Instants may stand this share of a tick off its multiples (Mooncake: 3 s give or take 1 ms)."""
MIN_INSTANTS = 8


def coarse_tick(instants: Ints, fine_ns: int) -> int:
    """The tick of a trace whose arrivals come in groups: the common distance of its distinct instants (ascending, ns), to
    within a jitter; ``fine_ns``, the step that divides every arrival, where there is none."""
    if len(instants) < MIN_INSTANTS:
        return fine_ns
    gaps = np.diff(instants)
    tick = round(float(np.median(gaps)) / fine_ns) * fine_ns
    if tick <= fine_ns:
        return fine_ns
    off = np.abs(gaps - np.rint(gaps / tick) * tick)
    return int(tick) if np.mean((off <= JITTER * tick) & (gaps > tick / 2)) >= 0.95 else fine_ns


def find_tick(arrival_ns: Ints) -> int:
    """The tick (ns) of ascending arrivals from trace start: a power of ten, or the coarse tick of groups."""
    if not len(arrival_ns):
        return 1
    start = arrival_ns - arrival_ns[0]
    fine = next((10**k for k in range(9, 0, -1) if not (start % 10**k).any()), 1)
    instants = np.unique(start)
    return coarse_tick(instants, fine) if len(start) > 2 * len(instants) else fine
