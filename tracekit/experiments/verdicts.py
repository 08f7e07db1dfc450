"""From figures to what may be said: every level against the first, per trace and measure; then over all traces.

Every interval is a 95 % interval of its own: nothing is corrected for the number of comparisons, since a reader asks about
one measure at a time. Of twenty comparisons that show nothing, about one looks like something; the report says how many
there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tracekit.experiments.intervals import Interval, Verdict, judge, paired_interval
from tracekit.experiments.measures import MEASURES
from tracekit.experiments.plan import Cell, Plan

__all__ = ["CLEAR", "Across", "Change", "across_traces", "changes_of", "compared"]

CLEAR: tuple[Verdict, ...] = ("better", "worse", "higher", "lower")
"""Verdicts that say something differs."""
Holds = str
"""``all``, ``some``, ``none`` or ``unknown``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What level ``level`` (its index) does to ``measure`` in one trace (its index), against level 0, over paired windows.

    ``left_out``: windows without the figure at one of the two levels, and ``why`` not.
    """

    trace: int
    level: int
    measure: str
    interval: Interval
    verdict: Verdict
    left_out: int = 0
    why: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Across:
    """A measure's verdict over all traces. ``holds``: ``all`` (the same clear verdict in each), ``some`` (in those that
    ``where`` lists by verdict), ``none`` (in none a clear one) or ``unknown`` (no trace has an interval)."""

    level: int
    measure: str
    holds: Holds
    where: dict[str, list[int]]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def compared(base: Sequence[Mapping[str, Any]], level: Sequence[Mapping[str, Any]], measure: str) -> tuple[Interval, Verdict]:
    """The change of one measure from ``base`` to ``level``: figures (``{"value": ...}``), one per window, paired by place."""
    one, other = (np.array([_number(figure) for figure in figures], np.float64) for figures in (base, level))
    found = paired_interval(one, other, MEASURES[measure].scale)
    return found, judge(found, MEASURES[measure].better)


def _number(figure: Mapping[str, Any]) -> float:
    value = figure["value"]
    return float("nan") if value is None else float(value)


def changes_of(plan: Plan, results: Mapping[Cell, Mapping[str, Any]]) -> list[Change]:
    """Every level but the first against it, for every trace and measure. All cells must be there."""
    changes = []
    for t, trace in enumerate(plan.traces):
        for level in range(1, len(plan.levels)):
            for name in MEASURES:
                base, other = ([results[Cell(t, w, at)]["figures"][name] for w in range(len(trace.windows))] for at in (0, level))
                interval, verdict = compared(base, other, name)
                lacking = [figure for figure in (*base, *other) if figure["value"] is None]
                changes.append(Change(
                    trace=t, level=level, measure=name, interval=interval, verdict=verdict,
                    left_out=len(trace.windows) - interval.n, why=str(lacking[0]["reason"]) if lacking else None,
                ))  # fmt: skip
    return changes


def across_traces(plan: Plan, changes: Sequence[Change]) -> list[Across]:
    """Whether each conclusion holds in all traces, in some, or in none."""
    found = []
    for level in range(1, len(plan.levels)):
        for name in MEASURES:
            own = [change for change in changes if change.level == level and change.measure == name]
            where: dict[str, list[int]] = {}
            for change in own:
                where.setdefault(change.verdict, []).append(change.trace)
            found.append(Across(level=level, measure=name, holds=_holds(where, len(own)), where=where))
    return found


def _holds(where: Mapping[str, Sequence[int]], traces: int) -> Holds:
    if len(where.get("cannot tell", ())) == traces:
        return "unknown"
    clear = [verdict for verdict in where if verdict in CLEAR]
    if not clear:
        return "none"
    return "all" if len(clear) == 1 and len(where[clear[0]]) == traces else "some"
