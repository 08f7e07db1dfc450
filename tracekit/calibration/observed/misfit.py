"""How far predictions are from observations, in one number: robust, relative, each group of latencies by its own noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracekit.calibration.observed.observations import COUNTING, GROUPS, Observations, grain, predictions
from tracekit.calibration.observed.replays import Replayed
from tracekit.calibration.observed.sensitivity import sensitivities
from tracekit.calibration.observed.terms import Delivered, Vector, delivered_of

__all__ = ["COARSEST", "Misfit", "Scales", "misfit", "robust_loss", "scales_of"]

Column = npt.NDArray[np.float64]
Scales = dict[str, float]
HUBER = 1.5
NEVER = 1.0
"""The residual of a request that the replay never answered."""
FINEST, COARSEST = 0.004, 0.5
TOGETHER = 4.0
"""Groups of the same requests are no independent witnesses: four of them count as one."""


@dataclass(slots=True, kw_only=True)
class Misfit:
    """``residual`` (of logarithms, in units of its group's noise) with one row an observation, ``slope`` by term (without what
    the schedule does), ``request`` whose it is, ``weight`` what an outlier is left with; ``loss`` over all."""

    residual: Column
    slope: npt.NDArray[np.float64]
    request: npt.NDArray[np.int64]
    weight: Column
    loss: float
    counting: str


def _raw(seen: Observations, run: Replayed, counting: str, there: Delivered) -> dict[str, tuple[Column, npt.NDArray[np.bool_]]]:
    """By group: residuals of the logarithm and which requests they are of."""
    theirs = predictions(run, counting, there)
    found = {}
    for name in GROUPS:
        observed = seen.group(name)
        chosen = seen.used & ~np.isnan(observed) & (observed + grain(name) > 0)
        if not chosen.any():
            continue
        predicted = theirs[name]
        with np.errstate(invalid="ignore", divide="ignore"):
            off = np.log(np.maximum(predicted + grain(name), 1.0) / (observed + grain(name)))
        found[name] = (np.where(np.isnan(predicted), NEVER, off)[chosen], chosen)
    return found


def scales_of(seen: Observations, run: Replayed, counting: str, there: Delivered) -> Scales:
    """The noise of each group: the median absolute residual, as a standard deviation."""
    groups = _raw(seen, run, counting, there)
    return {name: float(np.clip(1.4826 * np.median(np.abs(off)), FINEST, COARSEST)) for name, (off, _) in groups.items()}


def misfit(
    seen: Observations, run: Replayed, vector: Vector, scales: Scales, counting: str | None, *, asynchronous: bool
) -> Misfit:
    """Against ``run``, a replay under ``vector``. ``counting`` ``None``: whichever way leaves the least."""
    if counting is None:
        each = [misfit(seen, run, vector, scales, way, asynchronous=asynchronous) for way in COUNTING]
        return min(each, key=lambda one: one.loss)
    slopes = sensitivities(run, vector, counting, asynchronous=asynchronous)
    there = delivered_of(vector)
    theirs = predictions(run, counting, there)
    residual, slope, request = [], [], []
    for name, (off, chosen) in _raw(seen, run, counting, there).items():
        scale = scales.get(name, COARSEST)
        value = np.where(np.isnan(theirs[name]), np.inf, theirs[name] + grain(name))[chosen]
        residual.append(off / scale)
        slope.append(slopes[name][chosen] / value[:, None] / scale)
        request.append(np.flatnonzero(chosen))
    together = np.concatenate(residual)
    size = np.abs(together)
    weight = np.minimum(1.0, HUBER / np.maximum(size, 1e-12)) / TOGETHER
    return Misfit(
        residual=together, slope=np.concatenate(slope), request=np.concatenate(request), weight=weight,
        loss=robust_loss(together), counting=counting,
    )  # fmt: skip


def robust_loss(residual: Column) -> float:
    """Half the squares, of what is far off less."""
    size = np.abs(residual)
    return float(np.where(size <= HUBER, residual**2 / 2, HUBER * (size - HUBER / 2)).sum() / TOGETHER)
