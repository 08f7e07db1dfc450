"""What an experiment says in words: the verdict on the measure that decides, and for which traffic each conclusion holds."""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.errors import shown
from tracekit.experiments.intervals import Interval
from tracekit.experiments.measures import MEASURES, leading
from tracekit.experiments.plan import Plan
from tracekit.experiments.verdicts import CLEAR, Across, Change

__all__ = ["change_text", "conclusive", "holds_lines", "interval_text", "leading_measure", "verdict_line"]

_ORDER = ("better", "worse", "higher", "lower")


def leading_measure(plan: Plan) -> str:
    """The measure that decides: SLO-goodput where there is an SLO."""
    return leading(plan.levels[0].slo is not None)


def conclusive(plan: Plan, changes: Sequence[Change]) -> bool:
    """Whether the measure that decides has a clear verdict, or is exactly the same, for some level in some trace."""
    name = leading_measure(plan)
    return any(change.measure == name and change.verdict in (*CLEAR, "same") for change in changes)


def change_text(change: Change) -> str:
    """The change with its interval, as ``+3.1 % (+1.2 to +5.0)``; a dash where there is none."""
    return interval_text(change.interval, change.measure)


def interval_text(interval: Interval, name: str) -> str:
    """The same of any interval of the measure called ``name``."""
    measure = MEASURES[name]
    if interval.estimate is None:
        return "-"
    if interval.low is None or interval.high is None:
        text = measure.change(interval.estimate, interval.scale, factor=interval.estimate > 1)
        return f"{text} ({interval.why})" if interval.estimate else "0"
    factor = interval.high > 1  # more than twice as much: a percentage would be hard to read
    text, *ends = (
        measure.change(value, interval.scale, factor=factor) for value in (interval.estimate, interval.low, interval.high)
    )  # fmt: skip
    return f"{text} ({' to '.join(ends)})"


def verdict_line(plan: Plan, level: int, changes: Sequence[Change], across: Sequence[Across]) -> str:
    """One sentence: the level against the baseline on the measure that decides, with its interval in each trace."""
    name = leading_measure(plan)
    found = next(each for each in across if each.level == level and each.measure == name)
    own = [change for change in changes if change.level == level and change.measure == name]
    said = [f"{_trace(plan, change.trace)} {_said(change)}" for change in own]
    head = f"{plan.factor}={shown(plan.levels[level].text)} against {shown(plan.levels[0].text)}: {MEASURES[name].label}"
    if len(own) == 1:
        return f"{head} {_said(own[0])}"
    summary = {"all": f"{own[0].verdict} in all {len(own)} traces", "none": "within noise in every trace",
               "unknown": "cannot tell"}.get(found.holds, "depends on the traffic")  # fmt: skip
    if found.holds == "none" and set(found.where) == {"same"}:
        summary = "the same in every trace"
    return f"{head} {summary}: {'; '.join(said)}"


def _said(change: Change) -> str:
    if change.verdict == "cannot tell":
        return f"cannot tell ({change.interval.why or change.why})"
    if change.verdict == "same":
        return f"the same in all {change.interval.n} windows"
    return f"{change.verdict}, {change_text(change)}, n {change.interval.n}"


def holds_lines(plan: Plan, level: int, across: Sequence[Across]) -> list[str]:
    """The other measures, by where their conclusion holds; each line names its measures."""
    own = [each for each in across if each.level == level and each.measure != leading_measure(plan)]
    lines = []
    for verdict in _ORDER:
        names = [MEASURES[each.measure].label for each in own if each.holds == "all" and verdict in each.where]
        if names:
            lines.append(f"{verdict} in {_all(plan)}: {', '.join(names)}")
    for each in own:
        if each.holds == "some":
            parts = [f"{verdict} in {_traces(plan, where)}" for verdict, where in each.where.items()]
            lines.append(f"only in some: {MEASURES[each.measure].label}: {'; '.join(parts)}")
    same = [MEASURES[each.measure].label for each in own if each.holds == "none" and set(each.where) == {"same"}]
    noise = [MEASURES[each.measure].label for each in own if each.holds == "none" and set(each.where) != {"same"}]
    unknown = [MEASURES[each.measure].label for each in own if each.holds == "unknown"]
    for label, names in (("no clear difference", noise), ("exactly the same", same), ("cannot tell", unknown)):
        if names:
            lines.append(f"{label} in {_all(plan)}: {', '.join(names)}")
    return lines


def _all(plan: Plan) -> str:
    n = len(plan.traces)
    return {1: "this trace", 2: "both traces"}.get(n, f"all {n} traces")


def _traces(plan: Plan, where: Sequence[int]) -> str:
    return ", ".join(_trace(plan, at) for at in where)


def _trace(plan: Plan, at: int) -> str:
    return shown(plan.traces[at].name)
