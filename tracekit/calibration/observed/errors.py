"""Predicted against observed latencies: means, percentiles, and request by request."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracekit.calibration.observed.observations import Observations, predictions
from tracekit.calibration.observed.replays import Replayed
from tracekit.calibration.observed.terms import Delivered

__all__ = ["SHORT_NS", "Errors", "errors_between", "errors_of"]

METRICS = ("queue", "ttft", "tpot", "e2e")
PERCENTS = (50, 90, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Relative errors (0.01 is 1 % too much) of one latency over ``n`` requests; ``each_p50`` and ``each_p90`` are of their
    absolute values request by request. ``observed_ns``: the mean."""

    metric: str
    n: int
    observed_ns: float
    mean: float
    p50: float
    p90: float
    p99: float
    each_p50: float
    each_p90: float


def errors_of(
    seen: Observations, run: Replayed, counting: str, there: Delivered, over: npt.NDArray[np.bool_] | None = None
) -> list[Errors]:
    """Over the requests that ``over`` marks, or those that a fit looked at; a latency that nobody has is left out."""
    theirs = predictions(run, counting, there)
    chosen = seen.used if over is None else over
    found = []
    for metric in METRICS:
        observed = seen.group(metric)
        both = chosen & ~np.isnan(observed) & ~np.isnan(theirs[metric])
        if metric == "queue" and (not both.any() or float(observed[both].mean()) <= 0):
            continue
        if both.any():
            found.append(errors_between(metric, theirs[metric][both], observed[both]))
    return found


SHORT_NS = 1e6
"""A queue below it is none: its error as a share says nothing."""


def errors_between(metric: str, ours: npt.NDArray[np.float64], theirs: npt.NDArray[np.float64]) -> Errors:
    """Of the same requests, one latency on both sides (ns)."""
    least = SHORT_NS if metric == "queue" else 0.0

    def off(mine: float, seen: float) -> float:
        return mine / seen - 1 if seen > least else float("nan")

    p50, p90, p99 = (off(float(np.percentile(ours, q)), float(np.percentile(theirs, q))) for q in PERCENTS)
    positive = theirs > least
    each = np.abs(ours[positive] / theirs[positive] - 1) if positive.any() else np.array([np.nan])
    return Errors(
        metric=metric, n=len(ours), observed_ns=float(theirs.mean()), mean=off(float(ours.mean()), float(theirs.mean())), p50=p50,
        p90=p90, p99=p99, each_p50=float(np.percentile(each, 50)), each_p90=float(np.percentile(each, 90)),
    )  # fmt: skip
