"""Which stretches of time a selection of requests waited through: exact, from the ends of their waits alone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dashboards.address import Address
from dashboards.selection import selected
from tracekit.diagnosis import RunData
from tracekit.store import code_names

__all__ = ["WAITS", "Blamed", "Waits", "beside", "carriers", "stretches", "waits_of"]

WAITS = (
    "dispatch", "queued", "prefill_wait", "stalled", "preempted", "swapped", "paused", "transfer_wait", "transfer",
    "decode_queue", "batch_hold",
)  # fmt: skip
"""Phases in which a request stands still."""
_SLACK_NS = 1000
"""An address has its window in seconds."""
Ints = npt.NDArray[np.int64]


class Blamed(NamedTuple):
    """``waited_ns``: what the selected requests waited in each bucket, summed over them; ``total_ns``: in all, of the whole run.
    ``requests``: how many are selected."""

    waited_ns: npt.NDArray[np.float64]
    total_ns: int
    requests: int


class Waits(NamedTuple):
    """The moments at which the selected requests' waits begin and end, each ascending, ns; ``requests``: how many those are."""

    begin_ns: Ints
    end_ns: Ints
    requests: int

    def within(self, edges_ns: Ints) -> Blamed:
        """The waiting in buckets between ``edges_ns`` (ascending)."""
        passed = _until(self.begin_ns, edges_ns) - _until(self.end_ns, edges_ns)
        return Blamed(np.diff(passed), int((self.end_ns - self.begin_ns).sum()), self.requests)


def waits_of(data: RunData, address: Address) -> Waits:
    """When the requests that a settled address selects waited, in its window or not."""
    keep = selected(data, address)
    chosen = np.zeros(data.source.total, np.bool_)
    chosen[data.outcomes["request"][keep]] = True
    phases = code_names("spans", "phase")
    spans = data.spans
    waits = np.isin(spans["phase"], [phases.index(name) for name in WAITS]) & chosen[spans["request"]]
    return Waits(np.sort(spans["start_ns"][waits]), np.sort(spans["end_ns"][waits]), int(keep.sum()))


def _until(moments: Ints, edges: Ints) -> npt.NDArray[np.float64]:
    """For each edge the sum over moments before it of how long ago they were."""
    sums = np.concatenate([[0], np.cumsum(moments)])
    before = np.searchsorted(moments, edges, "right")
    found: npt.NDArray[np.float64] = (before * edges - sums[before]).astype(np.float64)
    return found


def carriers(waited_ns: npt.NDArray[np.float64], share: float = 0.8) -> int:
    """The fewest buckets that carry ``share`` of the waiting."""
    order = np.sort(waited_ns)[::-1]
    total = float(order.sum())
    return 0 if total <= 0 else int(np.searchsorted(np.cumsum(order), share * total)) + 1


def stretches(waits: Waits, span_ns: tuple[int, int], pieces: int = 400) -> list[tuple[int, int]]:
    """Where in a run the selected requests waited most, ns, in order: of ``pieces`` equal parts the fewest that carry 80 % of the
    waiting, neighbours joined."""
    edges = np.linspace(*span_ns, pieces + 1).astype(np.int64)
    waited = waits.within(edges).waited_ns
    carry = np.zeros(pieces + 2, np.bool_)
    carry[1 + np.argsort(-waited, kind="stable")[: carriers(waited)]] = True
    turns = np.flatnonzero(np.diff(carry))
    return [(int(edges[begin]), int(edges[end])) for begin, end in zip(turns[::2], turns[1::2], strict=True)]


def beside(found: list[tuple[int, int]], window_ns: tuple[int, int]) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """The stretches to go to from a window: the last and the first of those inside it, where it is wider than one, else the one
    before it and the one after it."""
    begin, end = window_ns[0] - _SLACK_NS, window_ns[1] + _SLACK_NS
    inside = [each for each in found if begin <= each[0] and each[1] <= end and each[1] - each[0] < end - begin - 4 * _SLACK_NS]
    if inside:
        return inside[-1], inside[0]
    before = [each for each in found if each[1] <= window_ns[0] + _SLACK_NS]
    after = [each for each in found if each[0] >= window_ns[1] - _SLACK_NS]
    return before[-1] if before else None, after[0] if after else None
