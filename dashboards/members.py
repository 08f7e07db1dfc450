"""Iterations one by one: who computed what in each, and who stood at the head of the queue, refused by what."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracekit.diagnosis import RunData
from tracekit.diagnosis.engines import RunEngines
from tracekit.store import code_names

__all__ = ["MOST", "Member", "members_of"]

MOST = 60
"""Iterations that a window may have to be shown one by one."""


class Member(NamedTuple):
    """One iteration. ``expected_s``: what the profile says it takes; ``prefill``: (request, tokens, context, computed again)."""

    iteration: int
    start_s: float
    duration_s: float
    expected_s: float | None
    decodes: int
    prefill: tuple[tuple[int, int, int, int], ...]
    running: int
    waiting: int
    head: int | None
    refused_by: str
    preempted: int


def members_of(data: RunData, replica: int, begin_ns: int, end_ns: int) -> tuple[Member, ...]:
    """The iterations that overlap a window, in order; empty where there are more than ``MOST``."""
    own = data.iterations[data.iterations["replica"] == replica]
    inside = own[(own["start_ns"] < end_ns) & (own["start_ns"] + own["duration_ns"] > begin_ns)]
    if not 0 < len(inside) <= MOST:
        return ()
    entries = data.entries[data.entries["replica"] == replica]
    names = code_names("iterations", "head_refused_by")
    cost = RunEngines(data.policy, data.profile.latency).cost(replica)
    expected = [None] * len(inside) if cost is None else cost.expected_ns(inside).tolist()
    found = []
    for row, predicted in zip(inside, expected, strict=True):
        low, high = np.searchsorted(entries["iteration"], (row["iteration"], row["iteration"] + 1))
        prefill = tuple(
            (int(each["request"]), int(each["query_len"]), int(each["kv_len"]), int(each["recompute"]))
            for each in entries[low:high]
        )
        reason = names[int(row["head_refused_by"])]
        head = int(row["head_request"])
        found.append(
            Member(
                int(row["iteration"]), int(row["start_ns"]) / 1e9, int(row["duration_ns"]) / 1e9,
                None if predicted is None else float(predicted) / 1e9,
                int(row["decode_seqs"]), prefill, int(row["running"]), int(row["waiting"]), head if head >= 0 else None,
                "" if reason == "none" else reason.replace("_", " "), int(row["preempted"]),
            )
        )  # fmt: skip
    return tuple(found)
