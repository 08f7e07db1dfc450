"""In what order findings are told: what harms those that go first by the policy, then by time explained; consequences after causes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracekit.diagnosis.view import View

if TYPE_CHECKING:
    from tracekit.diagnosis.diagnose import Settled

__all__ = ["ranked"]


def ranked(view: View, settled: Sequence[Settled]) -> list[Settled]:
    """A stable order: the less urgent may wait, so what harms the urgent comes first whatever the others' seconds add up to."""
    return sorted(settled, key=lambda each: (not each.claim.urgent, -each.excess_ns))
