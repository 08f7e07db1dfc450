"""Which stretches of time a selection of requests waited through: exact, from the ends of their waits alone."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dashboards.address import Address
from dashboards.selection import selected
from tracekit.diagnosis import RunData
from tracekit.store import code_names

__all__ = ["WAITS", "Blamed", "blame_of", "carriers"]

WAITS = (
    "dispatch", "queued", "prefill_wait", "stalled", "preempted", "swapped", "paused", "transfer_wait", "transfer",
    "decode_queue", "batch_hold",
)  # fmt: skip
"""Phases in which a request stands still."""
Ints = npt.NDArray[np.int64]


class Blamed(NamedTuple):
    """``waited_ns``: what the selected requests waited in each bucket, summed over them; ``total_ns``: in all, of the whole run.
    ``requests``: how many are selected."""

    waited_ns: npt.NDArray[np.float64]
    total_ns: int
    requests: int


def _waits(data: RunData, address: Address) -> tuple[Ints, Ints, int]:
    keep = selected(data, address)
    chosen = np.zeros(data.source.total, np.bool_)
    chosen[data.outcomes["request"][keep]] = True
    phases = code_names("spans", "phase")
    spans = data.spans
    waits = np.isin(spans["phase"], [phases.index(name) for name in WAITS]) & chosen[spans["request"]]
    return spans["start_ns"][waits], spans["end_ns"][waits], int(keep.sum())


def blame_of(data: RunData, address: Address, edges_ns: Ints) -> Blamed:
    """The selected requests' waiting in buckets between ``edges_ns`` (ascending). The window of the address does not select here:
    it is what is looked at."""
    begin, end, count = _waits(data, replace(address, t=None, last_s=None))
    passed = _until(np.sort(begin), edges_ns) - _until(np.sort(end), edges_ns)
    return Blamed(np.diff(passed), int((end - begin).sum()), count)


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
