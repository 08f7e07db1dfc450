"""Two runs of the same requests, side by side: the comparison's verdicts as text, and pairs of latencies."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dashboards.queries import RunBook
from tracekit.comparison.figures import compare_figures
from tracekit.comparison.pairing import load_pair
from tracekit.comparison.report import build_comparison
from tracekit.errors import UsageError
from tracekit.experiments.conclusion import interval_text
from tracekit.experiments.measures import MEASURES

__all__ = ["Beside", "Figure", "beside"]

_VALUES = {"ttft": "ttft_ns", "tpot": "tpot_ns", "gap": "max_gap_ns", "e2e": "e2e_ns"}


class Figure(NamedTuple):
    """One measure as text: both sides, the change with its interval, and better / worse / within noise / cannot tell."""

    label: str
    before: str
    after: str
    change: str
    verdict: str
    n: int


class Beside(NamedTuple):
    """``document``: ``tracekit.comparison/1``. ``before``, ``after``: a latency in seconds, of requests that have both."""

    document: dict[str, Any]
    figures: tuple[Figure, ...]
    requests: npt.NDArray[np.int64]
    before: npt.NDArray[np.float64]
    after: npt.NDArray[np.float64]


def beside(book: RunBook, one: str, other: str, metric: str) -> Beside:
    """Compare two recorded runs. Errors: ``UsageError``, ``LockedError``; ``NotComparableError`` with the reason."""
    rows = [book.recorded(ref) for ref in (one, other)]
    if rows[0] is None or rows[1] is None:
        raise UsageError("a run under way cannot be compared: choose two that have been committed")
    numbers = [str(row["run"]) for row in rows if row is not None]

    def make() -> tuple[Any, dict[str, Any], tuple[Figure, ...]]:
        pair = load_pair(book.store, *numbers)
        figures = []
        for each in compare_figures(pair)[0]:
            measure, interval = MEASURES[each.measure], each.interval
            one_said, other_said = measure.text(interval.base), measure.text(interval.level)
            change = interval_text(interval, each.measure)
            figures.append(Figure(measure.label, one_said, other_said, change, each.verdict, each.requests))
        return pair, build_comparison(pair), tuple(figures)

    pair, document, figures = book.remember(f"beside {' '.join(numbers)}", make)
    before, after = (side.values[_VALUES[metric]] / 1e9 for side in (pair.base, pair.other))
    there = ~np.isnan(before) & ~np.isnan(after)
    return Beside(document, figures, pair.request[there], before[there], after[there])
