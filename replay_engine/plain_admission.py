"""The waiting loop under vLLM's knobs alone, in one pass: what ``admission`` decides where no rule beyond them is in force."""

from __future__ import annotations

from replay_engine.state import State
from replay_engine.types import BatchPlan, Refusal, SeqState, Sequence

__all__ = ["Entry", "Fetched", "admit_into", "admit_plain", "compute"]

Entry = tuple[Sequence, int, int]
"""A sequence that has just got seat and blocks, the tokens it computes in this iteration, and those the prefix cache gave."""
Fetched = tuple[Sequence, int]
"""A sequence that has just got seat and blocks for KV on its way back from the host, and its copy's time on the link, ns."""

_LOOSE, _DRAIN, _SWAPPED, _LOADING = (int(s) for s in (SeqState.LOOSE, SeqState.DRAIN, SeqState.SWAPPED, SeqState.LOADING))
_BUDGET, _SEATS, _WHOLE = int(Refusal.token_budget), int(Refusal.max_num_seqs), int(Refusal.no_chunking)
_FREE, _FULL_ISL, _WATERMARK = int(Refusal.kv_free), int(Refusal.kv_full_isl), int(Refusal.kv_watermark)


def admit_plain(state: State, spare: int, fetched: list[Fetched]) -> tuple[list[Entry], int, int, Sequence | None, bool]:
    """Admit from the head of the queue while ``spare`` budget, seats and blocks last (``State.plain`` holds).

    Returns who entered, why the head now stands refused (a ``Refusal`` code, 0: nobody waits), the blocks it wants, reserve
    included, the head, and whether that is known from an earlier look. Whoever entered is not in ``State.loose``: most have
    nothing left after this iteration. Those whose KV has to come back from the host are added to ``fetched``: they compute
    nothing yet.
    """
    waiting, running, pool, size, shares = state.waiting, state.running, state.pool, state.size, state.shares
    counted = state.counted
    cap = state.cap() if state.threshold else 0
    entered: list[Entry] = []
    hit = revived = 0
    while waiting:
        if spare <= 0:
            return entered, _BUDGET, 0, waiting.head(), False
        if len(running) >= state.seats:
            return entered, _SEATS, 0, waiting.head(), False
        seq = waiting.head()
        free = pool.free
        reserve = state.reserve if running else 0
        if seq is state.memo_head and running and state.memo_lack - (pool.changes - state.memo_changes) > free:
            return entered, _FULL_ISL, state.memo_lack + state.reserve, seq, True
        if seq.state == _SWAPPED:
            need = seq.nblocks + reserve
            if need > free:
                return entered, (_FREE if seq.nblocks > free else _WATERMARK), need, seq, False
            fetched.append(_fetch(state, seq))
            continue
        nt = seq.nt
        if not counted:
            hit, revived = pool.hits(seq)
        cached = hit * size
        left = tokens = nt - cached
        if 0 < cap < tokens:
            tokens = cap
        if tokens > spare:
            if not state.chunked:
                return entered, _WHOLE, 0, seq, False
            tokens = spare
        whole = -(-nt // size) - hit + revived
        if whole + reserve > free and state.full_isl:
            if whole <= free:
                return entered, _WATERMARK, whole + reserve, seq, False
            if state.chunked:
                state.memo_head, state.memo_lack, state.memo_changes = seq, whole, pool.changes
            return entered, _FULL_ISL, whole + reserve, seq, False
        need = whole if tokens == left else -(-(cached + tokens) // size) - hit + revived
        if need + reserve > free:
            return entered, (_FREE if need > free else _WATERMARK), need + reserve, seq, False
        waiting.pop()
        state.memo_head = None
        if counted:
            pool.grow(seq, need)
            seq.nblocks = need
        else:
            _take(state, seq, need - revived, cached + tokens)
        seq.comp = cached
        if shares is not None and seq.cached_tokens < 0:
            shares.admitted(seq)
        seq.cached_tokens = max(seq.cached_tokens, 0) + max(cached - seq.lost_high, 0)
        ticket = seq.ticket = state.next_ticket
        state.next_ticket = ticket + 1
        running[ticket] = seq
        state.expected += seq.prompt_tokens
        seq.state = _LOOSE
        seq.chunk = True
        entered.append((seq, tokens, cached))
        spare -= tokens
    return entered, 0, 0, None, False


def admit_into(state: State, plan: BatchPlan, spare: int, grants: list[tuple[Sequence, int]]) -> None:
    """``admit_plain`` into a plan and its grants."""
    fetched: list[Fetched] = []
    entered, plan.refused_by, plan.refused_need, plan.refused, plan.refused_again = admit_plain(state, spare, fetched)
    if entered:
        plan.admitted = [(seq, cached, seq.num_preemptions > 0) for seq, _, cached in entered]
        plan.hit_tokens = sum(cached for _, _, cached in entered)
        grants += [(seq, tokens) for seq, tokens, _ in entered]
    if fetched:
        both = [*plan.admitted, *((seq, 0, True) for seq, _ in fetched)]
        plan.admitted = sorted(both, key=_ticket_of_first)
        plan.loading = [*plan.loading, *fetched]


def _ticket_of_first(entry: tuple[Sequence, int, bool]) -> int:
    return entry[0].ticket


def _fetch(state: State, seq: Sequence) -> Fetched:
    """The head, whose KV is on the host, takes seat and blocks again."""
    state.waiting.pop()
    state.memo_head = None
    state.seat(seq)
    state.pool.grow(seq, seq.nblocks)
    seq.ready_ns, cost = state.host.fetch(seq.nblocks, state.now)
    seq.state = _LOADING
    state.loading.append(seq)
    return seq, cost


def _take(state: State, seq: Sequence, fresh: int, tokens: int) -> None:
    pool = state.pool
    pool.adopt(seq)
    if fresh > 0:
        pool.grow(seq, fresh)
        seq.nblocks += fresh
    pool.commit(seq, tokens)


def compute(state: State, entered: list[Entry], it: int, ending: list[Sequence]) -> tuple[int, int, int, int]:
    """Whoever entered computes its share in ``it``: most decode from here; who is done is added to ``ending``.

    Returns tokens, their attention work, how many of them are recomputed, and what the cache gave.
    """
    computed = qk = recomputed = hit = 0
    shares = state.shares
    for seq, tokens, cached in entered:
        comp = seq.comp = cached + tokens
        computed += tokens
        hit += cached
        qk += tokens * cached + tokens * tokens // 2
        if seq.lost_high > cached:
            again = min(comp, seq.lost_high) - cached
            recomputed += again
            seq.recomputed_tokens += again
        if comp < seq.nt:
            state.loose[seq.ticket] = seq
            continue
        if shares is not None:
            shares.sampled(seq, it, comp != seq.total)
        seq.chunk = False
        if comp == seq.total:
            seq.state = _DRAIN
            ending.append(seq)
        else:
            state.decodes.join(seq, it)
            if not state.counted:
                state.pool.joined(seq)
            state.joined.append(seq)
    return computed, qk, recomputed, hit
