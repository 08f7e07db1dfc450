"""What the observations can tell of each term, and what they cannot.

Errors of requests that were served together are not independent, so their spread is taken over blocks of consecutive arrivals.
A term that the observations do not move stays where it was expected, with the spread it was expected with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracekit.calibration.observed.search import Problem, Trial
from tracekit.calibration.observed.terms import LEAST, NAMES, OUTSIDE

__all__ = ["Told", "telling"]

BLOCKS = 20
CLEAR, HAZY, FELT = 0.025, 0.6, 0.01
"""A relative error up to which a term counts as identified; the share of its expected spread from which it counts as not; the
share of the device's time that a term must cause to be told from what a schedule that flips here or there does."""
BOUND_UP = 0.9
"""A correlation beyond which two terms can only be told together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """``spread``: standard deviation of the logarithm; ``expected``: before anything was observed. ``with_term``: the term that
    it can only be told together with, if any. ``share`` of the time of all iterations that it causes. ``absent``: no term of
    this fit, its value is 0."""

    name: str
    value: float
    spread: float
    expected: float
    with_term: str | None
    share: float
    on_bound: bool
    absent: bool = False

    @property
    def verdict(self) -> str:
        """``identified``, ``weak`` or ``not identified``; ``no term here``."""
        if self.absent:
            return "no term here"
        if self.on_bound:
            return "on its physical bound"
        felt = self.share >= FELT or self.name in ("knee", *OUTSIDE)
        if self.spread <= CLEAR and felt:
            return "identified"
        return "not identified" if self.spread >= HAZY * self.expected else "weak"

    @property
    def low(self) -> float:
        return self.value * float(np.exp(-2 * self.spread))

    @property
    def high(self) -> float:
        return self.value * float(np.exp(2 * self.spread))


def telling(problem: Problem, at: Trial) -> list[Told]:
    """One entry a term, in the order of ``NAMES``."""
    free = np.flatnonzero(problem.free)
    slope, weight = at.misfit.slope[:, free], at.misfit.weight
    pull = 1 / problem.expected.spread[free] ** 2
    normal = slope.T @ (slope * weight[:, None]) + np.diag(pull)
    inverse = np.linalg.inv(normal)
    covariance = inverse @ (_scatter(at, free) + np.diag(pull)) @ inverse
    spread = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(spread, spread)
    np.fill_diagonal(correlation, 0.0)
    shares = _shares(at)
    found = []
    for index, name in enumerate(NAMES):
        where = np.flatnonzero(free == index)
        if not len(where):
            found.append(_held(problem, at, index, shares[index]))
            continue
        own = int(where[0])
        most = int(np.abs(correlation[own]).argmax())
        partner = NAMES[free[most]] if abs(correlation[own, most]) > BOUND_UP else None
        found.append(
            Told(
                name=name, value=float(at.vector[index]), spread=min(float(spread[own]), float(problem.expected.spread[index])),
                expected=float(problem.expected.spread[index]), with_term=partner, share=shares[index],
                on_bound=bool(at.vector[index] <= problem.expected.least[index] * (1 + 1e-6)),
            )
        )  # fmt: skip
    return found


def _held(problem: Problem, at: Trial, index: int, share: float) -> Told:
    spread = float(problem.expected.spread[index])
    if at.vector[index] <= 2 * LEAST:  # a logarithm has no 0: this one stands for it
        return Told(name=NAMES[index], value=0.0, spread=0.0, expected=spread, with_term=None, share=0.0, on_bound=False,
                    absent=True)  # fmt: skip
    return Told(name=NAMES[index], value=float(at.vector[index]), spread=spread, expected=spread, with_term=None, share=share,
                on_bound=False)  # fmt: skip


def _scatter(at: Trial, free: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The covariance of the slope of the loss: sums within blocks of consecutive requests, taken to err independently."""
    score = at.misfit.slope[:, free] * (at.misfit.weight * at.misfit.residual)[:, None]
    own, place = np.unique(at.misfit.request, return_inverse=True)
    block = place * BLOCKS // max(len(own), 1)
    sums = np.zeros((BLOCKS, len(free)))
    np.add.at(sums, block, score)
    sums -= sums.mean(axis=0)
    found: npt.NDArray[np.float64] = sums.T @ sums * (BLOCKS / (BLOCKS - 1))
    return found


def _shares(at: Trial) -> list[float]:
    """Of the device's time over the whole replay."""
    run, (floor, knee, b, c, d, e) = at.run, (float(x) for x in at.vector[:6])
    skew = float(at.vector[NAMES.index("skew")])
    total = max(float(run.device.sum()), 1.0)
    computed = int(((run.tokens > 0) | (run.seqs > 0)).sum())
    beyond = float(np.maximum(run.tokens - knee, 0).sum())
    others = (v * float(x.sum()) for v, x in ((c, run.qk), (d, run.seqs), (e, run.kv)))
    parts = (floor * computed, 0.0, b * beyond, *others, 0.0, 0.0, skew * float(run.above.sum()))
    return [part / total for part in parts]
