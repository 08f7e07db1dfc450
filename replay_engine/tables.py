"""The event tables' row layouts: one packed little-endian dtype per table, written as they come.

Columns that never change within a run (token budget, KV total, execution mode of the simulator) are left out of the rows
and handed to the store once, as constants. Unknown integers are -1 here and NULL in the store.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from replay_engine.types import Displaced, Phase, Refusal, RequestState

__all__ = [
    "DECISIONS",
    "ENUMS",
    "ITERATIONS",
    "LONGEST",
    "LONG_ITERATIONS",
    "MODES",
    "NULLABLE",
    "OUTCOMES",
    "PREEMPTIONS",
    "PREFILL_ENTRIES",
    "ROUTING",
    "SPANS",
    "TABLES",
    "TRANSFERS",
    "Decision",
    "OutcomeReason",
    "TransferEnd",
    "Verdict",
    "row_format",
    "with_replica",
]

ITERATIONS = np.dtype(
    [
        ("iteration", "<i8"),
        ("start_ns", "<i8"),
        ("duration_ns", "<i8"),
        ("device_ns", "<i8"),
        ("host_ns", "<i8"),
        ("decode_kv_tokens", "<i8"),
        ("kv_used", "<i4"),
        ("kv_cached", "<i4"),
        ("evicted", "<i4"),
        ("decode_seqs", "<i4"),
        ("running", "<i4"),
        ("prefill_qk", "<i8"),
        ("prefill_tokens", "<i4"),
        ("recomputed_tokens", "<i4"),
        ("prefill_seqs", "<i4"),
        ("waiting", "<i4"),
        ("preempted", "<i4"),
        ("admitted", "<i4"),
        ("finished", "<i4"),
        ("head_refused_by", "<i4"),
        ("head_request", "<i4"),
        ("head_need_blocks", "<i4"),
        ("prefix_hit_tokens", "<i4"),
    ]
)

LONGEST = ("decode_longest_tokens", "<i4")
"""The longest context of an iteration's decodes, its new token counted as in ``decode_kv_tokens``; 0 where nobody decodes."""
LONG_ITERATIONS = np.dtype([*ITERATIONS.descr, LONGEST])
"""An ``iterations`` row with that: where the longest context costs extra."""

PREFILL_ENTRIES = np.dtype(
    [("iteration", "<i8"), ("request", "<i4"), ("query_len", "<i4"), ("kv_len", "<i4"), ("recompute", "<i4")]
)

SPANS = np.dtype(
    [
        ("start_iteration", "<i8"),
        ("end_iteration", "<i8"),
        ("start_ns", "<i8"),
        ("end_ns", "<i8"),
        ("request", "<i4"),
        ("phase", "<i2"),
        ("reason", "<i2"),
    ]
)

OUTCOMES = np.dtype(
    [
        ("queue_ns", "<i8"),
        ("ttft_ns", "<i8"),
        ("tpot_ns", "<f8"),
        ("e2e_ns", "<i8"),
        ("max_gap_ns", "<i8"),
        ("stalled_ns", "<i8"),
        ("arrival_ns", "<i8"),
        ("last_token_ns", "<i8"),
        ("request", "<i4"),
        ("prompt_tokens", "<i4"),
        ("output_tokens", "<i4"),
        ("preemptions", "<i4"),
        ("recomputed_tokens", "<i4"),
        ("cached_tokens", "<i4"),
        ("state", "<i4"),
        ("reason", "<i4"),
        ("retries", "<i4"),
        ("degraded", "|b1"),
    ]
)

PREEMPTIONS = np.dtype(
    [
        ("iteration", "<i8"),
        ("resumed_iteration", "<i8"),
        ("preempted_ns", "<i8"),
        ("resumed_ns", "<i8"),
        ("restored_ns", "<i8"),
        ("link_ns", "<i8"),
        ("request", "<i4"),
        ("lost_tokens", "<i4"),
        ("recomputed_tokens", "<i4"),
        ("hit_tokens", "<i4"),
        ("kind", "<i4"),
    ]
)

DECISIONS = np.dtype(
    [("at_ns", "<i8"), ("value", "<i8"), ("bound", "<i8"), ("request", "<i4"), ("decision", "<i4"), ("reason", "<i4")]
)
"""``value`` is what was seen, ``bound`` what it was held against, both in the reason's unit (``OutcomeReason``)."""

TRANSFERS = np.dtype(
    [
        ("asked_ns", "<i8"),
        ("start_ns", "<i8"),
        ("end_ns", "<i8"),
        ("bytes", "<i8"),
        ("request", "<i4"),
        ("source", "<i4"),
        ("target", "<i4"),
        ("blocks", "<i4"),
        ("hit_blocks", "<i4"),
        ("attempt", "<i4"),
        ("ended", "<i4"),
    ]
)
"""A prompt's KV between two engines, one row an attempt. ``start_ns - asked_ns`` is the wait for the link; ``hit_blocks`` the
target had cached and were not moved."""

ROUTING = np.dtype(
    [
        ("at_ns", "<i8"),
        ("tokens", "<i8"),
        ("request", "<i4"),
        ("requests", "<i4"),
        ("free_blocks", "<i4"),
        ("hit_blocks", "<i4"),
        ("attempt", "<i4"),
        ("replica", "<i2"),
        ("chosen", "|b1"),
    ]
)
"""A routing decision has a row for every replica that the router looked at: requests not answered yet, their tokens, free KV
blocks, leading prompt blocks it was sent before, and whether it was chosen."""

TABLES: dict[str, np.dtype[np.void]] = {
    "iterations": ITERATIONS,
    "prefill_entries": PREFILL_ENTRIES,
    "spans": SPANS,
    "outcomes": OUTCOMES,
    "preemptions": PREEMPTIONS,
    "decisions": DECISIONS,
    "transfers": TRANSFERS,
    "routing": ROUTING,
}


class OutcomeReason(IntEnum):
    """Why a request did not finish, or why the front door decided as it did. Codes are stored; append only."""

    none = 0
    prompt_too_long = 1  # tokens; it leaves no room for one output token
    no_progress = 2
    client_cancelled = 3
    interrupted = 4
    prompt_limit = 5  # tokens
    expected_limit = 6  # tokens of output
    queue_requests = 7  # requests waiting
    queue_tokens = 8  # tokens waiting, this request's included
    kv_use = 9  # blocks
    ttft_unreachable = 10  # ns from arrival to the earliest first token
    quota_tokens = 11  # tokens asked for, tokens left
    quota_concurrent = 12  # requests of the tenant
    queue_timeout = 13  # ns since arrival
    timeout = 14  # ns since arrival
    client_slot = 15  # ns held back, requests in flight
    parent_unfinished = 16
    engine_failed = 17
    replica_failed = 18  # the replica before, the replica now
    no_replica = 19  # none is up, and none comes back
    link_failed = 20  # between prefill and decode, for good


class Decision(IntEnum):
    """What was decided about a request outside the engine. Codes are stored; append only."""

    admit = 0
    reject = 1
    degrade = 2
    route = 3
    hold = 4  # by the client; the row is written when it lets go
    give_up = 5


class TransferEnd(IntEnum):
    """How an attempt to move KV ended. Codes are stored; append only."""

    done = 0
    link_failed = 1
    source_lost = 2
    target_lost = 3
    given_up = 4  # nobody wants the request any more


class Verdict(NamedTuple):
    """A decision with its reason (codes), what was seen, and what it was held against; -1 where nothing was compared."""

    decision: Decision
    reason: OutcomeReason = OutcomeReason.none
    value: int = -1
    bound: int = -1


MODES = ["eager", "eager, compiled in mid-run", "padded", *(f"graph {bucket}" for bucket in range(513))]
"""How a real engine ran an iteration: launched op by op; the same while something was compiled or captured in mid-run; padded to
a bucket, op by op; as a graph of a bucket."""

ENUMS: dict[tuple[str, str], list[str]] = {
    ("iterations", "mode"): MODES,
    ("iterations", "head_refused_by"): [r.name for r in Refusal],
    ("spans", "phase"): [p.name for p in Phase],
    ("spans", "reason"): [r.name for r in Refusal],
    ("outcomes", "state"): [s.name for s in RequestState],
    ("outcomes", "reason"): [r.name for r in OutcomeReason],
    ("preemptions", "kind"): [d.name for d in Displaced],
    ("decisions", "decision"): [d.name for d in Decision],
    ("decisions", "reason"): [r.name for r in OutcomeReason],
    ("transfers", "ended"): [e.name for e in TransferEnd],
}
"""Columns whose codes stand for names; the store shows the names."""

NULLABLE: dict[str, frozenset[str]] = {
    "iterations": frozenset({"head_request", "head_need_blocks"}),
    "prefill_entries": frozenset(),
    "spans": frozenset({"start_iteration", "end_iteration"}),
    "outcomes": frozenset(
        {"queue_ns", "ttft_ns", "tpot_ns", "e2e_ns", "max_gap_ns", "stalled_ns", "last_token_ns", "cached_tokens"}
    ),
    "preemptions": frozenset({"resumed_iteration", "resumed_ns", "restored_ns"}),
    "decisions": frozenset({"value", "bound"}),
    "transfers": frozenset({"start_ns"}),
    "routing": frozenset({"hit_blocks"}),
}
"""Columns in which -1 (NaN for floats) means unknown."""

def with_replica(dtype: np.dtype[np.void]) -> np.dtype[np.void]:
    """``dtype`` with the replica that each row comes from; -1: it was in front of them."""
    assert dtype.names is not None
    return dtype if "replica" in dtype.names else np.dtype([("replica", "<i2"), *dtype.descr])


_CODES = {"<i8": "q", "<i4": "i", "<i2": "h", "<f8": "d", "|b1": "?"}


def row_format(dtype: np.dtype[np.void]) -> str:
    """The ``struct`` format that packs one row of ``dtype``, in field order."""
    assert dtype.names is not None and dtype.fields is not None
    return "<" + "".join(_CODES[dtype.fields[name][0].str] for name in dtype.names)
