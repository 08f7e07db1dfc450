"""The gain of a policy over the current one on windows that were not searched, and what new windows may show of it.

The interval is a prediction: where the gain over as many *new* windows of such traffic lies with 90 % probability, not where the
mean of these would settle. With n paired differences of goodput d it is mean(d) +- t(n - 1) s sqrt(1/n + 1/n), over the mean of
the current policy. Whether there is a gain at all is judged by the interval of the mean (``tracekit.experiments.intervals``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tracekit.experiments.intervals import Verdict, judge, paired_interval, t_quantile
from tuner.cells import Result

__all__ = ["PREDICTED", "Gain", "gain_of"]

PREDICTED = 0.90
"""How probable it is that new windows show a gain inside the interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """From ``base`` to ``level`` (requests/s that met their SLO), relative: 0.1 is 10 %.

    ``low`` and ``high``: the prediction interval, ``None`` with fewer than two windows. ``estimate`` is ``None`` where the base
    met nothing. ``verdict``: of the mean.
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


def gain_of(base: Sequence[Result], level: Sequence[Result]) -> Gain:
    """The gain between results of the same windows."""
    n = len(base)
    seconds = np.array([result["window_s"] for result in base])
    before = np.array([result["met"] for result in base]) / seconds
    after = np.array([result["met"] for result in level]) / seconds
    requests = sum(result["n"] for result in base)
    mean, difference = float(before.mean()), after - before
    estimate = float(difference.mean()) / mean if mean > 0 else None
    low = high = None
    if n >= 2 and estimate is not None:
        residual = after - (1 + estimate) * before
        half = t_quantile(n - 1, PREDICTED) * float(residual.std(ddof=1)) * math.sqrt(2 / n) / mean
        low, high = max(estimate - half, -1.0), estimate + half
    return Gain(
        n=n, requests=requests, base=mean, level=float(after.mean()),
        base_attainment=sum(r["met"] for r in base) / max(requests, 1),
        level_attainment=sum(r["met"] for r in level) / max(requests, 1), estimate=estimate, low=low, high=high,
        verdict=judge(paired_interval(before, after, "difference"), "high"),
    )  # fmt: skip
