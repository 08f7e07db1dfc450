"""What of the iterations that prefilled a request went into its own tokens, new or computed before, and into others' prompts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tracekit.diagnosis.iteration_cost import own_qk
from tracekit.diagnosis.lanes import Lane

__all__ = ["OwnPrefill"]

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.void]


class OwnPrefill:
    """Prefill ``entries`` by request and time, with running sums. ``lanes``: the engines, in the order of their replica."""

    def __init__(self, entries: Rows, lanes: Sequence[Lane], replicas: Sequence[int]) -> None:
        self._total = 1 + sum(len(lane.rows) for lane in lanes)
        where = np.full(len(entries), -1, np.int64)
        self.at: Ints = where
        """The row of its iteration, among those of all replicas, of each entry."""
        shared = np.zeros(len(entries), np.int64)
        spent = np.zeros(len(entries), np.int64)
        qk = own_qk(entries)
        bounds = np.searchsorted(entries["replica"], [*replicas, *(each + 1 for each in replicas)])
        for k, lane in enumerate(lanes):
            part = slice(bounds[k], bounds[len(lanes) + k])
            at = np.searchsorted(lane.rows["iteration"], entries["iteration"][part])
            at = np.minimum(at, len(lane.rows) - 1)
            where[part], spent[part] = at + lane.offset, lane.duration[at]
            shared[part] = _beside(lane, at, entries["query_len"][part], qk[part])
        request = entries["request"].astype(np.int64)
        key = request * self._total + where
        order = np.argsort(key, kind="stable")
        self._key: Ints = key[order]
        self._kv: Ints = np.append(entries["kv_len"][order], 0).astype(np.int64)
        self._shared = np.concatenate(([0], np.cumsum(shared[order])))
        again = (spent - shared) * (entries["recompute"] / np.maximum(entries["query_len"], 1))
        self._again = np.concatenate(([0], np.cumsum(again.astype(np.int64)[order])))

    def between(self, request: Ints, first: Ints, last: Ints) -> tuple[Ints, Ints]:
        """For each request, of its entries in the iterations ``first`` to ``last`` (rows of all replicas, ``last`` not
        included): ns that others' prompts added, and ns that went into computing tokens again."""
        low = np.searchsorted(self._key, request * self._total + first)
        high = np.searchsorted(self._key, request * self._total + last)
        return self._shared[high] - self._shared[low], self._again[high] - self._again[low]

    def kv_before(self, request: Ints, row: Ints) -> Ints:
        """Tokens that each request's last prefill entry before the iteration ``row`` left in the KV cache; 0 without one."""
        at = np.searchsorted(self._key, request * self._total + row) - 1
        own = (at >= 0) & (self._key[at] >= request * self._total)
        return np.where(own, self._kv[at], 0)


def _beside(lane: Lane, at: Ints, query: npt.NDArray[np.int32], qk: npt.NDArray[np.float64]) -> Ints:
    """By how much the iterations ``at`` had been shorter without the others' prefill entries."""
    found = np.zeros(len(at), np.int64)
    tokens = lane.rows["prefill_tokens"][at].astype(np.float64)
    crowded = np.flatnonzero(tokens > query)
    if not len(crowded):
        return found
    rows, own, work = lane.rows[at[crowded]], query[crowded].astype(np.float64), qk[crowded]
    form = lane.form
    less = form.prefill_ns(tokens[crowded]) - form.prefill_ns(own)
    less += form.latency.c_ns * np.maximum(rows["prefill_qk"] - work, 0.0)
    found[crowded] = form.saved_ns(rows, less)
    return found
