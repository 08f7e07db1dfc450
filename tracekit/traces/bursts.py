"""Arrivals made more even or burstier: the same requests in the same order over the same stretch, at other moments of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

__all__ = ["gap_cv", "warp_gaps", "warp_roots"]

Ints = npt.NDArray[np.int64]


def warp_gaps(moment: Ints, edges: Sequence[int], power: float) -> Ints:
    """Ascending moments (ns) with every gap to the ``power``, then all of them scaled so that they fill the same stretch: 0 makes
    arrivals even, 1 leaves them, 2 makes a gap ten times the mean a hundred times one.

    ``edges``: ascending; what lies between two of them stays between them, so that a window keeps its requests. Gaps from and to
    an edge count as gaps. Arrivals at one instant stay together unless ``power`` is 0.
    """
    found = moment.copy()
    for low, high in pairwise(edges):
        first, last = np.searchsorted(moment, [low, high], "left")
        if last > first and high > low:
            gaps = np.diff(np.concatenate([[low], moment[first:last], [high]])).astype(np.float64)
            warped = (gaps / gaps.mean()) ** power
            at = low + np.rint(np.cumsum(warped)[:-1] * ((high - low) / warped.sum())).astype(np.int64)
            found[first:last] = np.clip(at, low, high - 1)
    return found


def warp_roots(arrival: Ints, parent: Ints, edges: Sequence[int],
               power: float) -> tuple[Ints, tuple[float | None, float | None]]:  # fmt: skip
    """Arrivals with those that wait for nobody (``parent`` below 0) warped as ``warp_gaps`` does, and ``gap_cv`` of these before
    and after."""
    roots = np.flatnonzero(parent < 0)
    found, before = arrival.copy(), arrival[roots]
    found[roots] = warp_gaps(before, edges, power)
    return found, (gap_cv(before), gap_cv(found[roots]))


def gap_cv(moment: Ints) -> float | None:
    """Coefficient of variation of the gaps between ascending moments: 0 even, about 1 as a Poisson process; ``None`` for fewer
    than three, or all at one instant."""
    if len(moment) < 3:
        return None
    gaps = np.diff(moment).astype(np.float64)
    return float(gaps.std() / gaps.mean()) if gaps.any() else None
