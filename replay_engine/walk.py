"""vLLM's literal running loop, over the running list, with preemption: entered only where the fast pass must be left."""

from __future__ import annotations

from replay_engine.preempting import computed_before, free_idle, pick_victim, preempt, to_loose
from replay_engine.state import State
from replay_engine.types import BatchPlan, Refusal, SeqState, Sequence

__all__ = ["walk"]

_LAST = ("engine", "last")
_LOOSE, _DECODE, _DRAIN, _LOADING = (int(s) for s in (SeqState.LOOSE, SeqState.DECODE, SeqState.DRAIN, SeqState.LOADING))


def walk(state: State, plan: BatchPlan) -> tuple[int, list[tuple[Sequence, int]]]:
    """Grant tokens in list order, preempting victims where blocks are short. Same return as ``running_pass``."""
    plan.walked = True
    if _only_growth(state):
        return _walk_growth(state, plan)
    order = _visited(state)
    granted: dict[Sequence, int] = {}
    budget, cap, pool = state.budget, state.cap(), state.pool
    i, before = 0, len(plan.preempted)
    while i < len(order) and budget > 0:
        seq = order[i]
        tokens = _wanted(state, seq, cap, budget)
        if tokens == 0:
            i += 1
            continue
        comp = computed_before(state, seq)
        held = seq.nblocks if seq.state == _LOOSE else state.held(seq, comp)
        need = max(-(-(comp + tokens) // state.size) - held, 0)
        while need > pool.free and not free_idle(state, plan):
            at = pick_victim(state, order)
            victim = order.pop(at)
            i -= at < i
            back = granted.pop(victim, 0)
            budget += back
            preempt(state, plan, victim, back)
            if victim is seq:
                break
        if seq.ticket < 0:
            if not state.continue_self:
                break
            continue
        if need > pool.free:
            continue
        _grant(state, seq, comp, tokens, need)
        granted[seq] = tokens
        budget -= tokens
        i += 1
    _starve(state, plan, order, granted)
    shut = len(plan.preempted) > before
    return (-1 if shut else budget), [(seq, n) for seq, n in granted.items() if seq.state == _LOOSE]


def _visited(state: State) -> list[Sequence]:
    order = list(state.running.values())
    # no victims: their KV is on its way, their batch holds them, or their KV is awaited elsewhere
    if state.loading or state.gate is not None or (state.handover is not None and not state.handover.decode):
        order = [seq for seq in order if seq.state in (_LOOSE, _DECODE)]
    if state.decode_first:
        order.sort(key=lambda seq: seq.state == _LOOSE and seq.chunk)
    return order


def _only_growth(state: State) -> bool:
    """Whether everybody in the running list gets one token, and the last one in it is the victim: then only those that grow or
    fill a block, the explicit ones, and the victims, have to be looked at."""
    if state.loading or state.gate is not None or state.priority or state.victim is not None:
        return False
    if state.decode_first or state.rules.preemption.victim not in _LAST:
        return False
    if state.loose:
        if state.handover is not None:
            return False
        for seq in state.loose.values():
            if seq.chunk or seq.nt - seq.comp != 1:
                return False
    return state.decodes.count + len(state.loose) <= state.budget


def _walk_growth(state: State, plan: BatchPlan) -> tuple[int, list[tuple[Sequence, int]]]:
    """The walk over those alone, in running order. Victims stand behind whoever needs a block: none has been served yet."""
    pool, it, size, loose = state.pool, state.it, state.size, state.loose
    due = state.growth()
    filling = {} if state.counted else state.decodes.buckets[(it + state.fill_offset) % size]
    granted: list[tuple[Sequence, int]] = []
    shut = False
    for ticket in sorted(due.keys() | filling.keys() | loose.keys() if filling or loose else due):
        seq = state.running.get(ticket)
        if seq is None:
            break
        explicit = ticket in loose
        if ticket in due or (explicit and seq.nblocks * size <= seq.comp):
            while not pool.free and not free_idle(state, plan):
                shut = True
                victim = next(reversed(state.running.values()))
                preempt(state, plan, victim, 0)
                if victim is seq:
                    return -1, granted
            if not explicit:
                pool.grow(seq, 1)
        if explicit:
            _grant(state, seq, seq.comp, 1, int(seq.nblocks * size <= seq.comp))
            granted.append((seq, 1))
        elif ticket in filling:
            pool.commit(seq, it - 1 - seq.origin + state.fill_offset)
    return (-1 if shut else state.budget - state.decodes.count - len(granted)), granted


def _wanted(state: State, seq: Sequence, cap: int, budget: int) -> int:
    if seq.state == _DECODE:
        return 1
    if seq.state in (_DRAIN, _LOADING) or (state.hold and seq.chunk):
        return 0
    left = seq.nt - seq.comp
    tokens = cap if 0 < cap < left else left
    if not seq.chunk:
        return min(tokens, budget)
    return state.aligned(min(tokens, max(budget - state.reserve_decode, 0)), left)


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


def _starve(state: State, plan: BatchPlan, order: list[Sequence], granted: dict[Sequence, int]) -> None:
    """Whoever got nothing becomes explicit."""
    starved = []
    for seq in order:
        if seq in granted or seq.state in (_DRAIN, _LOADING):
            continue
        if seq.state == _DECODE:
            to_loose(state, seq)
        starved.append(seq)
    if starved:
        plan.starved = starved
        if state.hold and all(seq.chunk for seq in starved):
            plan.starved_by = int(Refusal.prefill_interval)
