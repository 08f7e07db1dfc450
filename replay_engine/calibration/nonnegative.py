"""Least squares without negative coefficients, hardly moved by outliers."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import numpy.typing as npt

__all__ = ["huber_bound", "nonnegative", "reweighted", "robust"]

Matrix = npt.NDArray[np.float64]
HUBER = 1.5
"""Residuals beyond so many robust standard deviations count by their size, not its square."""
ROUNDS = 8


def nonnegative(matrix: Matrix, target: Matrix) -> Matrix:
    """``x >= 0`` that minimises ``|matrix @ x - target|``, for a handful of columns: where the free solution has
    negative ones every set of positive ones is tried, so that the answer is the optimum and not where an iteration stopped."""
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1.0
    scaled = matrix / scale
    gram, right = scaled.T @ scaled, scaled.T @ target
    columns, best, least = matrix.shape[1], np.zeros(matrix.shape[1]), 0.0
    free = _solved(gram, right)
    if free is not None and (free >= 0).all():
        only: Matrix = free / scale
        return only
    for count in range(1, columns + 1):
        for chosen in combinations(range(columns), count):
            at = list(chosen)
            found = _solved(gram[np.ix_(at, at)], right[at])
            if found is None:
                continue
            gain = -float(right[at] @ found)  # the squared error less that of x = 0
            if (found >= 0).all() and gain < least * (1 + 1e-9):
                best, least = np.zeros(columns), gain
                best[at] = found
    answer: Matrix = best / scale
    return answer


def _solved(gram: Matrix, right: Matrix) -> Matrix | None:
    try:
        found: Matrix = np.asarray(np.linalg.solve(gram, right), np.float64)
    except np.linalg.LinAlgError:
        return None
    return found


def robust(matrix: Matrix, target: Matrix, weight: Matrix) -> tuple[Matrix, float]:
    """``nonnegative`` of rows divided by their target (all > 0), so that errors are shares of it, reweighted until outliers
    hardly count. The coefficients, and the weighted mean of Huber's loss that is left."""
    rows = matrix / target[:, None]
    ones = np.ones(len(target))
    weights = weight.copy()
    found = np.zeros(matrix.shape[1])
    for _ in range(ROUNDS):
        root = np.sqrt(weights)
        before, found = found, nonnegative(rows * root[:, None], root)
        off = np.abs(rows @ found - ones)
        bound = _bound(off, weight)
        weights = weight * np.minimum(1.0, bound / np.maximum(off, 1e-12))
        if np.allclose(before, found, rtol=1e-4, atol=0):
            break
    return found, _loss(off, weight)


def huber_bound(share: Matrix, weight: Matrix) -> float:
    """Beyond which distance from 1 a row's ``share`` (predicted over measured) counts by its size, not its square."""
    return _bound(np.abs(share - 1), weight)


def reweighted(rows: Matrix, start: Matrix, weight: Matrix, bound: float) -> tuple[Matrix, float]:
    """One step of ``robust`` from ``start``, for very many rows that are divided by their targets already."""
    off = np.abs(rows @ start - 1)
    root = np.sqrt(weight * np.minimum(1.0, bound / np.maximum(off, 1e-12)))
    found = nonnegative(rows * root[:, None], root)
    return found, _loss(np.abs(rows @ found - 1), weight)


def _bound(off: Matrix, weight: Matrix) -> float:
    return HUBER * max(1.4826 * _median(off, weight), 1e-6)


def _loss(off: Matrix, weight: Matrix) -> float:
    # One fixed bound, so that the losses of different matrices can be held against each other.
    loss = np.where(off <= 0.05, off * off / 2, 0.05 * (off - 0.025))
    return float((loss * weight).sum() / weight.sum())


def _median(values: Matrix, weight: Matrix) -> float:
    if (weight == weight[0]).all():
        return float(np.partition(values, (len(values) - 1) // 2)[(len(values) - 1) // 2])
    order = np.argsort(values)
    total = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(total, total[-1] / 2)])
