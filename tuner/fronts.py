"""Which point is tried next where several objectives are asked for: each proposal looks for a part of the front of its own.

Every objective has a Gaussian process. Random weights, drawn anew for every proposal, make one figure of all objectives: how
far a point is behind the best that is known of each, the weighted objective in which it is farthest behind counting most (an
augmented Chebyshev scalarisation). Tried is where the processes expect the most improvement of that figure, times how likely the
point keeps what must be kept. All else is as with one objective: no point is proposed that was tried, is being tried, is no
configuration, or is proved to come to what another came to, while others are left.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from tuner.proposing import Known, PointSampler, point_of_trial
from tuner.space import Point, Space
from tuner.surrogate import SAME, Floats, Surrogate, encode, normal_cdf

__all__ = ["FrontSampler"]

ALL = 0.05
"""Weight of the sum beside the largest distance: of two points as far in one objective the better in the others leads."""
AT_RANDOM = 2
"""Points that are tried at random after the first moves: a front lies across the space."""
DRAWN = 64
"""Draws by which an improvement is expected."""


class FrontSampler(PointSampler):
    """A ``PointSampler`` for several objectives, each to ``maximize`` or to ``minimize``."""

    def __init__(self, space: Space, seed: int, directions: Sequence[str], known: Known | None = None) -> None:
        super().__init__(space, seed, 1.0, known)
        self._signs = np.array([1.0 if direction == "maximize" else -1.0 for direction in directions])

    def heights(self, trials: Sequence[FrozenTrial]) -> list[tuple[FrozenTrial, float]]:
        """Below 0 by how far a trial is behind the best of each objective, in the sum."""
        done = [trial for trial in trials if trial.state == TrialState.COMPLETE and trial.values]
        if not done:
            return []
        behind = _behind(self._values(done), self._values(done))
        return [(trial, -float(far)) for trial, far in zip(done, behind.sum(axis=1), strict=True)]

    def at_first(self, moves: Sequence[Point]) -> int:
        """The current policy, the engine's defaults, the first moves, and some at random."""
        return 2 + len(moves) + AT_RANDOM

    def anywhere(self, codes: Floats, tried: Sequence[Point], rng: np.random.Generator) -> list[int]:
        """In any order."""
        found: list[int] = rng.permutation(len(codes)).tolist()
        return found

    def by_gain(self, trials: Sequence[FrozenTrial], values: Sequence[tuple[FrozenTrial, float]], codes: Floats,
                rng: np.random.Generator) -> list[int]:  # fmt: skip
        """Candidates by the improvement that is expected of them, of a figure with weights of this proposal's own."""
        done, space = [trial for trial, _ in values], self._space
        y = self._values(done)
        x = encode(space, [point_of_trial(trial) for trial in done])
        waiting = [point_of_trial(t) for t in trials if t.state == TrialState.RUNNING]
        others = encode(space, waiting) if waiting else None
        weights = rng.dirichlet(np.ones(y.shape[1]))
        told = [_expected(x, column, codes, others, rng) for column in y.T]
        mean, spread = (np.stack([each[at] for each in told], axis=-1) for at in (0, 1))
        drawn = mean + spread * rng.normal(size=(DRAWN, 1, y.shape[1]))
        broken = np.array([max([0.0, *trial.constraints.values()]) for trial in done])
        own = _figure(_behind(y, y), weights)
        best = float(np.where(broken > 0, -np.inf, own).max())
        gain = np.ones(len(codes)) if best == -np.inf else np.maximum(_figure(_behind(drawn, y), weights) - best, 0).mean(axis=0)
        if broken.any():
            over, unsure = _expected(x, np.array([max(t.constraints.values(), default=0.0) for t in done]), codes, others, rng)
            gain = gain * normal_cdf(-over / np.maximum(unsure, SAME))
        nearest = _figure(_behind(mean, y), weights)  # where nothing is expected any more
        found: list[int] = np.lexsort((-nearest, -gain)).tolist()
        return found

    def _values(self, done: Sequence[FrozenTrial]) -> Floats:
        """``[trials, objectives]``, more is better; what has no end, as a cost of nothing, is as bad as the worst that has."""
        values = self._signs * np.array([trial.values for trial in done], np.float64)
        known = np.where(np.isfinite(values), values, np.inf).min(axis=0)
        return np.where(np.isfinite(values), values, np.where(np.isfinite(known), known, 0.0))


def _behind(values: Floats, known: Floats) -> Floats:
    """How far ``values`` ``[..., objectives]`` are behind the best ``known`` of each, in terms of how far the worst is."""
    best, worst = known.max(axis=0), known.min(axis=0)
    return np.asarray((best - values) / np.where(best > worst, best - worst, 1.0), np.float64)


def _figure(behind: Floats, weights: Floats) -> Floats:
    """Of several objectives one, more is better."""
    weighted = weights * behind
    return np.asarray(-weighted.max(axis=-1) - ALL * weighted.sum(axis=-1), np.float64)


def _expected(x: Floats, y: Floats, codes: Floats, others: Floats | None, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Mean and standard deviation at ``codes`` of what came to ``y`` at ``x``; ``others`` are being tried."""
    if float(np.ptp(y)) <= SAME:
        return np.full(len(codes), y[0]), np.zeros(len(codes))
    model = Surrogate.fit(x, y, rng)
    return (model if others is None else model.with_expected(y, others)).predict(codes)
