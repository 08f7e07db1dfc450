"""Whether a limit is kept, and how sure that is.

An absolute limit is about the traffic as it is: its figure decides, and the noise of iterations says how far that can be trusted.
A limit on a change is about the change on traffic like this: the draws that both sides have in common are compared pair by pair.
In both: over the limit by more than the noise is a failure, over it by less is inconclusive, and so is a limit narrower than the
noise. A figure that is not there has failed, on either side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from tracekit.experiments.intervals import Interval, paired_interval, t_quantile
from tracekit.gate.limits import Gate
from tracekit.gate.metrics import Figure, GateMetric

__all__ = ["Judged", "Status", "judge_absolute", "judge_change", "judge_finding"]

Status = Literal["passed", "failed", "inconclusive"]
EQUAL = 1e-9
"""Relative: below, two figures are the same but for the digits that a file keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What became of one gate: the figure here and in the baseline, the change with its 95 % interval over ``draws`` (a ratio
    less one, or a plain difference: ``scale``), or for an absolute limit the interval of the figure itself; and why."""

    status: Status
    why: str
    value: float | None = None
    base: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    scale: str = "value"
    draws: int = 0
    like: tuple[float, float] | None = None
    """Lowest and highest value over the drawn traffic."""
    settled: bool = True
    """Whether the limit lies outside the interval of the change, so that more draws would hardly say otherwise."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def judge_absolute(gate: Gate, here: Figure, noisy: Sequence[Figure], like: Sequence[Figure]) -> Judged:
    """``noisy``: the same traffic with noise; ``like``: traffic drawn from it, which is shown and decides nothing."""
    metric = gate.figure
    if here.value is None:
        return Judged(status="failed", why=f"there is no {metric.name}: {here.reason}")
    found = [each.value for each in like if each.value is not None]
    about: dict[str, Any] = {"value": here.value, "like": (min(found), max(found)) if found else None}
    low, high, draws = _noise(here.value, noisy)
    about |= {"low": low, "high": high, "draws": draws}
    few = _few(metric, here)
    if few:
        return Judged(status="inconclusive", why=few, **about)
    if not _over(gate, here.value, gate.limit):
        reach = high if gate.upper else low
        why = "within the limit" if reach is None or not _over(gate, reach, gate.limit) else "within the limit, not by the noise"
        return Judged(status="passed", why=why, **about)
    near = low if gate.upper else high
    if near is not None and not _over(gate, near, gate.limit):
        return Judged(status="inconclusive", why="over the limit by less than the noise", **about)
    return Judged(status="failed", why="over the limit" if gate.upper else "below the limit", **about)


def _noise(value: float, noisy: Sequence[Figure]) -> tuple[float | None, float | None, int]:
    """Where the figure may lie: it, plus and minus Student's t times the spread that noise gives it."""
    known = np.array([each.value for each in noisy if each.value is not None], np.float64)
    if len(known) < 2:
        return None, None, len(known)
    if value > 0 and (known > 0).all():
        half = t_quantile(len(known) - 1) * float(np.log(known).std(ddof=1))
        return value * math.exp(-half), value * math.exp(half), len(known)
    half = t_quantile(len(known) - 1) * float(known.std(ddof=1))
    return value - half, value + half, len(known)


def _over(gate: Gate, value: float, limit: float) -> bool:
    if gate.strict and value == limit:
        return True
    return value > limit if gate.upper else value < limit


def _few(metric: GateMetric, figure: Figure) -> str:
    if figure.n is None or figure.n >= metric.least_n:
        return ""
    return f"{metric.name} of {figure.n:,} is nobody's percentile: at least {metric.least_n:,} are needed"


def judge_change(gate: Gate, here: Figure, base: Figure, pairs: Sequence[tuple[Figure, Figure]] | None,
                 unpaired: tuple[Sequence[Figure], Sequence[Figure]] | None = None) -> Judged:  # fmt: skip
    """``pairs``: (baseline, here) for each draw of the same traffic. ``unpaired``: draws of either side where traffic
    differs. What is counted is not noisy: it is compared as it is."""
    metric = gate.figure
    for figure, whose in ((base, "the baseline has"), (here, "there is")):
        if figure.value is None:
            return Judged(status="failed", why=f"{whose} no {metric.name}: {figure.reason}", value=here.value, base=base.value)
    assert here.value is not None and base.value is not None
    few = _few(metric, here) or _few(metric, base)
    if gate.two_sided:
        return _count(gate, here.value, base.value)
    if pairs is not None:
        sides = [np.array([np.nan if each.value is None else each.value for each in side], np.float64)
                 for side in zip(*pairs, strict=True)] if pairs else [np.zeros(0), np.zeros(0)]  # fmt: skip
        found = paired_interval(sides[0], sides[1], "ratio" if gate.kind == "relative" else "difference")
    else:
        assert unpaired is not None
        found = _apart(here.value, base.value, unpaired)
    if found.estimate is None:
        return Judged(status="failed", why=f"no draw has {metric.name} on both sides", value=here.value, base=base.value)
    limit = gate.limit * base.value if gate.kind == "relative" and found.scale == "difference" else gate.limit
    low, high = _ends(found)
    about: dict[str, Any] = {"value": here.value, "base": base.value, "change": found.estimate, "low": low, "high": high,
                             "scale": found.scale, "draws": found.n}  # fmt: skip
    if few:
        return Judged(status="inconclusive", why=few, **about)
    status, why = _decided(gate, limit, found.estimate, low, high)
    settled = low is not None and high is not None and _over(gate, low, limit) == _over(gate, high, limit)
    return Judged(status=status, why=why, settled=settled, **about)


def _ends(found: Interval) -> tuple[float | None, float | None]:
    """The same change in every draw is sure."""
    if found.low is None and found.n >= 2:
        return found.estimate, found.estimate
    return found.low, found.high


def _decided(gate: Gate, limit: float, change: float, low: float | None, high: float | None) -> tuple[Status, str]:
    if low is None or high is None:
        return "inconclusive", "one draw: nothing to measure the noise with"
    if _over(gate, change, limit):
        near = low if gate.upper else high
        if (near > EQUAL if gate.upper else near < -EQUAL) and abs(change) > EQUAL:
            return "failed", "changed by more than allowed"
        return "inconclusive", "changed by more than allowed, within the noise"
    reach = high if gate.upper else low
    if not _over(gate, reach, limit):
        return "passed", "changed by no more than allowed"
    if abs(reach - change) > max(abs(limit), EQUAL):
        return "inconclusive", "the noise is wider than the limit: more --seeds, or a longer window"
    return "passed", "changed by no more than allowed, the noise reaches over it"


def _count(gate: Gate, here: float, base: float) -> Judged:
    change = here - base
    allowed = abs(gate.limit) * abs(base) if gate.kind == "relative" else abs(gate.limit)
    share = change / base if base else None
    scale = "ratio" if share is not None else "difference"
    about: dict[str, Any] = {"value": here, "base": base, "scale": scale, "change": share if share is not None else change}
    if here == 0 and base > 0:
        return Judged(status="failed", why="nothing was measured", **about)
    if abs(change) > allowed * (1 + EQUAL):
        how = "more" if change > 0 else "fewer"
        return Judged(status="failed", why=f"{how} than in the baseline, by more than allowed", **about)
    return Judged(status="passed", why=f"{'nearly ' if change else ''}as many as in the baseline", **about)


def _apart(here: float, base: float, sides: tuple[Sequence[Figure], Sequence[Figure]]) -> Interval:
    """The change between two pieces of traffic: the spread of the draws of either is how far its own figure can be trusted."""
    theirs, mine = ([each.value for each in side if each.value is not None] for side in sides)
    n = min(len(theirs), len(mine))
    positive = here > 0 and base > 0 and all(value > 0 for value in (*theirs, *mine))
    if n < 2:
        change = here / base - 1 if positive else here - base
        return Interval(n=n, scale="ratio" if positive else "difference", estimate=change)
    logs = [np.log(np.array(side)) if positive else np.array(side, np.float64) for side in (theirs, mine)]
    half = t_quantile(n - 1) * math.sqrt(sum(float(side.var(ddof=1)) for side in logs))
    if positive:
        change = math.log(here / base)
        return Interval(n=n, scale="ratio", base=base, level=here, estimate=math.expm1(change), low=math.expm1(change - half),
                        high=math.expm1(change + half))  # fmt: skip
    return Interval(n=n, scale="difference", base=base, level=here, estimate=here - base, low=here - base - half,
                    high=here - base + half)  # fmt: skip


def judge_finding(gate: Gate, plain: Sequence[str], draws: Sequence[Sequence[str]], share: Mapping[str, float]) -> Judged:
    """A cause counts where the diagnosis names it, and is sure where most of the drawn traffic has it too."""
    named = gate.finding in plain
    often = sum(gate.finding in each for each in draws)
    seen = f"found in {often} of {len(draws)} draws"
    about: dict[str, Any] = {"value": share.get(gate.finding, 0.0) if named else 0.0, "draws": len(draws)}
    if named and (2 * often >= len(draws)):
        return Judged(status="failed", why=f"found, {share.get(gate.finding, 0.0):.0%} of the excess; {seen}", **about)
    if named:
        return Judged(status="inconclusive", why=f"found, but seldom on traffic like it: {seen}", **about)
    return Judged(status="passed", why=f"not found; {seen}", **about)
