"""Iterations whose every sequence decodes or enters, replayed without making a plan for each.

What the walk, the running loop's explicit sequences and the rules beyond vLLM's decide is left to the scheduler. Otherwise an
iteration's row follows from the decode set's sums, from how many members grow, from the calendar of finishes and from who
enters, and the loop may ask a predicting executor for its duration directly. Byte for byte the rows are those of the
plan-by-plan loop (a test replays both ways).
"""

from __future__ import annotations

from collections.abc import Callable

from replay_engine.admission import standing_refusal
from replay_engine.advancing import drain
from replay_engine.arrivals import NEVER, Calendar
from replay_engine.ending import conclude
from replay_engine.kv_counted import CountedPool
from replay_engine.kv_traced import TracedPool
from replay_engine.plain_admission import Entry, admit_plain, compute
from replay_engine.queues import FairQueue
from replay_engine.recorder import Recorder
from replay_engine.rows import RowBuffer
from replay_engine.scheduler import Scheduler
from replay_engine.simulator import SimExecutor
from replay_engine.types import Refusal, Sequence

__all__ = ["Coaster", "can_coast"]

_SEATS, _FULL_ISL = int(Refusal.max_num_seqs), int(Refusal.kv_full_isl)
QueueRow = tuple[int, int, int, int]
_NOBODY: QueueRow = (0, 0, -1, -1)
"""Of a row: requests waiting, why the head stands refused, the head, and the blocks it wants."""


class Coaster:
    """Coasts one scheduler on one simulated executor. After ``run``: ``made`` is when the next plan is made, ``start`` when it
    starts, ``owed`` who has ended and holds seat and blocks until the next iteration is decided (asynchronous scheduling).

    ``deliver`` brings what ``events`` has due at a time; ``concluded`` is told who has ended for good. At the horizon of
    ``events`` a stretch ends; ``unwritten`` is then what the last iteration did to its members, to be written by ``settle`` once
    everything due at ``made`` has been delivered.
    """

    __slots__ = (
        "_asynchronous", "_buckets", "_concluded", "_decodes", "_deliver", "_ends", "_entries", "_events",
        "_executor", "_gaps", "_loose", "_pool", "_rows", "_running", "_size", "_spans", "_state", "_usable", "_waiting", "made",
        "owed", "start", "unwritten",
    )  # fmt: skip

    def __init__(
        self, scheduler: Scheduler, executor: SimExecutor, recorder: Recorder, events: Calendar,
        deliver: Callable[[int], None], concluded: Callable[[list[Sequence]], None],
    ) -> None:  # fmt: skip
        state = self._state = scheduler.state
        self._decodes = state.decodes
        self._buckets, self._ends = state.decodes.buckets, state.decodes.calendar
        self._loose, self._running, self._waiting = state.loose, state.running, state.waiting
        assert isinstance(state.pool, CountedPool | TracedPool)
        self._pool, self._size = state.pool, state.size
        self._usable, self._asynchronous = state.usable, bool(state.lag)
        self._executor = executor
        self._rows, self._entries = recorder.iteration_rows, recorder.entry_rows
        self._spans, self._gaps = recorder.spans, recorder.gaps
        self._events, self._deliver, self._concluded = events, deliver, concluded
        self.owed: list[Sequence] = []
        self.made = self.start = 0
        self.unwritten: tuple[list[Entry], list[Sequence], int, int, int, int] | None = None

    def settle(self) -> None:
        """Write what the last stretch has left unwritten."""
        if self.unwritten is not None:
            entered, ending, it, start, end, refused = self.unwritten
            self.unwritten = None
            if entered:
                self._spans.entered(entered, it, start, end)
                if self._entries is not None:
                    _log_entered(self._entries, entered, it)
            self._spans.note_refusal(refused)
            if ending:
                self._spans.finished(ending, it, end)

    def ready(self) -> bool:
        """Whether the next iterations may be a stretch: nobody is explicit, and whoever waits enters by vLLM's knobs alone."""
        state = self._state
        if self._loose or state.loading or state.late:
            return False
        if not self._waiting:
            return bool(self._decodes.count)
        return state.plain or (bool(self._decodes.count) and standing_refusal(state) is not None)

    def run(self, made: int, start: int, owed: list[Sequence]) -> bool:
        """Replay iterations, the first of them made at ``made`` and starting at ``start`` (ns), until one needs the scheduler or
        starts when somebody leaves. ``owed``: who ended in the iteration before. Returns whether anything ran."""
        state, decodes, pool, events, rows, gaps = self._state, self._decodes, self._pool, self._events, self._rows, self._gaps
        waiting, running, loose, buckets, ends = self._waiting, self._running, self._loose, self._buckets, self._ends
        size, usable, asynchronous, executor = self._size, self._usable, self._asynchronous, self._executor
        buffer, width, full, pack, threshold = rows.buffer, rows.size, rows.end, rows.pack, gaps.threshold
        spans, entries, counted = self._spans, self._entries, state.counted
        fixed, floor, per_seq, per_kv, host = executor.decode_terms()
        self.start, self.owed = start, owed
        due, leave, it, first = events.due_ns, events.event_ns, state.it, state.it
        steady, queue_row, until = not waiting, _NOBODY, NEVER
        while True:
            if made >= due:
                if made < events.horizon_ns:
                    self._deliver(made)
                if made >= events.horizon_ns:
                    break
                due, leave = events.due_ns, events.event_ns
                steady, queue_row = not waiting, _NOBODY
            count = decodes.count
            if start >= leave or loose or not (count or waiting):
                break
            standing = None
            if waiting and not state.plain:
                standing = standing_refusal(state)
                if standing is None or not count:
                    break
                steady, queue_row = True, (len(waiting), standing[0], waiting.head().index, standing[1])
                until = waiting.first_until() if isinstance(waiting, FairQueue) else NEVER
            if fixed:
                base = floor + per_seq * count
            else:
                base, per_kv, host = executor.decode_cost(count, len(running), len(state.joined) + len(state.left))
            kv = decodes.kv
            if (
                steady and count and it + 1 not in ends and not owed and (counted or not pool.filling)
                and (fixed or not (state.joined or state.left))
            ):  # fmt: skip
                # The same members decode, nobody ends, and whoever waits goes on waiting for the same reason.
                queued, refused, head, need = queue_row
                free, blank, at, before, duration, stalled = pool.free, pool.blank, rows.at, it, 0, 0
                while made < due and start < leave and it < until and it + 1 not in ends:
                    evicted = 0
                    growing = buckets[(it + 1) % size]
                    if growing:
                        grow = len(growing)
                        if grow > free:
                            break
                        free -= grow
                        blank -= grow
                        if blank < 0:
                            evicted, blank = -blank, 0
                    it += 1
                    kv += count
                    device = round(base + per_kv * kv)
                    if asynchronous:
                        made = start
                        duration = device if device > host else host
                    else:
                        duration = device + host
                        made = start + duration
                    pack(
                        buffer, at, it, start, duration, device, host, kv, usable - free, free - blank, evicted, count, count, 0,
                        0, 0, 0, queued, 0, 0, 0, refused, head, need, 0,
                    )  # fmt: skip
                    start += duration
                    at += width
                    if at == full:
                        rows.at = at
                        rows.flush()
                        at = 0
                    if threshold is not None and duration > threshold:
                        stalled += duration - threshold
                if it > before:
                    rows.at = at
                    if free != pool.free:
                        pool.take(pool.free - free)
                        state.evicted = pool.evicted
                    state.it, decodes.kv = it, kv
                    if state.joined or state.left:
                        state.joined, state.left = [], []
                    spans.note_refusal(refused)
                    gaps.pass_over(duration, stalled)  # the last one is the longest: they grow with the KV
                    if made >= due or start >= leave or until != NEVER:
                        continue
            # An iteration that changes the set: members came or went before it, enter, or end in it.
            growing = buckets[(it + 1) % size]
            if len(growing) > pool.free:
                break
            it = state.it = it + 1
            if not counted and pool.filling:
                pool.advance(growing, buckets[(it + state.fill_offset) % size], it, ())
            elif growing:
                pool.take(len(growing))
            kv += count
            tokens = qk = again = hit = need = refused = 0
            entered: list[Entry] = []
            if standing is not None:
                refused, need = standing
            elif waiting:
                entered, refused, need, _ = admit_plain(state, state.budget - count)
                if not count and not entered:
                    state.it = it - 1
                    break
            decodes.kv = kv
            changes = len(state.joined) + len(state.left)
            if changes:
                state.joined, state.left = [], []
            ending = drain(state, it) if it in ends else []
            if entered:
                tokens, qk, again, hit = compute(state, entered, it, ending)
                duration, device, host = executor.predict(tokens, qk, count, kv, len(running), changes)
            else:
                device = round(base + per_kv * kv)
                duration = device + host if not asynchronous else device if device > host else host
            end = self.start = start + duration
            if duration > gaps.since:
                gaps.since = duration
            if threshold is not None and duration > threshold:
                gaps.stalled += duration - threshold
            free, evicted = pool.free, pool.evicted - state.evicted
            queue_row = (len(waiting), refused, waiting.head().index, need) if refused else _NOBODY
            pack(
                buffer, rows.at, it, start, duration, device, host, kv, usable - free, free - pool.blank, evicted, count,
                len(running), qk, tokens, again, len(entered), queue_row[0], 0, len(entered), len(ending), refused, queue_row[2],
                queue_row[3], hit,
            )  # fmt: skip
            rows.at += width
            if rows.at == full:
                rows.flush()
            if evicted:
                state.evicted = pool.evicted
            steady = not refused or refused == _SEATS or (refused == _FULL_ISL and counted)
            if asynchronous:
                made = start
                if owed:
                    self._concluded(conclude(state, owed))
                    steady, due, leave = not waiting, events.due_ns, events.event_ns
                owed = ending
                if made >= due and (entered or ending):  # what comes now is known before the iteration under way has ended
                    if made < events.horizon_ns:
                        self._deliver(made)
                    if made >= events.horizon_ns:
                        self.unwritten = (entered, ending, it, start, end, refused)
                        start = end
                        break
                    due, leave = events.due_ns, events.event_ns
                    steady, queue_row = not waiting, _NOBODY
            else:
                made = end
            if entered:
                spans.entered(entered, it, start, end)
                if entries is not None:
                    _log_entered(entries, entered, it)
            start = end
            spans.note_refusal(refused)
            if ending:
                spans.finished(ending, it, end)
                if not asynchronous:
                    self._concluded(conclude(state, ending))
                    steady, due, leave = not waiting, events.due_ns, events.event_ns
        self.made, self.start, self.owed = made, start, owed
        ran = state.it - first
        state.executed += ran
        state.suspended = state.suspended and not ran  # where the prefill cadence counts, nobody waited
        return ran > 0


def can_coast(scheduler: Scheduler) -> bool:
    """Whether stretches of ``scheduler`` follow from sums: blocks are counted, and no batch holds places."""
    return isinstance(scheduler.state.pool, CountedPool | TracedPool) and scheduler.state.gate is None


def _log_entered(entries: RowBuffer, entered: list[Entry], it: int) -> None:
    for seq, tokens, cached in entered:
        comp, lost = cached + tokens, seq.lost_high
        entries.add(it, seq.index, tokens, comp, min(comp, lost) - cached if lost > cached else 0)
