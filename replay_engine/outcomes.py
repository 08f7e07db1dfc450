"""One row per request: how it ended, and the figures of its life. ``stalls``: whether there is a threshold to count stalled
time by."""

from __future__ import annotations

from replay_engine.rows import RowBuffer
from replay_engine.tables import OutcomeReason
from replay_engine.types import RequestState, Sequence

__all__ = ["write_absent", "write_early", "write_finished"]

_NAN = float("nan")
_FINISHED, _TIMED_OUT = int(RequestState.finished), int(RequestState.timed_out)
_TOO_LATE = int(OutcomeReason.timeout)


def write_finished(rows: RowBuffer, seq: Sequence, end: int, *, stalls: bool) -> None:
    """``seq`` got its last token at ``end`` (ns); after its timeout nobody is there to take it."""
    outputs = seq.output_limit
    request = seq.request
    arrival, first = request.arrival_ns, seq.first_token_ns
    late = end > request.expires_ns
    tpot = (end - first) / (outputs - 1) if outputs > 1 else _NAN
    rows.add(
        seq.queue_ns, first - arrival, tpot, -1 if late else end - arrival, seq.max_gap_ns, seq.stalled_ns if stalls else -1,
        arrival, end, seq.index, seq.prompt_tokens, outputs, seq.num_preemptions + seq.past_preemptions, seq.recomputed_tokens,
        seq.cached_tokens,
        _TIMED_OUT if late else _FINISHED, _TOO_LATE if late else 0, request.attempt, request.degraded,
    )  # fmt: skip


def write_early(
    rows: RowBuffer, seq: Sequence, state: RequestState, reason: OutcomeReason, outputs: int, *, stalls: bool
) -> None:
    """``seq`` ended without its last token, having produced ``outputs``."""
    arrival, first, last = seq.request.arrival_ns, seq.first_token_ns, seq.last_token_ns
    ttft = first - arrival if first >= 0 else -1
    tpot = (last - first) / (outputs - 1) if outputs > 1 else _NAN
    rows.add(
        seq.queue_ns, ttft, tpot, -1, seq.max_gap_ns, seq.stalled_ns if stalls else -1, arrival, last, seq.index,
        seq.prompt_tokens, outputs, seq.num_preemptions + seq.past_preemptions, seq.recomputed_tokens, seq.cached_tokens,
        int(state), int(reason), seq.request.attempt, seq.request.degraded,
    )  # fmt: skip


def write_absent(
    rows: RowBuffer, index: int, arrival: int, prompt: int, state: RequestState, reason: OutcomeReason, attempt: int = 0
) -> None:
    """A request that no engine ever saw, or none since its replica failed."""
    rows.add(-1, -1, _NAN, -1, -1, -1, arrival, -1, index, prompt, 0, 0, 0, -1, int(state), int(reason), attempt, False)
