"""vLLM's literal running loop, over the running list, with preemption. O(running), entered only where the fast pass must be left."""

from __future__ import annotations

from replay_engine.state import State
from replay_engine.types import BatchPlan, Refusal, SeqState, Sequence

__all__ = ["walk"]

_WAIT, _LOOSE, _DECODE, _DRAIN = (int(s) for s in (SeqState.WAIT, SeqState.LOOSE, SeqState.DECODE, SeqState.DRAIN))


def walk(state: State, plan: BatchPlan) -> tuple[int, list[tuple[Sequence, int]]]:
    """Grant tokens in list order, preempting victims where blocks are short. Same return as ``running_pass``."""
    plan.walked = True
    order = list(state.running.values())
    granted: dict[Sequence, int] = {}
    preempted: list[tuple[Sequence, int]] = []
    budget, cap, size, pool = state.budget, state.cap(), state.size, state.pool
    i = 0
    while i < len(order) and budget > 0:
        seq = order[i]
        tokens = _wanted(state, seq, cap)
        if tokens == 0:
            i += 1
            continue
        tokens = min(tokens, budget)
        comp = _computed_before(state, seq)
        held = -(-comp // size) if seq.state == _DECODE else seq.nblocks
        need = max(-(-(comp + tokens) // size) - held, 0)
        while need > pool.free:
            at = _victim(state, order)
            victim = order.pop(at)
            i -= at < i
            back = granted.pop(victim, 0)
            budget += back
            preempted.append((victim, _preempt(state, victim, back)))
            if victim is seq:
                break
        else:
            _grant(state, seq, comp, tokens, need)
            granted[seq] = tokens
            budget -= tokens
            i += 1
            continue
        if not state.continue_self:
            break
    if preempted:
        plan.preempted = preempted
    _starve(state, plan, order, granted)
    return (-1 if preempted else budget), [(seq, n) for seq, n in granted.items() if seq.state == _LOOSE]


def _wanted(state: State, seq: Sequence, cap: int) -> int:
    if seq.state == _DECODE:
        return 1
    if seq.state == _DRAIN or (state.hold and seq.chunk):
        return 0
    tokens = seq.nt - seq.comp
    return cap if 0 < cap < tokens else tokens


def _computed_before(state: State, seq: Sequence) -> int:
    """Computed tokens before this iteration's share."""
    return state.it - 1 - seq.origin if seq.state == _DECODE else seq.comp


def _victim(state: State, order: list[Sequence]) -> int:
    if not state.priority:
        return len(order) - 1
    return max(range(len(order)), key=lambda k: (order[k].priority, order[k].arrival_order, -k))


def _grant(state: State, seq: Sequence, comp: int, tokens: int, need: int) -> None:
    pool = state.pool
    if need:
        pool.grow(seq, need)
    if seq.state == _DECODE:
        if (comp + state.fill_offset) % state.size == 0:
            pool.commit(seq, comp + state.fill_offset)
    else:
        state.carried = state.carried or seq.chunk
        seq.nblocks += need
        pool.commit(seq, comp + tokens)


def _preempt(state: State, seq: Sequence, granted: int) -> int:
    """Take ``seq``'s blocks and put it back in the queue; returns the computed tokens it loses.

    ``granted`` tokens of this iteration are undone, but their blocks were taken and registered before anything was computed,
    so they are freed with the rest, cached content and all.
    """
    size = state.size
    comp = _computed_before(state, seq)
    if seq.state == _LOOSE:
        held, registered = seq.nblocks, seq.nreg
        del state.loose[seq.ticket]
    else:
        if seq.state == _DECODE:
            state.decodes.leave(seq, comp)
            state.pool.left(seq)
            state.left.append(seq)
        seq.nt = comp + 1
        held = -(-(comp + granted) // size)
        registered = state.registered(seq, comp + granted)
    seq.lost_high = max(seq.lost_high, comp)
    if seq.state != _DRAIN:  # its last token is under way: it ends without having to come back
        seq.num_preemptions += 1
    del state.running[seq.ticket]
    state.pool.release(seq, held, registered, resumes=True)
    seq.state = _WAIT
    seq.comp = 0
    state.waiting.push_preempted(seq)
    return comp


def _starve(state: State, plan: BatchPlan, order: list[Sequence], granted: dict[Sequence, int]) -> None:
    """Whoever got nothing becomes explicit; one granted token makes a decode join the set again."""
    starved = []
    for seq in order:
        if seq in granted or seq.state == _DRAIN:
            continue
        if seq.state == _DECODE:
            comp = _computed_before(state, seq)
            registered = state.registered(seq, comp)
            state.decodes.leave(seq, comp)
            state.pool.left(seq)
            state.left.append(seq)
            seq.state = _LOOSE
            seq.nt = comp + 1
            seq.chunk = False
            seq.nblocks = -(-comp // state.size)
            seq.nreg = registered
            state.loose[seq.ticket] = seq
            if state.lag and comp // state.size > registered:
                state.late.append(seq)
        starved.append(seq)
    if starved:
        plan.starved = starved
        if state.hold and all(seq.chunk for seq in starved):
            plan.starved_by = int(Refusal.prefill_interval)
