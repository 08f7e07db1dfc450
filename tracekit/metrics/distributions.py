"""Distributions as the matrix shows them: percentiles with their n, weighted percentiles, Wilson intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["SMALL_N", "describe", "describe_weighted", "missing", "weighted_percentiles", "wilson"]

SMALL_N = {99.0: 1_000, 99.9: 10_000}
"""A percentile of fewer values than this is flagged: it rests on a handful of them."""

_Z95 = 1.959963984540054
Numbers = npt.NDArray[np.integer[Any]] | npt.NDArray[np.floating[Any]]


def missing(reason: str) -> dict[str, Any]:
    """How the matrix writes a field that does not apply: never a bare null."""
    return {"value": None, "reason": reason}


def describe(values: Numbers, reason: str, percents: Sequence[float] = (50, 95, 99)) -> dict[str, Any]:
    """``n``, mean, the percentiles (linear interpolation), max and which percentiles rest on too few values.

    Without values: null with ``reason``.
    """
    n = int(values.size)
    if n == 0:
        return missing(reason)
    found = np.percentile(values, percents)
    return _row(n, float(values.mean()), found, values.max(), percents)


def describe_weighted(
    values: npt.NDArray[np.int64], weights: npt.NDArray[np.int64], reason: str, percents: Sequence[float] = (50, 95, 99)
) -> dict[str, Any]:
    """As ``describe`` of the list in which ``values[i]`` stands ``weights[i]`` times, which is never built."""
    n = int(weights.sum())
    if n == 0:
        return missing(reason)
    mean = float(np.dot(values.astype(np.float64), weights)) / n
    return _row(n, mean, weighted_percentiles(values, weights, percents), values[weights > 0].max(), percents)


def _row(n: int, mean: float, found: Any, largest: Any, percents: Sequence[float]) -> dict[str, Any]:
    row: dict[str, Any] = {"n": n, "mean": mean}
    row |= {f"p{percent:g}": float(value) for percent, value in zip(percents, found, strict=True)}
    row["max"] = largest.item()
    row["small_n"] = [f"p{percent:g}" for percent in percents if n < SMALL_N.get(float(percent), 0)]
    return row


def weighted_percentiles(values: Numbers, weights: npt.NDArray[np.int64], percents: Sequence[float]) -> list[float]:
    """Percentiles of the expanded list, equal to numpy's linear interpolation on it. ``weights`` must not all be 0."""
    order = np.argsort(values)  # a stable sort takes three times as long, and how equal values stand changes nothing
    ordered = values[order]
    upto = np.cumsum(weights[order])
    last = int(upto[-1]) - 1
    found = []
    for percent in percents:
        place = last * (percent / 100)
        low = math.floor(place)
        share = place - low
        a, b = (float(ordered[np.searchsorted(upto, min(at, last), side="right")]) for at in (low, low + 1))
        # numpy's own form of the interpolation, so that results agree to the last bit
        found.append(a + (b - a) * share if share < 0.5 else b - (b - a) * (1 - share))
    return found


def wilson(hits: int, n: int) -> tuple[float, float]:
    """The 95 % Wilson score interval of a share ``hits / n``; ``n`` > 0."""
    share = hits / n
    scale = 1 + _Z95**2 / n
    middle = (share + _Z95**2 / (2 * n)) / scale
    half = _Z95 * math.sqrt(share * (1 - share) / n + _Z95**2 / (4 * n * n)) / scale
    return (0.0 if hits == 0 else max(0.0, middle - half)), (1.0 if hits == n else min(1.0, middle + half))
