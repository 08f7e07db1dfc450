"""How badly streams stood still: longest gaps and stalled seconds. The P99 of all gaps can fall while these grow."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dashboards.address import Address
from dashboards.selection import selected
from dashboards.words import count, percent, seconds
from tracekit.diagnosis import RunData

__all__ = ["Stalls", "describe_stalls", "stalls_of"]


class Stalls(NamedTuple):
    """Of ``n`` requests with a gap between tokens: longest gaps (median, P95, P99, the longest; seconds), how many were stalled
    at all, and their stalled seconds: mean over all ``n``, and the worst; ``None`` where the run has no threshold for it."""

    who: str
    n: int
    gap_p50_s: float | None
    gap_p95_s: float | None
    gap_p99_s: float | None
    gap_max_s: float | None
    stalled: int | None
    stalled_mean_s: float | None
    stalled_max_s: float | None


def stalls_of(data: RunData, address: Address) -> tuple[Stalls, ...]:
    """The selected requests and, where there are any, the other counted ones."""
    chosen = selected(data, address)
    rest = data.counted[data.outcomes["request"]] & ~chosen
    found = [_stalls(data, chosen, "selected")]
    return (*found, _stalls(data, rest, "the rest")) if rest.any() else tuple(found)


def _stalls(data: RunData, mask: npt.NDArray[np.bool_], who: str) -> Stalls:
    rows = data.outcomes[mask]
    gaps = rows["max_gap_ns"][rows["max_gap_ns"] >= 0] / 1e9
    if not len(gaps):
        return Stalls(who, 0, None, None, None, None, None, None, None)
    p50, p95, p99 = (float(each) for each in np.percentile(gaps, (50, 95, 99)))
    stood = rows["stalled_ns"][(rows["max_gap_ns"] >= 0) & (rows["stalled_ns"] >= 0)] / 1e9
    if not len(stood):
        return Stalls(who, len(gaps), p50, p95, p99, float(gaps.max()), None, None, None)
    mean, most = float(stood.mean()), float(stood.max())
    return Stalls(who, len(gaps), p50, p95, p99, float(gaps.max()), int((stood > 0).sum()), mean, most)


def describe_stalls(found: tuple[Stalls, ...]) -> str:
    """One sentence of the selected requests."""
    own = found[0]
    if not own.n:
        return "None of the selected requests has two tokens: there are no gaps between tokens."
    said = f"The longest gap between two tokens of {count(own.n)} selected requests is {seconds(own.gap_max_s)}"
    said += f" (median of each one's longest {seconds(own.gap_p50_s)}); "
    if own.stalled is None:
        return f"{said}stalled seconds are not known: an SLO for TPOT says what counts as one."
    mean, most = seconds(own.stalled_mean_s), seconds(own.stalled_max_s)
    return f"{said}{count(own.stalled)} ({percent(own.stalled / own.n)}) stood still, {mean} on average over all, at most {most}."
