"""Taking a running sequence's seat: who, and what becomes of its KV."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from replay_engine.plugins import RunningView
from replay_engine.state import State
from replay_engine.types import BatchPlan, Displaced, SeqState, Sequence

__all__ = ["computed_before", "end_loading", "free_idle", "leave_batch", "make_room", "pick_victim", "preempt", "to_loose"]

_WAIT, _LOOSE, _DECODE, _DRAIN, _GONE, _PAUSED, _SWAPPED, _LOADING = (int(s) for s in list(SeqState)[:8])
_RECOMPUTE, _SWAP, _PAUSE, _EVICTED = (int(d) for d in Displaced)


def computed_before(state: State, seq: Sequence) -> int:
    """Computed tokens before this iteration's share."""
    return state.it - 1 - seq.origin if seq.state == _DECODE else seq.comp


def pick_victim(state: State, order: SequenceOf[Sequence]) -> int:
    """Index in ``order`` of who is preempted where blocks are short."""
    if state.victim is not None:
        return state.victim([_view(state, seq) for seq in order])
    if state.priority:
        return max(range(len(order)), key=lambda k: (order[k].priority, order[k].arrival_order, -k))
    rule = state.rules.preemption.victim
    if rule == "least_progress":
        return max(range(len(order)), key=lambda k: (-_outputs(state, order[k]), order[k].ticket))
    if rule == "most_kv":
        return max(range(len(order)), key=lambda k: (computed_before(state, order[k]), order[k].ticket))
    return max(range(len(order)), key=lambda k: order[k].ticket) if state.decode_first else len(order) - 1


def _outputs(state: State, seq: Sequence) -> int:
    known = computed_before(state, seq) + 1 if seq.state in (_DECODE, _DRAIN) else seq.nt
    return known - seq.prompt_tokens


def _view(state: State, seq: Sequence) -> RunningView:
    comp = computed_before(state, seq)
    blocks = seq.nblocks if seq.state == _LOOSE else state.held(seq, comp)
    return RunningView(seq.request, comp, max(_outputs(state, seq), 0), blocks, seq.num_preemptions)


def to_loose(state: State, seq: Sequence) -> None:
    """A member of the decode set misses this iteration: its counters become explicit, and one granted token makes it join
    again."""
    comp = computed_before(state, seq)
    registered = state.registered(seq, comp)
    held = state.held(seq, comp)
    state.decodes.leave(seq, comp, state.it - 1)
    state.pool.left(seq)
    state.left.append(seq)
    seq.state = _LOOSE
    seq.nt = comp + 1
    seq.chunk = False
    seq.nblocks = held
    seq.nreg = registered
    state.loose[seq.ticket] = seq
    if state.lag and comp // state.size > registered:
        state.late.append(seq)


def preempt(state: State, plan: BatchPlan, seq: Sequence, granted: int, *, for_seat: bool = False) -> None:
    """Take ``seq``'s seat and, but for a pause, its blocks, and put it back in the queue.

    ``granted`` tokens of this iteration are undone, but their blocks were taken and registered before anything was computed,
    so they go with the rest, cached content and all.
    """
    comp = computed_before(state, seq)
    held, registered, was_draining = _make_explicit(state, seq, comp, granted)
    mode = "recompute" if was_draining else state.rules.preemption.mode
    state.unseat(seq)
    seq.ticket = -1
    if not was_draining:  # else its last token is under way: it ends without having to come back
        seq.num_preemptions += 1
    lost, how, copy_ns = comp, _RECOMPUTE, 0
    if mode == "pause" and for_seat:
        lost, how = 0, _PAUSE
        seq.state, seq.comp, seq.nblocks, seq.nreg = _PAUSED, comp, held, registered
        state.paused[seq.index] = seq
    elif mode == "swap" and comp and (out := state.host.put(held)) is not None:
        lost, how, copy_ns = 0, _SWAP, out
        state.pool.release(seq, held, 0, resumes=False)
        seq.state, seq.comp, seq.nblocks = _SWAPPED, comp, held
        plan.link_ns += out
    else:
        _drop(state, seq, comp, held, registered)
    state.waiting.push_preempted(seq)
    plan.preempted = [*plan.preempted, (seq, lost)]
    if how:
        plan.displaced = [*plan.displaced, (seq, how, copy_ns)]


def _make_explicit(state: State, seq: Sequence, comp: int, granted: int) -> tuple[int, int, bool]:
    """Blocks held, blocks registered, and whether only the last token was missing."""
    if seq.state == _LOOSE:
        del state.loose[seq.ticket]
        return seq.nblocks, seq.nreg, False
    draining = seq.state == _DRAIN
    if seq.state == _DECODE:
        state.decodes.leave(seq, comp, state.it - 1)
        state.pool.left(seq)
        state.left.append(seq)
    seq.nt = comp + 1
    return state.held(seq, comp + granted), state.registered(seq, comp + granted), draining


def _drop(state: State, seq: Sequence, comp: int, held: int, registered: int) -> None:
    seq.lost_high = max(seq.lost_high, comp)
    state.pool.release(seq, held, registered, resumes=True)
    seq.state = _WAIT
    seq.comp = 0


def free_idle(state: State, plan: BatchPlan, keep: Sequence | None = None) -> bool:
    """Blocks are short: an ended sequence that only keeps its place in a batch goes, or else the latest paused one (not
    ``keep``) loses
    its KV after all. Whether there was one."""
    if state.gate is not None and state.gate.holding:
        seq = state.gate.holding.pop()
        leave_batch(state, seq)
        if state.gate.whole:
            state.gate.early.append(seq)
        return True
    for seq in reversed(state.paused.values()):
        if seq is not keep:
            del state.paused[seq.index]
            lost = seq.comp
            _drop(state, seq, lost, seq.nblocks, seq.nreg)
            plan.displaced = [*plan.displaced, (seq, _EVICTED, lost)]
            state.memo_head = None
            return True
    return False


def end_loading(state: State) -> None:
    """Copies that are done: their sequences go on where they were."""
    for seq in state.loading:
        if seq.ready_ns <= state.now and seq.state == _LOADING:
            seq.state = _LOOSE
            state.loose[seq.ticket] = seq
    state.loading = [seq for seq in state.loading if seq.state == _LOADING]


def leave_batch(state: State, seq: Sequence) -> None:
    """An ended sequence whose place a batch held frees seat and blocks."""
    state.unseat(seq)
    state.pool.release(seq, state.held(seq, seq.total), seq.total // state.size, resumes=False)
    seq.state = _GONE


def make_room(state: State, plan: BatchPlan) -> None:
    """A waiting head that is strictly more urgent than somebody running may take the place of the least urgent ones."""
    waiting = state.waiting
    while waiting and state.levels:
        head = waiting.head()
        if max(state.levels) <= head.priority or not _lacks_room(state, head):
            return
        victim = _less_urgent(state, head)
        if victim is None:
            return
        preempt(state, plan, victim, 0, for_seat=True)


def _less_urgent(state: State, head: Sequence) -> Sequence | None:
    """The least urgent running one whose place ``head`` may take: it must not come before ``head`` again once it waits."""
    less = [seq for seq in state.running.values() if seq.priority > head.priority and seq.state in (_LOOSE, _DECODE)]
    if not less:
        return None
    last = max(less, key=_urgency)
    if state.waiting.before(head, last):
        return last
    return max((seq for seq in less if state.waiting.before(head, seq)), key=_urgency, default=None)


def _urgency(seq: Sequence) -> tuple[int, float]:
    return seq.priority, seq.arrival_order


def _lacks_room(state: State, head: Sequence) -> bool:
    if len(state.running) >= state.seats:
        return True
    if head.state == _PAUSED:
        return False
    hit, revived = (0, 0) if head.state == _SWAPPED else state.pool.hits(head)
    reserve = state.reserve if state.running else 0
    return max(-(-head.nt // state.size) - hit, 0) + revived + reserve > state.pool.free
