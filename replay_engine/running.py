"""The running loop's fast pass: explicit sequences one by one, the decode set by its sums.

It is left for the literal walk exactly when it could not prove the walk's outcome: an explicit sequence wants more than what
is left while a
decode may stand behind it, or growth plus prefill blocks exceed the free ones. Nothing is freed in the running loop except by
preemption
and grants do not depend on blocks, so otherwise nobody is preempted and no decode starves. (Decodes alone never exceed the
budget:
every member got a token in the iteration before.)
"""

from __future__ import annotations

from replay_engine.kv_counted import Grant
from replay_engine.state import State
from replay_engine.types import BatchPlan, Refusal, Sequence
from replay_engine.walk import walk

__all__ = ["running_pass"]

_INTERVAL = int(Refusal.prefill_interval)


def running_pass(state: State, plan: BatchPlan, due: dict[int, Sequence]) -> tuple[int, list[tuple[Sequence, int]]]:
    """Decide the running list's share of this iteration.

    Returns the budget left for admission (-1 when a preemption closes it) and the explicit grants in running order.
    """
    decodes, pool = state.decodes, state.pool
    found = _grants(state, plan) if len(due) <= pool.free else None
    if found is None:
        return walk(state, plan)
    spare, taken, need = found
    if len(due) + need > pool.free:
        plan.starved = ()
        return walk(state, plan)
    it = state.it
    pool.advance(due, decodes.buckets[(it + state.fill_offset) % state.size], it, taken)
    return spare, [(seq, tokens) for seq, tokens, _ in taken]


def _grants(state: State, plan: BatchPlan) -> tuple[int, list[Grant], int] | None:
    """What is left of the budget, each explicit sequence's share of it with the blocks it takes, and these in all; ``None``:
    walk."""
    decodes, size, cap, need = state.decodes, state.size, state.cap() if state.threshold else 0, 0
    spare = state.budget - decodes.count
    kept = state.reserve_decode - decodes.count
    taken: list[Grant] = []
    passed: list[Sequence] = []
    for ticket, seq in _in_order(state.loose, state.decode_first):
        left = tokens = seq.nt - seq.comp
        if 0 < cap < tokens:
            tokens = cap
        if state.hold and seq.chunk:
            passed.append(seq)
            continue
        room = spare - kept if kept > 0 and seq.chunk else spare
        if tokens > room:
            if ticket < decodes.newest and not state.decode_first:
                return None
            tokens = max(room, 0)
        if seq.chunk and tokens < left:
            tokens -= tokens % state.align
        if not tokens:
            passed.append(seq)
            continue
        blocks = max(-(-(seq.comp + tokens) // size) - seq.nblocks, 0)
        taken.append((seq, tokens, blocks))
        need += blocks
        spare -= tokens
    if passed:
        plan.starved = passed
        if state.hold:
            plan.starved_by = _INTERVAL
    return spare, taken, need


def _in_order(loose: dict[int, Sequence], decode_first: bool) -> list[tuple[int, Sequence]]:
    if len(loose) < 2:
        return list(loose.items())
    if decode_first:
        return sorted(loose.items(), key=lambda entry: (entry[1].chunk, entry[0]))
    return sorted(loose.items())
