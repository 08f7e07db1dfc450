"""How long the one that stood in the queue longest had stood there, at every moment: exact, from the ends of the waits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.store import Store

__all__ = ["IN_QUEUE", "Oldest", "oldest_of", "read_oldest"]

IN_QUEUE = ("queued", "preempted", "decode_queue")
"""Phases in which a request stands in an engine's queue; whoever is preempted stands there anew."""
Ints = npt.NDArray[np.int64]


class Oldest(NamedTuple):
    """Stretches of time, ascending, in which the one that has stood longest stays the same: from ``begin_ns`` to ``end_ns`` it is
    one that came to the queue at ``since_ns``."""

    begin_ns: Ints
    end_ns: Ints
    since_ns: Ints

    def peaks(self, edges_ns: Ints) -> npt.NDArray[np.float64]:
        """The longest wait so far of anybody in the queue at any moment of each bucket between ``edges_ns``, ns; 0 where nobody
        waits."""
        found = np.zeros(len(edges_ns) - 1)
        if not len(self.begin_ns):
            return found
        bucket = np.searchsorted(edges_ns, self.end_ns, "left") - 1
        inside = (bucket >= 0) & (bucket < len(found))
        np.maximum.at(found, bucket[inside], (self.end_ns - self.since_ns)[inside].astype(np.float64))
        right = edges_ns[1:]  # the wait still grows where a bucket ends within a stretch
        at = np.clip(np.searchsorted(self.begin_ns, right, "left") - 1, 0, None)
        within = (self.begin_ns[at] < right) & (right <= self.end_ns[at])
        grown: npt.NDArray[np.float64] = np.where(within, right - self.since_ns[at], 0).astype(np.float64)
        return np.maximum(found, grown)


def oldest_of(begin_ns: Ints, end_ns: Ints) -> Oldest:
    """From waits in any order. One is the oldest as long as nobody who came before it is still there."""
    order = np.argsort(begin_ns, kind="stable")
    begin, end = begin_ns[order], end_ns[order]
    if not len(begin):
        return Oldest(begin, end, begin)
    gone = np.concatenate([[begin[0]], np.maximum.accumulate(end)[:-1]])
    since = np.maximum(begin, gone)
    keep = end > since
    return Oldest(since[keep], end[keep], begin[keep])


def read_oldest(store: Store, run: int) -> dict[int, Oldest]:
    """By replica, of a recorded run; empty where it kept no spans. Errors: ``LockedError``."""
    phases = ", ".join(f"'{name}'" for name in IN_QUEUE)
    query = f"SELECT coalesce(replica, 0) AS replica, start_ns, end_ns FROM spans WHERE run = {int(run)} AND phase IN ({phases})"
    with store.read() as con:
        rows = con.sql(query).fetchnumpy()
    return {
        int(replica): oldest_of(*(rows[edge][rows["replica"] == replica] for edge in ("start_ns", "end_ns")))
        for replica in np.unique(rows["replica"])
    }
