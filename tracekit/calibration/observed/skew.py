"""Whether the longest context of a batch costs more than its share: a time for it is held against latencies, and becomes a term
of the fit where they ask for one.

Attention of a batch can end with its longest sequence, so that an iteration takes longer than the sum of its contexts says.
First a time for each token that the longest context is above the mean is estimated beside the terms there are, to the time per
token of each request, with the schedule as it is. Near 0 says that the sum is enough on this trace: nothing is kept. A clear
number is a start: the fit goes on from there with ``skew`` free, and keeps it where a replay with it is nearer by more than its
own freedom is worth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tracekit.calibration.observed.observations import predictions
from tracekit.calibration.observed.replays import Replayed
from tracekit.calibration.observed.search import LONG, Problem, Trial, descend, refine
from tracekit.calibration.observed.sensitivity import sensitivities
from tracekit.calibration.observed.terms import NAMES, OUTSIDE, UNKNOWN_SPREAD, Vector, delivered_of

__all__ = ["Skew", "above_mean", "skew_of", "with_skew"]

Column = npt.NDArray[np.float64]
BLOCKS = 20
FEWEST = 3 * BLOCKS
CLEAR_SHARE = 0.01
"""What a term must cause of the time to be worth having."""

NEARER = 0.05
"""By what share the loss has to fall for the term to be kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skew:
    """ns an iteration for each token that its longest context is above the mean: the estimate, its range (two standard errors),
    and what share of the device's time the estimate and the upper end would be. ``requests`` it was made from."""

    value_ns: float
    low_ns: float
    high_ns: float
    share: float
    most: float
    requests: int

    @property
    def matters(self) -> bool:
        """Whether the latencies ask for such a term."""
        return self.low_ns > 0 and self.share >= CLEAR_SHARE

    @property
    def words(self) -> str:
        room = f"{max(self.low_ns, 0.0):,.4g} to {self.high_ns:,.4g} ns a token that the longest context is above the mean"
        if self.matters:
            shows = f"skew of context lengths shows ({room}, {self.share:.1%} of the time) and replays with it are no nearer"
            return f"{shows}: it is no term, and batches of other lengths are predicted worse"
        if self.high_ns <= 0:
            return "skew of context lengths is no term: that the longest context costs more than its share does not show"
        return f"skew of context lengths is no term, and none is asked for: {room}, at most {max(self.most, 0):.1%} of the time"


def above_mean(run: Replayed, prompt: Column) -> Column:
    """Tokens, by iteration, that the longest decoding context is above the mean one; 0 where nobody decodes. A request counts
    from its first to its last token, a token an iteration."""
    longest = np.zeros(len(run.start))
    begin = np.searchsorted(run.start, run.first, side="left")
    end = np.searchsorted(run.end, run.last, side="right")
    for who in np.flatnonzero((run.last > run.first) & (run.first >= 0)).tolist():
        low, high = int(begin[who]), int(end[who])
        made = np.minimum(np.arange(1, high - low + 1), run.output[who])
        np.maximum(longest[low:high], prompt[who] + made, out=longest[low:high])
    mean = run.kv / np.maximum(run.seqs, 1)
    return np.where(run.seqs > 1, np.maximum(longest - mean, 0.0), 0.0)


def skew_of(problem: Problem, at: Trial) -> Skew | None:
    """``None``: too few requests have a time per token to say anything."""
    run, seen, counting = at.run, problem.seen, at.misfit.counting
    theirs = predictions(run, counting, delivered_of(at.vector))["tpot"]
    chosen = np.flatnonzero(seen.used & ~np.isnan(seen.tpot) & ~np.isnan(theirs) & (seen.tpot > 0) & (theirs > 0))
    if len(chosen) < FEWEST:
        return None
    above = above_mean(run, problem.replayer.source.prompt_tokens.astype(np.float64))
    sums = np.concatenate(([0.0], np.cumsum(above)))
    ends = [np.searchsorted(run.end, moment, side="right") for moment in (run.first, run.last)]
    column = (sums[ends[1]] - sums[ends[0]]) / np.maximum(run.output - 1, 1) / np.maximum(theirs, 1.0)
    slopes = sensitivities(run, at.vector, counting, asynchronous=problem.asynchronous)["tpot"] / np.maximum(theirs, 1.0)[:, None]
    free = problem.free & (np.abs(slopes[chosen]).max(axis=0) > 0)
    free[NAMES.index("skew")] = False
    rows = np.concatenate((slopes[chosen][:, free], column[chosen, None]), axis=1)
    residual = np.log(seen.tpot[chosen] / theirs[chosen])
    noise = max(1.4826 * float(np.median(np.abs(residual))), 1e-4)
    spread = problem.expected.spread[free]
    value = _solved(rows, residual, noise, spread)
    block = np.arange(len(chosen)) * BLOCKS // len(chosen)
    without = np.array([_solved(rows[block != k], residual[block != k], noise, spread) for k in range(BLOCKS)])
    error = float(np.sqrt((BLOCKS - 1) / BLOCKS * ((without - without.mean()) ** 2).sum()))
    total, work = max(float(run.device.sum()), 1.0), float(above.sum())
    return Skew(value_ns=value, low_ns=value - 2 * error, high_ns=value + 2 * error, share=value * work / total,
                most=(value + 2 * error) * work / total, requests=len(chosen))  # fmt: skip


def with_skew(problem: Problem, at: Trial, say: Callable[[str], None] | None = None) -> tuple[Problem, Trial, Skew | None]:
    """``at``, the end of a fit, or the end of one that goes on from there with ``skew`` free; and what the latencies ask for at
    ``at``. Unchanged where skew is a term already, or its profile's, or where nothing is asked for."""
    place = NAMES.index("skew")
    if problem.free[place] or len(at.run.start) > LONG:
        return problem, at, None if problem.free[place] else skew_of(problem, at)
    skew = skew_of(problem, at)
    if skew is None or not skew.matters:
        return problem, at, skew
    expected, free = problem.expected, problem.free.copy()
    centre, spread = expected.centre.copy(), expected.spread.copy()
    centre[place], spread[place], free[place] = skew.value_ns, UNKNOWN_SPREAD, True
    tried = replace(problem, expected=replace(expected, centre=centre, spread=spread), free=free)
    if say is not None:
        say(f"skew of context lengths: from {skew.value_ns:,.1f} ns a token")
    ends = []
    for start in _starts(at.vector, centre):
        tried.scales = dict(problem.scales)
        end = descend(tried, start, rounds=20, near=8, told=say)
        tried.scales = dict(problem.scales)
        ends.append(tried.judged(end.vector, end.run))
    found = refine(tried, min(ends, key=lambda each: each.loss), rounds=2, told=say)
    before = problem.judged(at.vector, at.run)
    if found.misfit.loss >= before.misfit.loss * (1 - NEARER):
        return problem, at, skew
    return tried, tried.rescaled(found), skew


def _starts(fitted: Vector, centre: Vector) -> list[Vector]:
    """Where the search goes on: decodes stood in for the term as far as they could, and have to come back from there."""
    decodes = [NAMES.index("d"), NAMES.index("e")]
    near, eased = fitted.copy(), fitted.copy()
    eased[decodes] = centre[decodes]
    starts = [near, eased, centre.copy()]
    for each in starts:
        each[NAMES.index("skew")] = centre[NAMES.index("skew")]
        each[[NAMES.index(name) for name in OUTSIDE]] = fitted[[NAMES.index(name) for name in OUTSIDE]]
    return starts


def _solved(rows: Column, residual: Column, noise: float, spread: Column) -> float:
    """The last coefficient of a robust least-squares fit; the others are held to about where they are, as far as they were
    expected there."""
    largest = np.abs(rows).max(axis=0)
    scale = np.where(largest > 0, largest, 1.0)  # what never happened in the trace asks for nothing
    scaled = rows / scale
    pull = np.concatenate(((noise / (spread * scale[:-1])) ** 2, [0.0]))
    weight = np.ones(len(residual))
    found = np.zeros(rows.shape[1])
    for _ in range(10):
        normal = scaled.T @ (scaled * weight[:, None]) + np.diag(pull) + 1e-12 * np.eye(len(pull))
        found = np.linalg.solve(normal, scaled.T @ (weight * residual))
        off = np.abs(residual - scaled @ found) / noise
        weight = np.minimum(1.0, 1.5 / np.maximum(off, 1e-12))
    return float(found[-1] / scale[-1])
