"""Whether a trace's service changes over its time: what was observed against what is predicted, the earlier half and the later.

A profile is one engine's. Where the ratio of observed to predicted moves from one half to the other by more than it scatters, no
one profile fits both, however it is fitted; where figures miss in one half and the ratio stands still, who queued differs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracekit.metrics.verdict import UNFIT
from tracekit.trust.accuracy import Latencies, Mask, compared

__all__ = ["FIGURE", "Drift", "drift_of"]

Floats = npt.NDArray[np.float64]
SERVICE = {"tpot": "TPOT", "prefill": "TTFT less its wait", "ttft": "TTFT", "e2e": "E2E"}
"""What shows the engine's own speed, the plainest first; the last two have the queue in them."""
FIGURES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}
FEWEST, BLOCKS = 60, 5
"""Requests below which nothing is said, and blocks of consecutive ones in each half, whose medians tell the scatter."""
T_95 = 2.306
"""Student's t at 95 %, for twice five medians."""
SHOWS, FIGURE = 0.05, 0.15
"""A ratio that moves by more is drift. A figure that is off by more in one half alone is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """``moved``: the later half's median ratio of observed to predicted ``service`` over the earlier's, less 1; ``low`` to
    ``high`` with 95 % confidence. ``drifts``: by more than scatter and than 5 %. ``off``: observed over predicted less 1 in each
    half; where both are far off on one side, the profile is another engine's, whose ratio bends with the load: nothing is said.
    ``load``: how the predicted ``service`` itself moves, as no change of the engine makes it. ``figures``: those that miss in
    one half, with (earlier, later) error."""

    service: str
    moved: float
    low: float
    high: float
    drifts: bool
    load: float
    off: tuple[float, float]
    figures: dict[str, tuple[float, float]]

    @property
    def another(self) -> bool:
        """Whether the profile is of another engine throughout, as a verdict of "does not serve" says."""
        return _another(self.off)

    @property
    def words(self) -> str:
        """One line."""
        moved = f"observed over predicted {self.service} moves by {self.moved:+.1%} ({self.low:+.1%} to {self.high:+.1%})"
        if self.another:
            early, late = self.off
            return (f"drift: not told; observed {self.service} is {early:+.0%} off what is predicted in the earlier half and"
                    f" {late:+.0%} in the later one: so far off, the ratio moves with the load of the trace")  # fmt: skip
        missed = ", ".join(f"{name} {early:+.0%} and {late:+.0%}" for name, (early, late) in self.figures.items())
        named = f"; off in one half (earlier and later): {missed}" if missed else ""
        if self.drifts:
            load = f", or its load did (predicted {self.service} {self.load:+.0%}) in a way that the profile has no term for"
            return f"the trace drifts: from its earlier half to its later one {moved}: the engine changed{load}{named}"
        who = "; who queued is what differs, not how fast the engine was" if missed else ""
        return f"no drift: from the earlier half to the later one {moved}{named}{who}"


def drift_of(predicted: Latencies, observed: Latencies, counted: Mask) -> Drift | None:
    """Over the requests of ``counted``, halved by arrival. ``None``: too few of them have both sides."""
    for name in SERVICE:
        ours, theirs = _service(predicted, name), _service(observed, name)
        with np.errstate(invalid="ignore"):
            both = np.flatnonzero(counted & (ours > 0) & (theirs > 0))
        if len(both) >= FEWEST:
            break
    else:
        return None
    both = both[np.argsort(observed.arrival[both], kind="stable")]
    ratio = np.log(theirs[both] / ours[both])
    early, late = (np.array([np.median(part) for part in np.array_split(half, BLOCKS)]) for half in np.array_split(ratio, 2))
    moved, room = float(late.mean() - early.mean()), T_95 * math.sqrt((early.var(ddof=1) + late.var(ddof=1)) / BLOCKS)
    first, last = np.array_split(both, 2)
    off = math.expm1(float(early.mean())), math.expm1(float(late.mean()))
    return Drift(
        service=SERVICE[name], moved=math.expm1(moved), low=math.expm1(moved - room), high=math.expm1(moved + room),
        drifts=abs(math.expm1(moved)) > SHOWS and abs(moved) > room and not _another(off), off=off,
        load=float(np.median(ours[last]) / np.median(ours[first]) - 1), figures=_missed(predicted, observed, first, last),
    )  # fmt: skip


def _another(off: tuple[float, float]) -> bool:
    """As errors of what is predicted: beyond what any profile that serves is off, in both halves and on one side."""
    low, high = sorted(1 / (1 + each) - 1 for each in off)
    return low > UNFIT or high < -UNFIT


def _service(latencies: Latencies, name: str) -> Floats:
    return latencies.ttft - latencies.queue if name == "prefill" else latencies.metric(name)


def _missed(
    predicted: Latencies, observed: Latencies, early: npt.NDArray[np.intp], late: npt.NDArray[np.intp]
) -> dict[str, tuple[float, float]]:
    halves = []
    for rows in (early, late):
        part = np.zeros(len(observed.arrival), np.bool_)
        part[rows] = True
        halves.append(compared(predicted, observed, part))
    found = {}
    for name, words in FIGURES.items():
        first, last = (half[name] for half in halves)
        for point in ("mean", "p50", "p90"):
            pair = tuple(None if each is None else each["error"][point] for each in (first, last))
            if pair[0] is None or pair[1] is None:
                continue
            off = abs(pair[0]), abs(pair[1])
            if max(off) > FIGURE >= min(off):
                found[f"{words} {point.upper() if point[0] == 'p' else point}"] = (pair[0], pair[1])
    return found
