"""Iterations one by one: who computed what in each, and who stood at the head of the queue, refused by what."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.diagnosis import RunData
from tracekit.diagnosis.iteration_cost import CostForm
from tracekit.store import code_names

__all__ = ["MOST", "Member", "expected_ns", "members_of"]

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
    told = expected_ns(data, inside)
    expected = [None] * len(inside) if told is None else told.tolist()
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


def expected_ns(data: RunData, rows: npt.NDArray[np.void]) -> npt.NDArray[np.float64] | None:
    """What the run's profile says iterations of one replica take, host time included; ``None`` where it has no times."""
    latency = data.profile.latency
    if not len(rows) or not (latency.floor_ns or latency.a_ns or latency.b_ns):
        return None
    asynchronous = data.engine_of(int(rows["replica"][0])).async_scheduling
    device, host = CostForm(latency, asynchronous).device_ns(rows), rows["host_ns"].astype(np.float64)
    found: npt.NDArray[np.float64] = np.maximum(device, host) if asynchronous else device + host
    return found
