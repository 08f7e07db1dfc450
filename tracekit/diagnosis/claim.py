"""What a detector says: a cause by name, the waits it takes responsibility for, and what to change.

A claim weighs the kinds of ``parts`` between 0 and 1, as a number or per outcome row. Claims are settled in the order of the
detectors, from the special to the general, and nobody is paid twice: what one explains is gone for the next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tracekit.diagnosis.finding import Change, Confidence, Evidence, Measure
from tracekit.diagnosis.view import View

__all__ = [
    "BESIDE",
    "CROWD",
    "EVICTED",
    "PROMPT",
    "QUEUE",
    "WAITS",
    "Claim",
    "Remaining",
    "Weights",
    "change",
    "percent",
    "round_up",
    "scaled",
    "seconds",
]

Floats = npt.NDArray[np.float64]
Weights = Mapping[str, Floats | float]

WAITS = ("budget", "seats", "kv", "gate")
"""Kinds of waits in a queue whose head is refused."""
QUEUE = (*WAITS, "under_way")
BESIDE = ("prefill_wait", "prefill_shared")
"""What a prompt that is under way waits for others' prompts."""
EVICTED = ("preempted", "recompute", "swapped", "paused")
"""What being thrown out costs."""
CROWD = ("interference", "decode")
"""What decoding beside others costs."""
PROMPT = ("prefill", "prefill_shared")
"""The iterations that compute a prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """See ``Finding`` for the fields of the same names. ``first`` and ``later``: weights of the kinds of time before and after
    the first token. ``culprits``: requests that are the cause; ``iterations``: where it shows best, if that is known;
    ``urgent``: it harms those that go first by the policy, so it stands before what harms others."""

    id: str
    what: str
    first: Weights = field(default_factory=dict)
    later: Weights = field(default_factory=dict)
    evidence: tuple[Evidence, ...] = ()
    is_not: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    tempting: tuple[Change, ...] = ()
    confidence: Confidence = "high"
    because: str = ""
    under: str | None = None
    measure: Measure = "ttft"
    culprits: tuple[int, ...] = ()
    iterations: npt.NDArray[np.bool_] | None = None
    urgent: bool = False


class Remaining:
    """Excess that nobody has claimed yet, per kind and outcome row, ns."""

    def __init__(self, view: View) -> None:
        self.first = dict(view.first)
        self.later = dict(view.later)

    def take(self, claim: Claim) -> tuple[Floats, Floats]:
        """What the claim gets of it before and after the first token, per outcome row."""
        return _taken(self.first, claim.first), _taken(self.later, claim.later)

    def left(self) -> float:
        return float(sum(each.sum() for pot in (self.first, self.later) for each in pot.values()))


def _taken(pot: dict[str, Floats], weights: Weights) -> Floats:
    total = np.zeros(len(next(iter(pot.values()))))
    for family, weight in weights.items():
        taken = pot[family] * np.clip(weight, 0.0, 1.0)
        pot[family] = pot[family] - taken
        total += taken
    return total


def change(
    knob: str,
    old: object,
    new: object,
    why: str,
    *,
    sets: tuple[str, ...] | None = None,
    price: str = "",
    outside: bool = False,
    tolerated: float = 0.1,
) -> Change:
    """``knob`` from ``old`` to ``new``, in the language of ``--set`` unless ``sets`` says otherwise."""
    pairs = (f"{knob}={_text(new)}",) if sets is None else sets
    return Change(
        knob=knob, old=_text(old), new=_text(new), sets=pairs, why=why, price=price, outside=outside, tolerated=tolerated
    )


def scaled(view: View, knob: str, times: int, why: str) -> Change:
    """A knob of ``[scheduler]`` times ``times``: what the symptom suggests."""
    now = getattr(view.data.policy.scheduler, knob)
    return change(knob, now, times * now, why)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def round_up(value: float, step: int = 0) -> int:
    """The next multiple of ``step``; without one, the next of 1, 2, 3, 4, 6, 8 times a power of two below 64, else of 16s."""
    if step:
        return max(math.ceil(value / step), 1) * step
    for nice in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64):
        if value <= nice:
            return nice
    return math.ceil(value / 16) * 16


def percent(value: float) -> str:
    return f"{100 * value:.0f} %" if value < 0.995 or value >= 1 else f"{100 * value:.1f} %"


def seconds(ns: float) -> str:
    value = ns / 1e9
    return f"{value:.0f} s" if value >= 100 else f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"
