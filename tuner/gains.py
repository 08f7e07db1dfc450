"""The gain of a policy over the current one on windows that were not searched, and what new windows may show of it.

The interval is a prediction: where the gain over as many *new* windows of such traffic lies with 90 % probability, not where the
mean of these would settle. It is an interval of the logarithm of after / before: a share that few windows meet is off by a factor
rather than by so many points, and as often too high as too low.

Three things make it as narrow as so few windows allow. What the current policy meets was not chosen by the search, so that where
the windows searched lie among these they say as much about it as these do; of the new policy, which was chosen there, they say
how windows differ and no more. And what a window meets after goes with what it meets before, by a slope ``b``: both are told
from all windows, each side around its own mean. With u and v the relative deviations of after and before, n windows held out of N
and t with N - 2 degrees of freedom (n - 1 without any searched)::

    log(after / before) + (b - 1) log(before of all / before)  +-  t sqrt(2 / n var(u - b v) + (1 / N + 1 / n) (b - 1)^2 var(v))

Whether there is a gain at all is judged by the interval of the mean on the windows held out alone
(``tracekit.experiments.intervals``), which is one of differences; where that cannot tell, and new windows would still all but
surely show one (the prediction excludes none), there is one: what is predicted and what is concluded cannot contradict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.experiments.intervals import Verdict, judge, paired_interval, t_quantile
from tuner.cells import Result

__all__ = ["PREDICTED", "Gain", "gain_of"]

PREDICTED = 0.90
"""How probable it is that new windows show a gain inside the interval."""
MOST = 50.0
"""Logarithm of what no gain is above: two windows that have nothing in common tell of none."""
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """From ``base`` to ``level`` (requests/s that met their SLO), relative: 0.1 is 10 %.

    ``low`` and ``high``: the prediction interval, ``None`` with fewer than two windows or where one of both met nothing.
    ``estimate`` is ``None`` where the base met nothing. ``verdict``: of the mean, or of the prediction where the mean's interval
    cannot tell.
    """

    n: int
    requests: int
    base: float
    level: float
    base_attainment: float
    level_attainment: float
    estimate: float | None
    low: float | None
    high: float | None
    verdict: Verdict

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def gain_of(base: Sequence[Result], level: Sequence[Result],
            searched: tuple[Sequence[Result], Sequence[Result]] | None = None) -> Gain:  # fmt: skip
    """The gain between results of the same windows. ``searched``: results of both on windows that lie among these and were
    searched; they make the interval narrower, and nothing else of the gain rests on them but the verdict, where it rests on the
    interval."""
    n = len(base)
    before, after = _rates(base), _rates(level)
    requests = sum(result["n"] for result in base)
    mean = float(before.mean())
    estimate = float((after - before).mean()) / mean if mean > 0 else None
    low = high = None
    if n >= 2 and mean > 0 and after.any():
        seen = None if searched is None or not searched[0] else (_rates(searched[0]), _rates(searched[1]))
        low, high = _predicted(before, after, seen)
    return Gain(
        n=n, requests=requests, base=mean, level=float(after.mean()),
        base_attainment=sum(r["met"] for r in base) / max(requests, 1),
        level_attainment=sum(r["met"] for r in level) / max(requests, 1), estimate=estimate, low=low, high=high,
        verdict=_verdict(judge(paired_interval(before, after, "difference"), "high"), estimate, low, high),
    )  # fmt: skip


def _verdict(of_mean: Verdict, estimate: float | None, low: float | None, high: float | None) -> Verdict:
    """Of the mean of the differences, and where that tells nothing of the interval; where the interval says the opposite of the
    estimate beside it, or of the mean, neither is told."""
    if estimate is None or low is None or high is None:
        return of_mean
    if of_mean == "within noise":
        return "better" if low > 0 and estimate > 0 else "worse" if high < 0 and estimate < 0 else of_mean
    opposite = (of_mean == "better" and high < 0) or (of_mean == "worse" and low > 0)
    return "within noise" if opposite else of_mean


def _rates(results: Sequence[Result]) -> Floats:
    """Requests per second that met their SLO, by window."""
    return np.array([result["met"] / result["window_s"] for result in results], np.float64)


def _predicted(before: Floats, after: Floats, seen: tuple[Floats, Floats] | None) -> tuple[float, float]:
    """Ends of the interval. ``seen``: before and after on the windows searched."""
    sides = [(before, after), *([] if seen is None else [seen])]
    if all((one == other).all() for one, other in sides):
        return 0.0, 0.0  # what changes nothing anywhere has nothing to vary
    mean = float(np.concatenate([b for b, _ in sides]).mean())
    v = np.concatenate([(b - b.mean()) / mean for b, _ in sides])
    u = np.concatenate([(a - a.mean()) / (a.mean() or 1.0) for _, a in sides])
    n, whole, freedom = len(before), len(v), len(v) - len(sides)
    slope = float(u @ v / (v @ v)) if v.any() else 0.0
    left = u - slope * v
    own, others = float(left @ left) / freedom, float(v @ v) / freedom
    half = t_quantile(freedom, PREDICTED) * math.sqrt(2 / n * own + (1 / whole + 1 / n) * (slope - 1) ** 2 * others)
    middle = math.log(after.mean() / before.mean()) + (slope - 1) * math.log(mean / before.mean())
    return math.expm1(min(middle - half, MOST)), math.expm1(min(middle + half, MOST))
