"""Is memory the limit, and is reuse lost? What requests hold, the pool at its fullest, and what a prefix cache could give."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dashboards.selection import label_of
from tracekit.diagnosis import RunData
from tracekit.store import code_names

__all__ = ["Holder", "Peak", "Pressure", "Preempted", "peak_of", "preempted", "pressure_of"]

_HOLDING = ("prefill", "prefill_wait", "decode", "stalled", "paused", "transfer", "transfer_wait", "batch_hold", "decode_queue")
LISTED = 20


class Pressure(NamedTuple):
    """KV of one replica over the run, blocks: all there are, most used, time-weighted median and 95th percentile of use, and the
    share of busy time with more than 95 % of them used. ``evicted``: cached blocks that had to go; ``preemptions``: rows."""

    replica: int
    total: int
    most: int
    median: float
    p95: float
    near_full: float
    evicted: int
    preemptions: int


class Holder(NamedTuple):
    """A request that held blocks at the peak: its size at the end, and what it could have grown to (``None``: not known)."""

    request: int
    cls: str | None
    phase: str
    blocks: int
    could_be: int | None


class Peak(NamedTuple):
    """The fullest moment of a replica: when (s), used blocks, and who held them, the largest first (``LISTED`` of them)."""

    replica: int
    at_s: float
    iteration: int
    used: int
    total: int
    holders: int
    largest: tuple[Holder, ...]
    could_be: int | None


class Preempted(NamedTuple):
    """A request that was preempted: how often, tokens lost and computed again, and seconds it stood still."""

    request: int
    cls: str | None
    times: int
    lost_tokens: int
    recomputed_tokens: int
    stood_s: float


def pressure_of(data: RunData) -> tuple[Pressure, ...]:
    """One entry a replica; empty where iterations were not kept."""
    found = []
    for replica in data.replicas:
        own = data.iterations[data.iterations["replica"] == replica]
        used, length, total = own["kv_used"], own["duration_ns"].astype(np.float64), data.engine_of(replica).usable_blocks
        order = np.argsort(used, kind="stable")
        share = np.cumsum(length[order]) / max(length.sum(), 1)
        at = [int(used[order][min(np.searchsorted(share, part), len(used) - 1)]) for part in (0.5, 0.95)]
        near = float(length[used > 0.95 * total].sum() / max(length.sum(), 1))
        found.append(
            Pressure(replica, total, int(used.max()), at[0], at[1], near, int(own["evicted"].sum()), int(own["preempted"].sum()))
        )
    return tuple(found)


def peak_of(data: RunData, replica: int) -> Peak | None:
    """The first moment at which most blocks of a replica were used."""
    own = data.iterations[data.iterations["replica"] == replica]
    if not len(own):
        return None
    worst = own[int(own["kv_used"].argmax())]
    at, size = int(worst["start_ns"]) + int(worst["duration_ns"]) // 2, data.engine_of(replica).block_size
    phases = code_names("spans", "phase")
    codes = [phases.index(name) for name in _HOLDING]
    spans = data.spans
    there = spans[
        (spans["start_ns"] <= at) & (spans["end_ns"] > at) & np.isin(spans["phase"], codes) & (spans["replica"] == replica)
    ]
    most = getattr(data.source, "max_tokens", None)
    rows = data.outcomes[np.searchsorted(data.outcomes["request"], there["request"])] if len(there) else data.outcomes[:0]
    final = -(-(rows["prompt_tokens"].astype(np.int64) + rows["output_tokens"]) // size)
    grown = None
    if most is not None and len(rows):
        limit = np.asarray(most)[rows["request"]]
        grown = -(-(rows["prompt_tokens"].astype(np.int64) + np.where(limit > 0, limit, rows["output_tokens"])) // size)
    largest = []
    for i in np.argsort(-final, kind="stable")[:LISTED]:
        number, doing = int(rows["request"][i]), phases[int(there["phase"][i])].replace("_", " ")
        could = None if grown is None else int(grown[i])
        largest.append(Holder(number, label_of(data, "class", number), doing, int(final[i]), could))
    total, used = data.engine_of(replica).usable_blocks, int(worst["kv_used"])
    all_grown = None if grown is None else int(grown.sum())
    return Peak(replica, at / 1e9, int(worst["iteration"]), used, total, len(there), tuple(largest), all_grown)


def preempted(data: RunData) -> tuple[Preempted, ...]:
    """Requests that were preempted, those that lost most first (``LISTED``)."""
    rows = data.tables["preemptions"]
    if not len(rows):
        return ()
    numbers, at = np.unique(rows["request"], return_inverse=True)
    times, lost, again = (np.bincount(at, weights=weights) for weights in (None, rows["lost_tokens"], rows["recomputed_tokens"]))
    stood = np.bincount(at, weights=np.maximum(rows["resumed_ns"] - rows["preempted_ns"], 0) / 1e9)
    order = np.lexsort((numbers, -lost, -times))[:LISTED]
    return tuple(
        Preempted(
            int(numbers[i]), label_of(data, "class", int(numbers[i])), int(times[i]), int(lost[i]), int(again[i]), float(stood[i])
        )
        for i in order
    )
