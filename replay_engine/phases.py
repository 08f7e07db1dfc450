"""Iterations that prefill or decode, never both: prefill first, and n:m in turn.

A decode that is withheld a token leaves the set as one that starved does, so these orders cost O(running) in iterations that
prefill while
others decode. Where only one kind of work exists they are the ordinary pass.
"""

from __future__ import annotations

from replay_engine.admission import admit_waiting
from replay_engine.preempting import to_loose
from replay_engine.state import State
from replay_engine.types import BatchPlan, Refusal, SeqState, Sequence

__all__ = ["phased_pass"]

_DECODE = int(SeqState.DECODE)


def phased_pass(state: State, plan: BatchPlan) -> tuple[list[tuple[Sequence, int]], bool] | None:
    """The grants of an iteration that only prefills, admissions included, and whether it carries prefill; ``None``: this one
    decodes
    (and holds prefill back, if there is any), or there is nothing to keep apart."""
    assert state.turns is not None
    prefills = [seq for _, seq in sorted(state.loose.items()) if seq.chunk]
    decoding = state.decodes.count + len(state.loose) - len(prefills)
    if not decoding or not (prefills or state.waiting):
        return None
    first, then = state.turns
    if state.turn < first:
        grants = _prefill_only(state, plan, prefills)
        if grants:
            _withhold_decodes(state, plan, grants)
            state.turn = (state.turn + 1) % (first + then) if then else 0
            return grants, True
    else:
        state.turn = (state.turn + 1) % (first + then)
    state.hold = True
    return None


def _prefill_only(state: State, plan: BatchPlan, prefills: list[Sequence]) -> list[tuple[Sequence, int]]:
    """Chunks of running prefills, oldest first, as far as budget and free blocks go, then admissions."""
    pool, size, cap = state.pool, state.size, state.cap()
    spare = state.budget - state.reserve_decode
    grants: list[tuple[Sequence, int]] = []
    for seq in prefills:
        left = seq.nt - seq.comp
        tokens = state.aligned(min(cap if 0 < cap < left else left, spare), left)
        blocks = max(-(-(seq.comp + tokens) // size) - seq.nblocks, 0)
        if tokens <= 0 or blocks > pool.free:
            continue
        if blocks:
            pool.grow(seq, blocks)
            seq.nblocks += blocks
        pool.commit(seq, seq.comp + tokens)
        grants.append((seq, tokens))
        spare -= tokens
    if state.waiting:
        admit_waiting(state, plan, spare, grants)
    return grants


def _withhold_decodes(state: State, plan: BatchPlan, grants: list[tuple[Sequence, int]]) -> None:
    served = {seq for seq, _ in grants}
    for seq in [seq for seq in state.running.values() if seq.state == _DECODE]:
        to_loose(state, seq)
    plan.starved = [seq for _, seq in sorted(state.loose.items()) if seq not in served]
    plan.starved_by = int(Refusal.prefill_interval)
