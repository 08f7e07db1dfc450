"""In what order findings are told: what harms those that go first by the policy, then by time explained; consequences after
causes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tracekit.diagnosis.claim import Claim
from tracekit.diagnosis.finding import Change

__all__ = ["Settled", "ranked"]

SIDE = 0.2
"""A finding that explains less of the excess than this may not propose what a greater one knows to be tempting and wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """A claim, and what it got before and after the first token: ns per outcome row."""

    claim: Claim
    first: npt.NDArray[np.float64]
    later: npt.NDArray[np.float64]

    @property
    def got(self) -> npt.NDArray[np.float64]:
        return self.first + self.later

    @property
    def excess_ns(self) -> float:
        return float(self.got.sum())


def ranked(settled: Sequence[Settled], excess_ns: float) -> list[Settled]:
    """A stable order. The less urgent may wait, so what harms the urgent comes first whatever the others' seconds add up to. A
    finding whose proposals are those that a greater one is right to warn of is a consequence of it, and proposes nothing."""
    order = sorted(settled, key=lambda each: (not each.claim.urgent, -each.excess_ns))
    found: list[Settled] = []
    for each in order:
        greater = next((top for top in found if _warns_of(top, each, excess_ns)), None)
        if greater is not None:
            each = replace(each, claim=replace(each.claim, changes=(), under=greater.claim.id))
        found.append(each)
    return found


def _warns_of(top: Settled, other: Settled, excess_ns: float) -> bool:
    if top.claim.changes == other.claim.changes or not other.claim.changes:
        return False
    if not top.claim.urgent and other.excess_ns >= SIDE * excess_ns:
        return False
    wrong = {_way(each) for each in top.claim.tempting}
    return all(_way(each) in wrong for each in other.claim.changes)


def _way(change: Change) -> tuple[str, bool | None]:
    """A knob, and whether it goes up (``None``: it is not a number)."""
    try:
        return change.knob, float(change.new) > float(change.old)
    except ValueError:
        return change.knob, None
