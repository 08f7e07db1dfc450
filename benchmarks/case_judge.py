"""A case's reference beside ours: near enough, within its bound, and every variant moving the way the reference moved."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import yaml

from benchmarks.case_figures import FIGURES, measured
from benchmarks.case_runs import DATA, CaseRun

__all__ = ["Line", "differences", "judge", "lines_of", "moves_alike", "reference"]

FACTORS = {"median": 1.3, "mean": 1.3, "tail": 2.0, "count": 2.0}
SHARE = 0.1
SMALL = {"s": 0.001, "per request": 0.1, "requests": 2, "times": 2}
"""What counts as nothing where the reference has 0, by unit; else 0.02."""
MOVED, STILL = 1.1, 1.3
"""A variant moves a figure when the reference changes by 10 %; where it does not move, ours may differ by 30 %."""


@dataclass(slots=True, kw_only=True)
class Line:
    """One figure of one variant: the reference's, ours, whether it is near enough, and whether the variant moves it the way the
    reference moved (``None``: the base, or nothing to compare). ``draws``: the same with other seeds.
    """

    case: str
    variant: str
    figure: str
    reference: float | str
    ours: float
    near: bool
    direction: bool | None = None
    draws: list[Line] = field(default_factory=list)

    @property
    def unit(self) -> str:
        return FIGURES[self.figure.partition(".")[0]].unit

    @property
    def ratio(self) -> float | None:
        """Ours over the reference's; ``None`` for bounds and zeros."""
        return None if isinstance(self.reference, str) or not self.reference else self.ours / self.reference

    @property
    def passed(self) -> bool:
        return self.near and self.direction is not False

    @property
    def verdict(self) -> str:
        """``pass``; ``draw``: not with this seed, but with another one; ``DIFFERS``."""
        return "pass" if self.passed else "draw" if any(each.passed for each in self.draws) else "DIFFERS"

    @property
    def key(self) -> tuple[str, str, str]:
        return self.case, self.variant, self.figure


@lru_cache
def reference() -> dict[str, dict[str, dict[str, float | str]]]:
    """Figures by case and variant."""
    found: dict[str, Any] = yaml.safe_load((DATA / "case_references" / "reference.yaml").read_text(encoding="utf-8"))
    return found


@lru_cache
def differences() -> tuple[dict[str, str], dict[tuple[str, str, str], str]]:
    """What each reason for a difference says, and the reason of each figure that differs."""
    found: dict[str, Any] = yaml.safe_load((DATA / "case_references" / "differences.yaml").read_text(encoding="utf-8"))
    reasons: dict[str, str] = found.pop("reasons")
    figures = {(case, variant, figure): reason for case, variants in found.items() for variant, named in variants.items()
               for figure, reason in named.items()}  # fmt: skip
    return reasons, figures


def judge(figure: str, expected: float | str, ours: float) -> bool:
    """Whether ours is near enough to the reference's, or within the bound."""
    what = FIGURES[figure.partition(".")[0]]
    if isinstance(expected, str):
        how, _, bound = expected.partition(" ")
        held = {">=": ours >= float(bound), "<=": ours <= float(bound), "<": ours < float(bound), ">": ours > float(bound)}
        return held[how]
    if what.near == "share":
        return abs(ours - expected) <= SHARE
    if not expected:
        return abs(ours) <= SMALL.get(what.unit, 0.02)
    factor = FACTORS[what.near]
    return expected / factor <= ours <= expected * factor


def moves_alike(expected: tuple[float, float], ours: tuple[float, float]) -> bool:
    """Whether a variant moves ours the way it moved the reference's; each pair is base, then variant."""
    floor = max(abs(expected[0]), abs(expected[1])) / 1000 or 1e-9
    change, own = (math.log(max(pair[1], floor) / max(pair[0], floor)) for pair in (expected, ours))
    if abs(change) <= math.log(MOVED) + 1e-12:
        return abs(own) <= math.log(STILL)
    return own * change > 0


def lines_of(runs: Iterable[CaseRun]) -> list[Line]:
    """Every figure of the runs of one case, base first, that the reference states."""
    lines: list[Line] = []
    base: dict[str, float] = {}
    for run in runs:
        stated = reference()[run.case]
        for figure, expected in stated.get(run.variant, {}).items():
            ours = measured(run, figure)
            line = Line(case=run.case, variant=run.variant, figure=figure, reference=expected, ours=ours,
                        near=judge(figure, expected, ours))  # fmt: skip
            before = stated["base"].get(figure)
            if run.variant == "base":
                base[figure] = ours
            elif before is not None and not isinstance(expected, str) and not isinstance(before, str):
                line.direction = moves_alike((before, expected), (base[figure], ours))
            lines.append(line)
    return lines
