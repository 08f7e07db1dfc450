"""Parts of a coasted iteration: explicit sequences through the running pass, the head's lasting refusal, rows of what changed."""

from __future__ import annotations

from replay_engine.admission import standing_refusal
from replay_engine.arrivals import Calendar
from replay_engine.kv_counted import CountedPool
from replay_engine.kv_traced import TracedPool
from replay_engine.plain_admission import Entry, Fetched
from replay_engine.recorder import Recorder
from replay_engine.rows import RowBuffer
from replay_engine.running import running_pass
from replay_engine.state import State
from replay_engine.types import BatchPlan, Refusal, SeqState, Sequence

__all__ = [
    "NOBODY", "Done", "QueueRow", "after_preemption", "can_coast", "lasting", "may_coast", "next_due", "serve_explicit",
    "write_changes",
]  # fmt: skip

_SEATS, _FULL_ISL, _FREE = int(Refusal.max_num_seqs), int(Refusal.kv_full_isl), int(Refusal.kv_free)
_SWAPPED = int(SeqState.SWAPPED)
Done = tuple[list[Entry], list[Fetched], BatchPlan | None, list[Sequence], int, int, int, int]
"""What ``write_changes`` is told."""
QueueRow = tuple[int, int, int, int]
NOBODY: QueueRow = (0, 0, -1, -1)
"""Of a row: requests waiting, why the head stands refused, the head, and the blocks it wants."""


def can_coast(state: State) -> bool:
    """Whether stretches of iterations follow from sums: blocks are counted, and no batch holds places."""
    return isinstance(state.pool, CountedPool | TracedPool) and state.gate is None


def may_coast(state: State) -> bool:
    """Whether the next iterations may be a stretch: whoever waits enters by the queue's order and vLLM's knobs alone, or nobody
    is explicit and the head stands refused."""
    if state.late or state.stuck:  # a livelock is counted, and told, by the loop
        return False
    if state.plain:
        return bool(state.decodes.count or state.loose or state.waiting)
    if state.loose or state.loading:
        return False
    if not state.waiting:
        return bool(state.decodes.count)
    return bool(state.decodes.count) and standing_refusal(state) is not None


def next_due(events: Calendar, state: State) -> int:
    """When something comes to be known, ns: the next event, or a copy from the host that is done."""
    due = events.due_ns
    for seq in state.loading:
        if seq.ready_ns < due:
            due = seq.ready_ns
    return due


def serve_explicit(state: State, growing: dict[int, Sequence], made: int) -> tuple[BatchPlan, int, list[tuple[Sequence, int]]]:
    """The running list's share of iteration ``state.it``, made at ``made`` (ns), where somebody is explicit or ``growing`` lack
    blocks: a plan with who was passed over or preempted, the budget left (-1 when a preemption closes admission), the grants."""
    if state.shares is not None:
        state.shares.tick, state.shares.now_ns = state.it - 1, made
    plan = BatchPlan()
    plan.iteration = state.it
    spare, grants = running_pass(state, plan, growing)
    return plan, spare, grants


def lasting(state: State, head: Sequence, refused: int, need: int) -> tuple[bool, int]:
    """Whether ``head``, just refused by ``admit_plain``, stays so while members of the decode set take blocks and nothing else
    happens; and, where only more free blocks than that would change it, how many it lacks whatever happens (else 0)."""
    if (refused == _FULL_ISL and state.counted) or (refused == _FREE and head.state == _SWAPPED):
        return True, need - state.reserve
    return refused == _SEATS or (refused == _FULL_ISL and head is state.memo_head), 0


def after_preemption(state: State, before: QueueRow) -> tuple[tuple[bool, int], QueueRow]:
    """Blocks were short in the iteration that was last: ``lasting`` and the row of the head, if it is refused for certain now
    (else ``before``)."""
    refused = standing_refusal(state)
    if refused is None:
        return (False, 0), before
    head = state.waiting.head()
    return lasting(state, head, *refused), (len(state.waiting), refused[0], head.index, refused[1])


def write_changes(
    recorder: Recorder, entered: list[Entry], fetched: list[Fetched], plan: BatchPlan | None, ending: list[Sequence], it: int,
    start: int, end: int, refused: int,
) -> None:  # fmt: skip
    """What iteration ``it``, from ``start`` to ``end`` (ns), did to its members, as rows. ``plan``: of explicit sequences;
    ``refused``: why the head now stands refused."""
    spans = recorder.spans
    if plan is not None and (plan.preempted or plan.starved):
        spans.upset(plan, start)
    recorder.gaps.tick(end - start)
    if entered or fetched or plan is not None:
        spans.entered(entered, it, start, end, fetched, plan)
        if recorder.entry_rows is not None:
            _log_prefills(recorder.entry_rows, entered, it, plan)
    spans.note_refusal(refused)
    if ending:
        spans.finished(ending, it, end)


def _log_prefills(entries: RowBuffer, entered: list[Entry], it: int, plan: BatchPlan | None) -> None:
    """A row for each prompt that was computed in ``it``: those of ``plan``, then those that ``entered``."""
    for entry in plan.prefill if plan is not None else ():
        if not entry.decode:
            entries.add(it, entry.seq.index, entry.query_len, entry.kv_len, entry.recompute)
    for seq, tokens, cached in entered:
        comp, lost = cached + tokens, seq.lost_high
        entries.add(it, seq.index, tokens, comp, min(comp, lost) - cached if lost > cached else 0)
