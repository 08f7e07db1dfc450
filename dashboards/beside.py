"""Two runs of the same requests, side by side: the comparison's verdicts as text, and pairs of latencies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dashboards.queries import RunBook, RunView
from dashboards.time_sums import between
from dashboards.verdicts import Card
from tracekit.comparison.figures import compare_figures
from tracekit.comparison.pairing import Pair, load_pair, narrowed
from tracekit.comparison.report import build_comparison
from tracekit.errors import UsageError
from tracekit.experiments.conclusion import interval_text
from tracekit.experiments.measures import MEASURES

__all__ = ["Beside", "Figure", "Held", "beside", "findings_beside", "level_of"]

SAME = 0.01
"""Excess that differs by less than this share counts as the same."""
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
    """``document``: ``tracekit.comparison/1``, of the selected requests. ``before``, ``after``: a latency in seconds, of those
    that have both. ``classes``, ``tenants``: which may be selected. ``of``: the class of each request that has both (``None``:
    unknown); ``None`` where the trace has none."""

    document: dict[str, Any]
    figures: tuple[Figure, ...]
    requests: npt.NDArray[np.int64]
    before: npt.NDArray[np.float64]
    after: npt.NDArray[np.float64]
    classes: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()
    of: npt.NDArray[np.object_] | None = None


class Held(NamedTuple):
    """One finding in two verdicts: seconds in excess that it explains in each (``None``: it is not found there), in a word."""

    id: str
    before_s: float | None
    after_s: float | None
    word: str


def beside(book: RunBook, one: str, other: str, metric: str, cls: str | None = None, tenant: str | None = None) -> Beside:
    """Compare two recorded runs by the requests of a class and a tenant. Errors: ``UsageError``, also where nobody is of those;
    ``LockedError``; ``NotComparableError`` with the reason."""
    rows = [book.recorded(ref) for ref in (one, other)]
    if rows[0] is None or rows[1] is None:
        raise UsageError("a run under way cannot be compared: choose two that have been committed")
    numbers = [str(row["run"]) for row in rows if row is not None]

    whole = book.remember(f"pair {' '.join(numbers)}", lambda: load_pair(book.store, *numbers))

    def make() -> tuple[Pair, dict[str, Any], tuple[Figure, ...]]:
        pair = _chosen(whole, cls, tenant)
        figures = []
        for each in compare_figures(pair)[0]:
            measure, interval = MEASURES[each.measure], each.interval
            one_said, other_said = measure.text(interval.base), measure.text(interval.level)
            change = interval_text(interval, each.measure)
            figures.append(Figure(measure.label, one_said, other_said, change, each.verdict, each.requests))
        return pair, build_comparison(pair), tuple(figures)

    pair, document, figures = book.remember(f"beside {' '.join(numbers)} {[cls, tenant]}", make)
    before, after = (side.values[_VALUES[metric]] / 1e9 for side in (pair.base, pair.other))
    there = ~np.isnan(before) & ~np.isnan(after)
    classes, tenants = _names(whole, "class"), _names(whole, "tenant")
    of = pair.labels["class"][there] if "class" in pair.labels else None
    return Beside(document, figures, pair.request[there], before[there], after[there], classes, tenants, of)


def _names(pair: Pair, what: str) -> tuple[str, ...]:
    return tuple(sorted({each for each in pair.labels.get(what, ()) if each is not None}))


def _chosen(pair: Pair, cls: str | None, tenant: str | None) -> Pair:
    keep = np.ones(len(pair.request), np.bool_)
    for what, name in (("class", cls), ("tenant", tenant)):
        if name is not None:
            keep &= pair.labels[what] == name if what in pair.labels else False
    if not keep.any():
        named = " and ".join(f"{what} {name}" for what, name in (("class", cls), ("tenant", tenant)) if name is not None)
        raise UsageError(f"no request of these runs is of {named}: remove it from the selection above")
    return pair if keep.all() else narrowed(pair, keep)


def findings_beside(before: Sequence[Card], after: Sequence[Card]) -> tuple[Held, ...]:
    """Every finding of either verdict; the causes of this run first, in its order."""
    mine, theirs = ({each.id: each.excess_s for each in cards} for cards in (before, after))
    return tuple(
        Held(name, mine.get(name), theirs.get(name), _word(mine.get(name), theirs.get(name))) for name in {**mine, **theirs}
    )


def _word(before: float | None, after: float | None) -> str:
    if after is None:
        return "solved"
    if before is None:
        return "new"
    if abs(after - before) <= SAME * max(after, before):
        return "unchanged"
    return "smaller" if after < before else "larger"


def level_of(view: RunView, what: str, edges_ns: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The mean of a count (``waiting``, ``running``) of all engines between neighbouring edges; 0 where no iteration runs."""
    total = np.zeros(len(edges_ns) - 1)
    for frame in view.frames.values():
        start = frame["start_ns"].astype(np.int64)
        total += between(edges_ns, start, start + frame["duration_ns"], frame[what].astype(float))
    return total / np.diff(edges_ns)
