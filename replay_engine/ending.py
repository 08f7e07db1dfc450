"""How sequences leave the engine: with their last token, or before it."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from replay_engine.fetching import drop_fetch, hold, release_held
from replay_engine.handover import GIVE
from replay_engine.preempting import leave_batch
from replay_engine.state import State
from replay_engine.types import SeqState, Sequence

__all__ = ["abort", "conclude", "register_late"]

_WAIT, _LOOSE, _DECODE, _DRAIN, _GONE, _PAUSED, _SWAPPED, _LOADING, _FETCHING, _FETCHED, _HELD = (int(s) for s in SeqState)


def conclude(state: State, finishing: SequenceOf[Sequence]) -> list[Sequence]:
    """Sequences whose last token has come free what they hold; those gone already are left out of the answer."""
    ended = []
    pool, size, levels = state.pool, state.size, state.rules.preemption.to_admit
    for seq in finishing:
        if seq.state == _DRAIN:
            if state.gate is not None:
                state.gate.holding.append(seq)
                if not state.gate.whole:
                    ended.append(seq)
                continue
            ended.append(seq)
            total = seq.total
            if state.lag and not state.counted:
                pool.commit(seq, total)
            if levels:
                state.unseat(seq)
            else:
                del state.running[seq.ticket]
                state.expected -= seq.prompt_tokens + seq.reserved_tokens
            if seq.handover == GIVE:
                hold(state, seq)
                continue
            pool.release(seq, -(-total // size), total // size, resumes=False)
        elif seq.state == _WAIT:
            _forget_waiting(state, seq)
            ended.append(seq)
        else:
            continue
        seq.state = _GONE
    if state.gate is not None and state.gate.over(len(state.running)):
        held = state.gate.take()
        for seq in held:
            leave_batch(state, seq)
        if state.gate.whole:
            ended += [*held, *state.gate.answered_with()]
    return ended


def _forget_waiting(state: State, seq: Sequence) -> None:
    """``seq`` leaves the waiting queue and whatever it kept."""
    state.waiting.remove(seq)
    if state.memo_head is seq:
        state.memo_head = None
    if seq.state == _PAUSED:
        del state.paused[seq.index]
        state.pool.release(seq, seq.nblocks, seq.nreg, resumes=False)
    elif seq.state == _FETCHED:
        state.pool.release(seq, seq.nblocks, seq.nreg, resumes=False)
    elif seq.state == _SWAPPED:
        state.host.drop(seq.nblocks)


def register_late(state: State) -> None:
    """Register the last full block of asynchronous decodes that starved while its last token was in flight."""
    if state.late:
        for seq in state.late:
            if seq.state == _LOOSE:
                state.pool.commit(seq, seq.comp)
        state.late = []


def abort(state: State, seq: Sequence) -> bool:
    """The client is gone: free the blocks at once, between iterations. False if it had already ended."""
    if seq.state == _GONE or (state.gate is not None and seq in state.gate.holding):
        return False
    if seq.state == _HELD:
        return release_held(state, seq)
    if seq.state == _FETCHING:
        drop_fetch(state, seq)
    elif seq.state in (_WAIT, _PAUSED, _SWAPPED, _FETCHED):
        _forget_waiting(state, seq)
    else:
        comp = state.computed(seq)
        held, registered = seq.nblocks, seq.nreg
        if seq.state == _LOOSE:
            del state.loose[seq.ticket]
        elif seq.state == _LOADING:
            state.loading.remove(seq)
        else:
            held, registered = state.held(seq, comp), state.registered(seq, comp)
            if seq.state == _DECODE:
                state.decodes.leave(seq, comp, state.it)
                state.pool.left(seq)
                state.left.append(seq)
        state.unseat(seq)
        state.pool.release(seq, held, registered, resumes=False)
    seq.state = _GONE
    return True
