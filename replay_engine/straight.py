"""Spans of requests that wait, are admitted, decode and end: kept on the sequence, written together at the end.

``Sequence.straight`` counts the rows that are pending: 1 its wait, 2 its prefill too.
"""

from __future__ import annotations

from replay_engine.rows import RowBuffer
from replay_engine.types import Phase, Sequence

__all__ = ["write_pending", "write_straight"]

_QUEUED, _PREFILL, _DECODE = int(Phase.queued), int(Phase.prefill), int(Phase.decode)


def write_pending(rows: RowBuffer | None, seq: Sequence) -> None:
    """``seq`` does something else now: what is pending is written. Its phase is still the one before."""
    pending, seq.straight = seq.straight, 0
    if rows is not None:
        first = seq.admit_iteration
        rows.add(-1, first - 1, seq.queued_ns, seq.admit_ns, seq.index, _QUEUED, seq.queue_reason)
        if pending == 2:
            rows.add(first, seq.phase_iteration - 1, seq.admit_ns, seq.phase_start_ns, seq.index, _PREFILL, 0)


def write_straight(rows: RowBuffer | None, seq: Sequence, it: int, end: int) -> None:
    """The three rows of ``seq``, which decodes and ends in ``it`` at ``end`` (ns)."""
    seq.straight = 0
    if rows is not None:
        index, admitted, at = seq.index, seq.admit_iteration, seq.admit_ns
        decodes, first = seq.phase_iteration, seq.phase_start_ns
        rows.add_three(
            -1, admitted - 1, seq.queued_ns, at, index, _QUEUED, seq.queue_reason,
            admitted, decodes - 1, at, first, index, _PREFILL, 0,
            decodes, it, first, end, index, _DECODE, 0,
        )  # fmt: skip
