"""What is searched for, from the results of a configuration's windows.

``goodput``: requests that met every part of their SLO, per second of the windows together. ``cost``: price of the cards for the
windows' time per million output tokens of such requests. ``capacity``: the highest factor on the arrival rate at which
attainment still holds. ``replicas``: the fewest replicas at which it holds. The SLO's limits decide who counts; no weight turns
one into the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from tracekit.errors import UsageError, shown
from tuner.cells import Result

__all__ = [
    "ATTAINED", "OBJECTIVES", "Objective", "attainment", "bisect_rate", "fewest", "goodput", "parse_objectives", "parts_met",
    "value_of",
]  # fmt: skip

PER_MILLION = 1e6
ATTAINED = "attained"
"""Beside the parts of an SLO: all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """One figure of merit. ``direction``: as Optuna says it. ``rates``: needs replays at other rates or replica counts."""

    name: str
    direction: Literal["maximize", "minimize"]
    unit: str
    rates: bool = False

    def better(self, one: float, other: float) -> bool:
        """Whether ``one`` is better than ``other``."""
        return one > other if self.direction == "maximize" else one < other


OBJECTIVES = {
    each.name: each
    for each in (
        Objective(name="goodput", direction="maximize", unit="requests/s"),
        Objective(name="cost", direction="minimize", unit="per million tokens"),
        Objective(name="capacity", direction="maximize", unit="x the arrival rate", rates=True),
        Objective(name="replicas", direction="minimize", unit="replicas", rates=True),
    )
}


def parse_objectives(text: str, price: float | None) -> tuple[Objective, ...]:
    """``goodput`` or ``capacity,cost``. Errors: ``UsageError``."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in OBJECTIVES:
            raise UsageError(f"--objective {shown(name)}: expected one or more of {', '.join(OBJECTIVES)}")
        if name == "cost" and price is None:
            raise UsageError("--objective cost: what a card costs is not given; expected --price-per-hour")
    if not names or len(set(names)) < len(names):
        raise UsageError(f"--objective {shown(text)}: expected one or more different ones of {', '.join(OBJECTIVES)}")
    return tuple(OBJECTIVES[name] for name in names)


def goodput(results: Sequence[Result]) -> float:
    """Requests met per second of all windows together."""
    seconds = sum(result["window_s"] for result in results)
    return sum(result["met"] for result in results) / seconds if seconds else 0.0


def attainment(results: Sequence[Result]) -> float:
    """Share of all requests that met their SLO."""
    n = sum(result["n"] for result in results)
    return sum(result["met"] for result in results) / n if n else 0.0


def parts_met(results: Sequence[Result]) -> dict[str, float]:
    """Attainment (``ATTAINED``), and by the name of each part of the SLO the share of all requests that did not miss it."""
    n = sum(result["n"] for result in results) or 1
    parts = sorted({part for result in results for part in result["missed"]})
    missed = {part: sum(result["missed"].get(part, 0) for result in results) for part in parts}
    return {ATTAINED: attainment(results), **{part: 1 - missed[part] / n for part in parts}}


def value_of(objective: str, results: Sequence[Result], *, price: float | None = None, cards: int = 1) -> float:
    """``goodput`` or ``cost`` of a configuration's windows; a cost without a token that met its SLO is infinite."""
    if objective == "goodput":
        return goodput(results)
    assert price is not None
    tokens = sum(result["met_tokens"] for result in results)
    hours = sum(result["window_s"] for result in results) / 3600
    return price * cards * hours / tokens * PER_MILLION if tokens else math.inf


def bisect_rate(holds: Callable[[float], bool], *, low: float = 1.0, steps: int = 5, most: float = 64.0,
                least: float = 1 / 64) -> tuple[float, float]:  # fmt: skip
    """The highest factor at which ``holds``, and the lowest tried above it at which it does not: doubled or halved from ``low``
    until they enclose it, then bisected by ratio ``steps`` times. (0, least): it never holds; (most, inf): it always does.
    """
    if holds(low):
        high = low * 2
        while holds(high):
            low, high = high, high * 2
            if low >= most:
                return low, math.inf
    else:
        high = low
        low /= 2
        while not holds(low):
            low, high = low / 2, low
            if high <= least:
                return 0.0, high
    for _ in range(steps):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


def fewest(holds: Callable[[int], bool], *, start: int = 1, most: int = 1024) -> int | None:
    """The smallest whole number from 1 at which ``holds``, by doubling from ``start`` and bisection; ``None`` up to ``most``."""
    high = max(start, 1)
    low = 0
    while not holds(high):
        low, high = high, high * 2
        if low >= most:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
