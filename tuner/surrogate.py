"""A Gaussian process over the points of a space, and where it expects the most improvement. numpy only.

Every ordered knob is one coordinate, the place of its level between 0 and 1; any other knob is one coordinate a level. A knob
that is not active stands at the middle. The cap on a prefill chunk stands where it takes effect: no chunk is larger than the
token budget, so that no cap (0) and any cap above the budget are the budget. The kernel is Matern 5/2 with a length per
coordinate; lengths, noise and scale maximise the marginal likelihood under a wide prior for lengths of about half a knob's
range (a knob may not matter at all), by a random search from the prior, a batch of tries at a time: nothing is carried from one
trial to the next, or a search that was killed would go on otherwise. Optuna's own Gaussian process needs torch and scipy, and
takes 100 ms a trial; this one takes a few.

Attainment is a product: what shares of the requests meet each part of their SLO, times what is left by their not being
independent (``Product``). Each share follows the knobs more simply than the product, which has its best where they cross.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tuner.space import BUDGET, CHUNK, Space

__all__ = ["SAME", "Floats", "Product", "Surrogate", "encode", "expected_improvement", "normal_cdf"]

Floats = npt.NDArray[np.float64]
BATCH, AFRESH, NEAR = 10, 2, 3
"""Tries at a time, and batches of them: with some parameters as the prior has them, then all near the best."""
JITTER = 1e-8
PIECE = 200_000
"""Multiplications that OpenBLAS leaves to one thread."""
CORNER = 1e20
"""Above the largest ``z' K^-1 z``: that of thousands of values whose kernel is singular but for ``JITTER``."""
SAME = 1e-9
"""Values closer than this are one value."""
LENGTH, SPREAD = math.log(0.5), 1.2
"""Prior of the log of a length: mean and standard deviation."""
NOISE, NOISE_SPREAD = math.log(1e-5), 1.5


def encode(space: Space, points: Sequence[Mapping[str, Any]]) -> Floats:
    """Coordinates of points, float64 ``[n, d]``."""
    columns: list[list[float]] = []
    for knob in space.knobs:
        last = max(len(knob.levels) - 1, 1)
        if knob.name == CHUNK and BUDGET in space.names and knob.ordered:
            columns.append(_effective_caps(space, points))
            continue
        at = [knob.index(point[knob.name]) if knob.name in point else None for point in points]
        if knob.ordered:
            columns.append([0.5 if i is None else i / last for i in at])
        else:
            columns += [[0.0 if i is None else 0.7 * (i == level) for i in at] for level in range(len(knob.levels))]
    return np.array(columns, np.float64).T.reshape(len(points), -1)


def _effective_caps(space: Space, points: Sequence[Mapping[str, Any]]) -> list[float]:
    """Where the largest possible chunk lies among the levels of the cap, by its logarithm; the largest budget is the last."""
    caps = sorted({level for level in space.knob(CHUNK).levels if level > 0})
    top = max(space.knob(BUDGET).levels)
    marks = [*caps, top] if not caps or top > caps[-1] else caps
    at = np.linspace(0.0, 1.0, len(marks))
    largest = [min(point.get(CHUNK, 0) or math.inf, point.get(BUDGET, top)) for point in points]
    found: list[float] = np.interp(np.log(largest), np.log(marks), at).tolist()
    return found


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
    def fit(cls, x: Floats, y: Floats, rng: np.random.Generator) -> Surrogate:
        """``x`` ``[n, d]``, ``y`` ``[n]``, larger is better; n of at least 2."""
        best = np.full(x.shape[1] + 1, LENGTH)
        best[-1] = NOISE
        z = (y - y.mean()) / (float(y.std()) or 1.0)
        below = np.tril_indices(len(x))
        squares = (x.T[:, below[0]] - x.T[:, below[1]]) ** 2
        score = -math.inf
        for batch in range(AFRESH + NEAR):
            if batch < AFRESH:  # elsewhere in some of them, as the prior has it
                noise = rng.normal(NOISE, NOISE_SPREAD, (BATCH, 1))
                afresh = np.hstack([rng.normal(LENGTH, SPREAD, (BATCH, len(best) - 1)), noise])
                tried = np.where(rng.random((BATCH, len(best))) < 0.5, afresh, best)
            else:
                tried = best + rng.normal(0, 0.3, (BATCH, len(best))) * (rng.random((BATCH, len(best))) < 0.6)
            if not batch:
                tried = np.vstack([best, tried])
            found = _likelihoods(squares, below, z, tried)
            first = int(found.argmax())
            if found[first] > score:
                score, best = float(found[first]), tried[first]
        return cls.given(x, y, best)

    @classmethod
    def given(cls, x: Floats, y: Floats, parameters: Floats) -> Surrogate:
        """With parameters that are known."""
        mean, scale = float(y.mean()), float(y.std()) or 1.0
        matrix = _kernel(x, x, parameters)
        matrix[np.diag_indices(len(x))] += _noise(parameters)
        factor, weights = np.linalg.cholesky(matrix), np.linalg.solve(matrix, (y - mean) / scale)
        return cls(x, parameters, mean, scale, np.asarray(factor, np.float64), np.asarray(weights, np.float64))

    def left_out(self, y: Floats) -> Floats:
        """What is expected of each of its points, which came to ``y``, by all the others."""
        inverse = np.asarray(np.linalg.inv(self.factor), np.float64)
        return np.asarray(y - self.scale * self.weights / (inverse**2).sum(axis=0), np.float64)

    def with_expected(self, y: Floats, points: Floats) -> Surrogate:
        """Told ``y`` again, and that ``points`` came to what is expected of them."""
        return self.given(np.vstack([self.x, points]), np.concatenate([y, self.predict(points)[0]]), self.parameters)

    def predict(self, points: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the value at ``points`` ``[m, d]``."""
        cross = _kernel(points, self.x, self.parameters)
        inverse = np.asarray(np.linalg.inv(self.factor), np.float64)
        inner = _by_pieces(cross, inverse.T)  # few trials, many points: they are not solved for one by one
        spread = np.sqrt(np.maximum(1.0 - (inner**2).sum(axis=1), 1e-12))
        return self.mean + self.scale * (cross @ self.weights), self.scale * spread


def _by_pieces(rows: Floats, matrix: Floats) -> Floats:
    """``rows @ matrix``, so few rows at a time that no threads are started for it: these take more CPU than they save time."""
    step = max(PIECE // matrix.size, 1)
    whole = len(rows) // step * step
    pieces = rows[:whole].reshape(-1, step, len(matrix)) @ matrix
    return np.concatenate([pieces.reshape(whole, len(matrix.T)), rows[whole:] @ matrix])


def _kernel(a: Floats, b: Floats, parameters: Floats) -> Floats:
    lengths = np.exp(parameters[:-1])
    p, q = a / lengths, b / lengths
    square = np.maximum((p**2).sum(1)[:, None] + (q**2).sum(1)[None, :] - 2 * p @ q.T, 0.0)
    return _matern(np.sqrt(5 * square))


def _matern(root: Floats) -> Floats:
    """The kernel where ``root`` is the distance times the root of 5; ``root`` is lost."""
    kernel: Floats = root * root
    kernel /= 3
    kernel += root
    kernel += 1
    kernel *= np.exp(np.negative(root, out=root), out=root)
    return kernel


def _noise(parameters: Floats) -> float:
    return math.exp(min(parameters[-1], 0.0)) + JITTER


def _likelihoods(squares: Floats, below: tuple[Any, Any], z: Floats, tried: Floats) -> Floats:
    """Log marginal likelihood with the prior for each row of ``tried``. ``squares``: of differences, ``[d, pairs]``, of the pairs
    ``below`` the diagonal and on it: a Cholesky factor looks at no others. ``z`` stands below the matrix as one more row: what
    becomes of it there is the factor's inverse times ``z``, whatever is in the corner, as long as it is large enough."""
    n = len(z)
    matrices = np.zeros((len(tried), n + 1, n + 1))
    matrices[:, below[0], below[1]] = _matern(np.sqrt(np.exp(-2 * tried[:, :-1]) @ (5 * squares)))
    at = np.arange(n)
    matrices[:, at, at] += (np.exp(np.minimum(tried[:, -1], 0.0)) + JITTER)[:, None]
    matrices[:, n, :n] = z
    matrices[:, n, n] = CORNER
    try:
        factors = np.linalg.cholesky(matrices)
    except np.linalg.LinAlgError:  # one of them is singular to the last digit
        return np.full(len(tried), -math.inf) if len(tried) == 1 else np.concatenate(
            [_likelihoods(squares, below, z, each[None]) for each in tried])  # fmt: skip
    half = factors[:, n, :n]
    prior = (((tried[:, :-1] - LENGTH) / SPREAD) ** 2).sum(1) + ((tried[:, -1] - NOISE) / NOISE_SPREAD) ** 2
    found = -0.5 * (half**2).sum(1) - np.log(factors[:, at, at]).sum(1) - 0.5 * prior
    return np.asarray(found, np.float64)


class Product:
    """Of shares, each of which has a process of its own, and one of what their product leaves of the value."""

    def __init__(self, x: Floats, shares: Floats, y: Floats, rng: np.random.Generator) -> None:
        """``x`` ``[n, d]``, ``shares`` ``[n, k]``, ``y`` ``[n]`` a share too."""
        self._columns = [*shares.T, y - shares.prod(axis=1)]
        self._processes = [
            Surrogate.fit(x, column, rng) if np.ptp(column) > SAME else float(column[0]) for column in self._columns
        ]

    def expect(self, points: Floats) -> None:
        """``points`` are being tried: they count as what is expected of them."""
        self._processes = [each.with_expected(column, points) if isinstance(each, Surrogate) else each
                           for each, column in zip(self._processes, self._columns, strict=True)]  # fmt: skip

    def predict(self, points: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the value at ``points`` ``[m, d]``, the processes being independent."""
        mean, square = np.ones(len(points)), np.ones(len(points))
        for process in self._processes[:-1]:
            own, spread = _told(process, points)
            mean, square = mean * own, square * (own**2 + spread**2)
        rest, spread = _told(self._processes[-1], points)
        return mean + rest, np.sqrt(np.maximum(square - mean**2 + spread**2, 1e-14))


def _told(process: Surrogate | float, points: Floats) -> tuple[Floats, Floats]:
    if isinstance(process, Surrogate):
        return process.predict(points)
    return np.full(len(points), process), np.zeros(len(points))


def expected_improvement(mean: Floats, spread: Floats, best: float) -> Floats:
    """By how much a value of this mean and standard deviation is expected to lie above ``best``."""
    gap = (mean - best) / spread
    density = np.exp(-0.5 * gap**2) / math.sqrt(2 * math.pi)
    return np.asarray(spread * (gap * normal_cdf(gap) + density), np.float64)


def normal_cdf(value: Floats) -> Floats:
    """Abramowitz and Stegun 26.2.17, absolute error below 7.5e-8."""
    size = np.abs(value)
    t = 1 / (1 + 0.2316419 * size)
    poly = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    tail = np.exp(-0.5 * size**2) / math.sqrt(2 * math.pi) * poly
    return np.where(value >= 0, 1 - tail, tail)
