"""Replayed against observed: how far the profile is off on this trace, where the trace has latencies."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from replay_engine.types import RequestState
from tracekit.metrics.distributions import SMALL_N, missing
from tracekit.metrics.inputs import MatrixInputs

__all__ = ["observed_section"]

UNKNOWN = "unknown: the trace has no latencies"
_PERCENTS = (50, 90, 99)


def observed_section(inputs: MatrixInputs, rows: npt.NDArray[np.void]) -> dict[str, Any]:
    """Per metric: both distributions (ns), relative errors, and the median absolute error request by request."""
    observed = inputs.observed or {}
    done = rows[rows["state"] == RequestState.finished] if observed else rows[:0]
    section: dict[str, Any] = {}
    for name in ("queue_ns", "ttft_ns", "tpot_ns", "e2e_ns"):
        column = observed.get(name)
        if column is None or not _known(column).any():
            section[name] = missing(UNKNOWN if not observed else f"unknown: the trace has no {name[:-3]}")
            continue
        theirs = column[done["request"]]
        both = _known(theirs) & _known(done[name])
        section[name] = _compare(done[name][both].astype(np.float64), theirs[both].astype(np.float64))
    return section


def _known(column: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    # a comparison with NaN is false
    return column >= 0


def _compare(ours: npt.NDArray[np.float64], theirs: npt.NDArray[np.float64]) -> dict[str, Any]:
    n = int(ours.size)
    if n == 0:
        return missing("no request has both a replayed and an observed value")
    replayed, seen = _figures(ours), _figures(theirs)
    apart = np.abs(ours - theirs)
    positive = theirs > 0
    relative = float(np.median(apart[positive] / theirs[positive])) if positive.any() else missing("observed values are 0")
    return {
        "n": n,
        "replayed": replayed,
        "observed": seen,
        "relative_error": {
            name: (replayed[name] - seen[name]) / seen[name] if seen[name] else missing("observed is 0") for name in seen
        },
        "median_abs_error_ns": float(np.median(apart)),
        "median_abs_relative_error": relative,
        "small_n": [f"p{percent}" for percent in _PERCENTS if n < SMALL_N.get(float(percent), 0)],
    }


def _figures(values: npt.NDArray[np.float64]) -> dict[str, float]:
    found = np.percentile(values, _PERCENTS)
    return {"mean": float(values.mean())} | {f"p{p}": float(v) for p, v in zip(_PERCENTS, found, strict=True)}
