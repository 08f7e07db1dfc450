"""Sums over intervals of time, exact however many there are: what of them lies in a bin, and what they cover."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["between", "covered"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def between(edges: Floats, start: Ints, stop: Ints, weight: Floats) -> Floats:
    """Per bin: the sum over intervals of their weight times the ns of them that lie in the bin."""

    def before(ends: Ints) -> Floats:
        order = np.argsort(ends, kind="stable")
        at, own = ends[order].astype(float), weight[order]
        mass, moment = np.concatenate([[0.0], np.cumsum(own)]), np.concatenate([[0.0], np.cumsum(own * (at - edges[0]))])
        n = np.searchsorted(at, edges, "right")
        sums: Floats = mass[n] * (edges - edges[0]) - moment[n]
        return sums

    whole: Floats = np.diff(before(start) - before(stop))
    positive: Floats = np.maximum(whole, 0.0)
    return positive


def covered(times: Ints, start: Ints, stop: Ints) -> npt.NDArray[np.bool_]:
    """Which stretches between neighbouring ``times`` lie in one of the intervals, whose ends are among ``times``."""
    steps = np.zeros(len(times) + 1, np.int64)
    np.add.at(steps, np.searchsorted(times, start), 1)
    np.add.at(steps, np.searchsorted(times, stop), -1)
    inside: npt.NDArray[np.bool_] = np.cumsum(steps)[: len(times) - 1] > 0
    return inside
