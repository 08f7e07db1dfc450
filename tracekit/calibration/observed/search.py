"""The search for the coefficients: steps of least squares on the schedule as it is, then on what replays say of it.

A first guess is improved by Gauss-Newton steps whose slopes take the schedule for given, a replay a step. Near the end the
slopes are taken from pairs of replays, which also see the schedule move: near saturation a step of 1 % in an iteration's time is
several in the time to first token, through the queue.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from tracekit.calibration.observed.misfit import COARSEST, Misfit, Scales, misfit, robust_loss, scales_of
from tracekit.calibration.observed.observations import COUNTING, Observations
from tracekit.calibration.observed.replays import Replayed, Replayer
from tracekit.calibration.observed.terms import NAMES, OUTSIDE, Expected, Vector, delivered_of, latency_of

__all__ = ["LONG", "Problem", "Trial", "descend", "promised", "refine", "step"]

Matrix = npt.NDArray[np.float64]
STRIDE = 0.5
"""No step is longer than this in any logarithm."""
LONG = 60_000
"""Iterations of a replay beyond which pairs of replays are too dear: the slopes on the schedule as it is have to do."""
NEAR, FAR = 0.015, 0.08
FIRST_SCALE = 0.04
"""Until a fit is near, its own misfit says nothing of the noise."""
RESCALED = 3
"""Each third round the noise is looked at again."""
STILL, LAST = 2e-3, 8
ENOUGH = 2e-3
"""A step that gains less than this share of the loss is the last."""


@dataclass(slots=True, kw_only=True)
class Trial:
    """A vector of terms, its replay, and how far that is from what was observed; ``loss`` with what was expected counted in."""

    vector: Vector
    run: Replayed
    misfit: Misfit
    loss: float


@dataclass(slots=True, kw_only=True)
class Problem:
    """What is fitted to what. ``free``: which terms move. ``counting`` ``None``: to be found out."""

    replayer: Replayer
    seen: Observations
    expected: Expected
    free: npt.NDArray[np.bool_]
    scales: Scales = field(default_factory=dict)
    counting: str | None = None

    @property
    def asynchronous(self) -> bool:
        return self.replayer.policy.scheduler.async_scheduling

    def trial(self, vector: Vector) -> Trial:
        """Replay and compare."""
        vector = self.allowed(vector)
        run = self.replayer.run(latency_of(vector, self.expected.host))
        if not self.scales:
            ways = [scales_of(self.seen, run, way, delivered_of(vector)) for way in COUNTING]
            least = min(ways, key=lambda each: sum(each.values()))
            self.scales = {name: min(scale, FIRST_SCALE) for name, scale in least.items()}
        return self.judged(vector, run)

    def judged(self, vector: Vector, run: Replayed) -> Trial:
        """A replay held against the observations, under the present scales."""
        found = misfit(self.seen, run, vector, self.scales, self.counting, asynchronous=self.asynchronous)
        return Trial(vector=vector, run=run, misfit=found, loss=found.loss + self.unexpected(vector))

    def unexpected(self, vector: Vector) -> float:
        """What the loss has for a vector that is not the expected one."""
        away = (np.log(vector / self.expected.centre) / self.expected.spread)[self.free]
        return float((away**2).sum()) / 2

    def rescaled(self, at: Trial) -> Trial:
        """The scales as they are at ``at``, which is judged again."""
        self.counting = at.misfit.counting
        self.scales = scales_of(self.seen, at.run, self.counting, delivered_of(at.vector))
        return self.judged(at.vector, at.run)

    def allowed(self, vector: Vector) -> Vector:
        """The nearest vector that physics allows, with ``a`` not below 0."""
        vector = np.maximum(vector, self.expected.least)
        vector[1] = min(vector[1], vector[0] / vector[2])
        return vector


def step(problem: Problem, at: Trial, slope: Matrix, damping: float) -> Vector:
    """The vector that least squares go to from ``at``. Terms that would fall below what physics allows stay on that bound."""
    expected, weight = problem.expected, at.misfit.weight
    held = ~problem.free
    move = np.zeros(len(NAMES))
    for _ in range(len(NAMES)):
        loose = np.flatnonzero(~held)
        if not len(loose):
            break
        part = slope[:, loose]
        normal = part.T @ (part * weight[:, None])
        right = part.T @ (weight * at.misfit.residual)
        pull = 1 / expected.spread[loose] ** 2
        normal[np.diag_indices(len(loose))] += pull + damping * np.diag(normal)
        right += pull * np.log(at.vector[loose] / expected.centre[loose])
        move[:] = 0.0
        move[loose] = -np.linalg.solve(normal, right)
        below = (at.vector * np.exp(move) < expected.least) & ~held
        below &= at.vector <= expected.least * (1 + 1e-9)
        if not below.any():
            break
        held = held | below
    longest = float(np.abs(move).max())
    return problem.allowed(at.vector * np.exp(move * min(1.0, STRIDE / longest if longest else 1.0)))


def promised(problem: Problem, at: Trial) -> float:
    """The loss that a step from ``at`` would leave if the schedule stayed as it is, or the present one: no replay is needed to
    see that there is nothing to hope for."""
    vector = step(problem, at, at.misfit.slope, 0.01)
    moved = at.misfit.residual + at.misfit.slope @ np.log(vector / at.vector)
    return min(at.loss, robust_loss(moved) + problem.unexpected(vector))


def _improved(problem: Problem, at: Trial, slope: Matrix, damping: float, tries: int) -> Trial | None:
    """A trial that is better than ``at``, along a step that is shortened while it is not; ``None``: no such."""
    for attempt in range(tries):
        tried = problem.trial(step(problem, at, slope, damping * 8.0**attempt if attempt else damping))
        if tried.loss < at.loss:
            return tried
    return None


Told = Callable[[str], None]


def descend(problem: Problem, vector: Vector, rounds: int = 16, near: int = 0, told: Told | None = None) -> Trial:
    """From ``vector``, by slopes that take the schedule for given; every step is taken, since the loss is rugged where the slopes
    are not: a schedule that flips costs more than a step gains. The last trials are held against each other at the end.

    For the first ``near`` rounds only what a request lived through itself counts, from being scheduled to its last token: where
    the queue puts it is a question of the whole schedule.
    """
    at = problem.trial(vector)
    loose = {"ttft", "e2e"} if "prefill" in problem.scales else set()
    tried = [at]
    for turn in range(rounds):
        if turn % RESCALED == RESCALED - 1:
            at = problem.rescaled(at)
        if turn < near:
            problem.scales |= dict.fromkeys(loose & problem.scales.keys(), COARSEST)
            at = problem.judged(at.vector, at.run)
        before, at = at, problem.trial(step(problem, at, at.misfit.slope, 0.01))
        tried.append(at)
        if told is not None:
            told(f"loss {at.loss:.1f}")
        if turn >= near + RESCALED and float(np.abs(np.log(at.vector / before.vector))[problem.free].max()) < STILL:
            break
    problem.rescaled(at)
    return min((problem.judged(each.vector, each.run) for each in tried[-LAST:]), key=lambda each: each.loss)


def refine(problem: Problem, at: Trial, rounds: int = 4, told: Told | None = None) -> Trial:
    """From ``at``, by slopes from pairs of replays; only steps that gain are taken."""
    reach = 0.04
    for _ in range(rounds):
        found = _improved(problem, at, _secants(problem, at, reach), 0.05, 4)
        if found is None:
            if reach <= NEAR:
                break
            reach /= 2
            continue
        gained = at.loss - found.loss
        at = found
        if told is not None:
            told(f"loss {at.loss:.1f}")
        if gained < ENOUGH * at.loss:
            break
    return at


def _secants(problem: Problem, at: Trial, reach: float) -> Matrix:
    """Slopes over the whole stretch of ``reach`` to both sides. What hardly matters is moved further, to be seen at all."""
    slope = at.misfit.slope.copy()
    size = np.sqrt((slope**2 * at.misfit.weight[:, None]).sum(axis=0))
    largest = float(size.max())
    for term in np.flatnonzero(problem.free):
        far = float(np.clip(reach * largest / max(float(size[term]), 1e-9), reach, max(FAR, reach)))
        sides = []
        for sign in (1.0, -1.0):
            vector = at.vector.copy()
            vector[term] *= np.exp(sign * far)
            if NAMES[term] in OUTSIDE:
                sides.append((float(np.log(vector[term])), problem.judged(vector, at.run)))
            else:
                tried = problem.trial(vector)
                sides.append((float(np.log(tried.vector[term])), tried))
        (high, up), (low, down) = sides
        if high - low > 1e-6 and len(up.misfit.residual) == len(down.misfit.residual):
            slope[:, term] = (up.misfit.residual - down.misfit.residual) / (high - low)
    return slope


def fixed(problem: Problem, names: tuple[str, ...]) -> Problem:
    """The same with some terms held."""
    free = problem.free.copy()
    free[[NAMES.index(name) for name in names]] = False
    return replace(problem, free=free)
