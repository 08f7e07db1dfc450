"""A sequence's KV between two engines: blocks kept for it where it was computed, blocks taken for it where it is needed."""

from __future__ import annotations

from replay_engine.handover import FETCH, FetchedFirst
from replay_engine.state import State
from replay_engine.types import BatchPlan, Refusal, SeqState, Sequence

__all__ = [
    "blocks_by_holder",
    "come_in",
    "drop_fetch",
    "fetch_arrived",
    "fetch_lost",
    "fetch_refused",
    "hold",
    "release_held",
    "start_fetch",
]

_WAIT, _LOOSE, _GONE, _FETCHING, _FETCHED, _HELD = (
    int(s) for s in (SeqState.WAIT, SeqState.LOOSE, SeqState.GONE, SeqState.FETCHING, SeqState.FETCHED, SeqState.HELD)
)
_FULL_ISL, _WATERMARK = int(Refusal.kv_full_isl), int(Refusal.kv_watermark)


def hold(state: State, seq: Sequence) -> None:
    """``seq`` has computed its prompt and left the running list: its blocks stay until ``release_held``."""
    handover = state.handover
    assert handover is not None
    size = state.size
    seq.nblocks, seq.nreg = -(-seq.total // size), seq.total // size
    seq.state = _HELD
    handover.held[seq.index] = seq


def release_held(state: State, seq: Sequence) -> bool:
    """Nobody needs the KV of ``seq`` here any more. What of it is cached stays so. False if it held nothing."""
    handover = state.handover
    if handover is None or handover.held.get(seq.index) is not seq:
        return False
    del handover.held[seq.index]
    state.pool.release(seq, seq.nblocks, seq.nreg, resumes=False)
    seq.state = _GONE
    return True


def fetch_refused(state: State, seq: Sequence) -> tuple[int, int] | None:
    """Whether the blocks for the whole prompt of the head are free, but for what the cache here has of it.

    ``None``: they are; else why not (a ``Refusal`` code), and the blocks wanted, reserve included.
    """
    hit, revived = state.pool.hits(seq)
    need = -(-seq.nt // state.size) - hit + revived
    reserve = state.reserve if state.running else 0
    if need + reserve <= state.pool.free:
        return None
    return (_WATERMARK if need <= state.pool.free else _FULL_ISL), need + reserve


def start_fetch(state: State, plan: BatchPlan, seq: Sequence) -> None:
    """The head leaves the queue with blocks for its prompt, and without a seat; its KV is asked for when the plan starts."""
    handover, pool = state.handover, state.pool
    assert handover is not None
    state.waiting.pop()
    state.memo_head = None
    pool.adopt(seq)
    seq.fetch_hit = seq.nblocks
    need = -(-seq.nt // state.size) - seq.nblocks
    if need > 0:
        pool.grow(seq, need)
        seq.nblocks += need
    if state.shares is not None and seq.ready_ns < 0:
        state.shares.admitted(seq)
    seq.ready_ns = state.now
    seq.state = _FETCHING
    handover.fetching[seq.index] = seq
    plan.fetching = [*plan.fetching, seq]


def fetch_arrived(state: State, seq: Sequence) -> None:
    """The KV of ``seq`` is here: it stands for a seat, with its last known token still to compute."""
    handover = state.handover
    assert handover is not None and isinstance(state.waiting, FetchedFirst)
    del handover.fetching[seq.index]
    seq.comp = seq.nt - 1
    state.pool.commit(seq, seq.prompt_tokens)
    seq.state = _FETCHED
    state.waiting.push_fetched(seq)


def fetch_lost(state: State, seq: Sequence, *, again: bool) -> None:
    """The KV of ``seq`` will not come: its blocks are given back, and it waits as one that computes its own prompt, or
    (``again``) as one whose KV is to be fetched."""
    handover = state.handover
    assert handover is not None
    if seq.state == _FETCHING:
        drop_fetch(state, seq)
        state.waiting.push_preempted(seq)
    seq.handover = FETCH if again else 0
    seq.chunk = True
    if state.memo_head is seq:
        state.memo_head = None


def drop_fetch(state: State, seq: Sequence) -> None:
    """The blocks that ``seq`` took for its KV are free again; it stands nowhere."""
    assert state.handover is not None
    del state.handover.fetching[seq.index]
    state.pool.release(seq, seq.nblocks, seq.nreg, resumes=False)
    seq.state, seq.comp = _WAIT, 0


def come_in(state: State, seq: Sequence) -> None:
    """``seq``, whose KV has come, takes its seat and computes its last known token, for which it has a block already."""
    state.pool.commit(seq, seq.nt)
    state.seat(seq)
    seq.state = _LOOSE
    seq.handover = 0
    seq.chunk = seq.nt == seq.prompt_tokens
    state.loose[seq.ticket] = seq


def blocks_by_holder(state: State) -> dict[str, int]:
    """Who holds the pool's blocks. Costs O(sequences). Shared blocks count once for each of those who hold them."""
    running = 0
    for seq in state.running.values():
        explicit = seq.state == _LOOSE or seq.state == int(SeqState.LOADING)
        running += seq.nblocks if explicit else state.held(seq, state.computed(seq))
    found = {
        "running": running,
        "paused": sum(seq.nblocks for seq in state.paused.values()),
        "transfer": 0,
        "awaiting_transfer": 0,
        "cached": state.pool.free - state.pool.blank,
        "free": state.pool.blank,
    }
    if state.handover is not None:
        fetched = [seq for seq in state.waiting.in_order() if seq.state == _FETCHED]
        found["transfer"] = sum(seq.nblocks for seq in [*state.handover.fetching.values(), *fetched])
        found["awaiting_transfer"] = sum(seq.nblocks for seq in state.handover.held.values())
    return found
