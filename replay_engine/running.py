"""The running loop's fast pass: explicit sequences one by one, the decode set by its sums.

It is left for the literal walk exactly when it could not prove the walk's outcome: decodes exceed the budget, an explicit sequence wants
more than what is left while a decode may stand behind it, or growth plus prefill blocks exceed the free ones. Nothing is freed in the
running loop except by preemption and grants do not depend on blocks, so otherwise nobody is preempted and no decode starves.
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
    decodes, pool, size = state.decodes, state.pool, state.size
    spare = state.budget - decodes.count
    if spare < 0 or len(due) > pool.free:
        return walk(state, plan)
    cap = state.cap()
    need = len(due)
    taken: list[Grant] = []
    passed: list[Sequence] = []
    for ticket, seq in _in_order(state.loose):
        tokens = seq.nt - seq.comp
        if 0 < cap < tokens:
            tokens = cap
        if state.hold and seq.chunk:
            passed.append(seq)
            continue
        if tokens > spare:
            if ticket < decodes.newest:
                return walk(state, plan)
            tokens = spare
            if not tokens:
                passed.append(seq)
                continue
        blocks = -(-(seq.comp + tokens) // size) - seq.nblocks
        if blocks < 0:
            blocks = 0
        need += blocks
        taken.append((seq, tokens, blocks))
        spare -= tokens
    if need > pool.free:
        return walk(state, plan)
    it = state.it
    pool.advance(due, decodes.buckets[(it + state.fill_offset) % size], it, taken)
    if passed:
        plan.starved = passed
        if state.hold:
            plan.starved_by = _INTERVAL
    return spare, [(seq, tokens) for seq, tokens, _ in taken]


def _in_order(loose: dict[int, Sequence]) -> list[tuple[int, Sequence]]:
    return sorted(loose.items()) if len(loose) > 1 else list(loose.items())
