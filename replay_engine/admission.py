"""The waiting loop: strict head-of-line admission, and why the head was refused."""

from __future__ import annotations

from replay_engine.state import State
from replay_engine.types import BatchPlan, Refusal, SeqState, Sequence

__all__ = ["admit_waiting"]

_LOOSE = int(SeqState.LOOSE)
_BUDGET, _SEATS, _INTERVAL, _WHOLE = (
    int(r) for r in (Refusal.token_budget, Refusal.max_num_seqs, Refusal.prefill_interval, Refusal.no_chunking)
)
_FREE, _FULL_ISL, _WATERMARK = int(Refusal.kv_free), int(Refusal.kv_full_isl), int(Refusal.kv_watermark)


def admit_waiting(state: State, plan: BatchPlan, spare: int, grants: list[tuple[Sequence, int]]) -> bool:
    """Admit from the head of the queue while ``spare`` budget, seats and blocks last; appends to ``grants``.

    Sets the plan's refusal. Returns whether an admitted sequence still had more than one token to compute
    (what the prefill cadence counts as prefill).
    """
    waiting, running, pool, size = state.waiting, state.running, state.pool, state.size
    cap = state.cap() if state.threshold else 0
    admitted: list[tuple[Sequence, int, bool]] = []
    carries = False
    while waiting:
        if spare <= 0:
            plan.refused_by, plan.refused = _BUDGET, waiting.head()
            break
        if len(running) >= state.seats:
            plan.refused_by, plan.refused = _SEATS, waiting.head()
            break
        seq = waiting.head()
        reserve = state.reserve if running else 0
        if seq is state.memo_head and _still_blocked(state, reserve):
            plan.refused_by, plan.refused, plan.refused_need = _FULL_ISL, seq, state.memo_lack + reserve
            plan.refused_again = True
            break
        hit, revived = pool.hits(seq)
        cached = hit * size
        left = seq.nt - cached
        if state.hold and left > 1:
            plan.refused_by, plan.refused = _INTERVAL, seq
            break
        tokens = cap if 0 < cap < left else left
        if not state.chunked and tokens > spare:
            plan.refused_by, plan.refused = _WHOLE, seq
            break
        tokens = min(tokens, spare)
        need = max(-(-(cached + tokens) // size) - hit, 0)
        reason, lack = _refusal(state, seq, hit, revived, need, reserve)
        if reason:
            plan.refused_by, plan.refused, plan.refused_need = reason, seq, lack + reserve
            _remember(state, seq, lack, reason)
            break
        waiting.pop()
        state.memo_head = None
        _enter(state, seq, cached, tokens, need)
        admitted.append((seq, cached, seq.num_preemptions > 0))
        grants.append((seq, tokens))
        spare -= tokens
        carries = carries or left > 1
    if admitted:
        plan.admitted = admitted
        plan.hit_tokens = sum(entry[1] for entry in admitted)
    return carries


def _refusal(state: State, seq: Sequence, hit: int, revived: int, need: int, reserve: int) -> tuple[int, int]:
    """Why the head does not fit (0: it does), and the blocks it lacks room for."""
    free = state.pool.free
    if state.full_isl:
        whole = max(-(-seq.nt // state.size) - hit, 0) + revived
        if whole + reserve > free:
            return (_FULL_ISL if whole > free else _WATERMARK), whole
    need += revived
    if need + reserve > free:
        return (_FREE if need > free else _WATERMARK), need
    return 0, 0


def _remember(state: State, seq: Sequence, lack: int, reason: int) -> None:
    """While the same head stays blocked its in-use hits rise only by a registration or by the promotion of a duplicate."""
    if reason == _FULL_ISL and not state.hold and state.chunked:
        state.memo_head = seq
        state.memo_lack = lack
        state.memo_changes = state.pool.changes


def _still_blocked(state: State, reserve: int) -> bool:
    """Whether the remembered head is refused for certain, without a lookup (it would walk the prompt's whole chain)."""
    return bool(state.running) and not state.hold and state.memo_lack - (state.pool.changes - state.memo_changes) > state.pool.free


def _enter(state: State, seq: Sequence, cached: int, tokens: int, need: int) -> None:
    pool = state.pool
    pool.adopt(seq)
    if need:
        pool.grow(seq, need)
        seq.nblocks += need
    seq.comp = cached
    seq.cached_tokens = max(seq.cached_tokens, 0) + max(cached - seq.lost_high, 0)
    pool.commit(seq, cached + tokens)
    ticket = seq.ticket = state.next_ticket
    state.next_ticket = ticket + 1
    seq.state = _LOOSE
    seq.chunk = True
    state.running[ticket] = seq
    state.loose[ticket] = seq
