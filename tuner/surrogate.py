"""A Gaussian process over the points of a space, and where it expects the most improvement. numpy only.

Every ordered knob is one coordinate, the place of its level between 0 and 1 (a cap of 0, no cap, stands last); any other knob is
one coordinate a level. A knob that is not active stands at the middle. The kernel is Matern 5/2 with a length per coordinate;
lengths, noise and scale maximise the marginal likelihood under a wide prior for lengths of about half a knob's range (a knob may
not matter at all), by a random search that starts at the last best. Optuna's own Gaussian process needs torch and scipy, and
takes 100 ms a trial; this one takes a few.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tuner.space import Space

__all__ = ["Surrogate", "encode", "expected_improvement"]

Floats = npt.NDArray[np.float64]
TRIES = 40
JITTER = 1e-8
LENGTH, SPREAD = math.log(0.5), 1.2
"""Prior of the log of a length: mean and standard deviation."""
NOISE, NOISE_SPREAD = math.log(1e-5), 1.5


def encode(space: Space, points: Sequence[Mapping[str, Any]]) -> Floats:
    """Coordinates of points, float64 ``[n, d]``."""
    columns: list[list[float]] = []
    for knob in space.knobs:
        last = max(len(knob.levels) - 1, 1)
        at = [knob.index(point[knob.name]) if knob.name in point else None for point in points]
        if knob.ordered:
            columns.append([0.5 if i is None else i / last for i in at])
        else:
            columns += [[0.0 if i is None else 0.7 * (i == level) for i in at] for level in range(len(knob.levels))]
    return np.array(columns, np.float64).T.reshape(len(points), -1)


@dataclass(slots=True)
class Surrogate:
    """Fitted to values ``y`` at ``x``; ``parameters``: logs of the lengths, then of the noise."""

    x: Floats
    parameters: Floats
    mean: float
    scale: float
    factor: Floats
    weights: Floats

    @classmethod
    def fit(cls, x: Floats, y: Floats, rng: np.random.Generator, start: Floats | None = None) -> Surrogate:
        """``x`` ``[n, d]``, ``y`` ``[n]``, larger is better; n of at least 2."""
        mean, scale = float(y.mean()), float(y.std()) or 1.0
        z = (y - mean) / scale
        best = np.full(x.shape[1] + 1, LENGTH)
        best[-1] = NOISE
        if start is not None and len(start) == len(best):
            best = start
        score, factor, weights = _likelihood(x, z, best)
        for attempt in range(TRIES):
            if attempt < TRIES // 2:  # elsewhere in some of them, as the prior has it
                afresh = np.append(rng.normal(LENGTH, SPREAD, len(best) - 1), rng.normal(NOISE, NOISE_SPREAD))
                tried = np.where(rng.random(len(best)) < 0.5, afresh, best)
            else:
                tried = best + rng.normal(0, 0.3, len(best)) * (rng.random(len(best)) < 0.6)
            found = _likelihood(x, z, tried)
            if found[0] > score:
                (score, factor, weights), best = found, tried
        return cls(x, best, mean, scale, factor, weights)

    def predict(self, points: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the value at ``points`` ``[m, d]``."""
        cross = _kernel(points, self.x, self.parameters)
        inner = np.linalg.solve(self.factor, cross.T)
        spread = np.sqrt(np.maximum(1.0 - (inner**2).sum(axis=0), 1e-12))
        return self.mean + self.scale * (cross @ self.weights), self.scale * spread


def _kernel(a: Floats, b: Floats, parameters: Floats) -> Floats:
    lengths = np.exp(parameters[:-1])
    p, q = a / lengths, b / lengths
    square = np.maximum((p**2).sum(1)[:, None] + (q**2).sum(1)[None, :] - 2 * p @ q.T, 0.0)
    root = np.sqrt(5 * square)
    return np.asarray((1 + root + root**2 / 3) * np.exp(-root), np.float64)


def _likelihood(x: Floats, z: Floats, parameters: Floats) -> tuple[float, Floats, Floats]:
    """Log marginal likelihood with the prior, the Cholesky factor, and the weights of the data."""
    matrix = _kernel(x, x, parameters)
    matrix[np.diag_indices(len(x))] += math.exp(min(parameters[-1], 0.0)) + JITTER
    try:
        factor = np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return -math.inf, matrix, z
    half = np.linalg.solve(factor, z)
    weights = np.linalg.solve(factor.T, half)
    prior = (((parameters[:-1] - LENGTH) / SPREAD) ** 2).sum() + ((parameters[-1] - NOISE) / NOISE_SPREAD) ** 2
    score = -0.5 * float(half @ half) - float(np.log(np.diag(factor)).sum()) - 0.5 * float(prior)
    return score, np.asarray(factor, np.float64), np.asarray(weights, np.float64)


def expected_improvement(mean: Floats, spread: Floats, best: float) -> Floats:
    """By how much a value of this mean and standard deviation is expected to lie above ``best``."""
    gap = (mean - best) / spread
    density = np.exp(-0.5 * gap**2) / math.sqrt(2 * math.pi)
    return np.asarray(spread * (gap * _normal_cdf(gap) + density), np.float64)


def _normal_cdf(value: Floats) -> Floats:
    """Abramowitz and Stegun 26.2.17, absolute error below 7.5e-8."""
    size = np.abs(value)
    t = 1 / (1 + 0.2316419 * size)
    poly = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    tail = np.exp(-0.5 * size**2) / math.sqrt(2 * math.pi) * poly
    return np.where(value >= 0, 1 - tail, tail)
