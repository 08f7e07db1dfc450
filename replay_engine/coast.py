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

    ``deliver`` brings what ``events`` has due at a time; ``concluded`` is told who has ended for good.
    """

    __slots__ = (
        "_asynchronous", "_buckets", "_concluded", "_decodes", "_deliver", "_ends", "_entries", "_events",
        "_executor", "_gaps", "_loose", "_pool", "_rows", "_running", "_size", "_spans", "_state", "_usable", "_waiting", "made",
        "owed", "start",
    )  # fmt: skip

    def __init__(
        self,
        scheduler: Scheduler,
        executor: SimExecutor,
        recorder: Recorder,
        events: Calendar,
        deliver: Callable[[int], None],
        concluded: Callable[[list[Sequence]], None],
    ) -> None:
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
        state, decodes, pool, events, rows = self._state, self._decodes, self._pool, self._events, self._rows
        waiting, running, loose, buckets, ends = self._waiting, self._running, self._loose, self._buckets, self._ends
        size, usable, asynchronous, predict = self._size, self._usable, self._asynchronous, self._executor.predict
        entries, tick, counted, ignored = self._entries, self._gaps.tick, state.counted, not self._executor.change_ns
        finished, note_refusal = self._spans.finished, self._spans.note_refusal
        self.made, self.start, self.owed = made, start, owed
        due, leave, it, first = events.due_ns, events.event_ns, state.it, state.it
        steady, queue_row, until = not waiting, _NOBODY, NEVER
        while True:
            if made >= due:
                self._deliver(made)
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
            if (
                steady and count and it + 1 not in ends and not owed and not pool.filling
                and (ignored or not (state.joined or state.left))
            ):  # fmt: skip
                made, start = self._plain(made, start, due, leave, until, queue_row)
                ran, it = state.it > it, state.it
                if made >= due or start >= leave or (ran and until != NEVER):
                    continue
            it += 1
            growing = buckets[it % size]
            if len(growing) > pool.free:
                break
            state.it = it
            if pool.filling:
                pool.advance(growing, buckets[(it + state.fill_offset) % size], it, ())
            elif growing:
                pool.take(len(growing))
            kv = decodes.kv + count
            tokens = qk = again = hit = need = refused = 0
            entered: list[Entry] = []
            ending: list[Sequence] = []
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
            if it in ends:
                ending = drain(state, it)
            if entered:
                tokens, qk, again, hit = compute(state, entered, it, ending)
            duration, device, host = predict(tokens, qk, count, kv, len(running), changes)
            end = self.start = start + duration
            tick(duration)
            free, evicted = pool.free, pool.evicted - state.evicted
            queue_row = (len(waiting), refused, waiting.head().index, need) if refused else _NOBODY
            rows.add(
                it, start, duration, device, host, kv, usable - free, free - pool.blank, evicted, count, len(running), qk, tokens,
                again, len(entered), queue_row[0], 0, len(entered), len(ending), refused, queue_row[2], queue_row[3], hit,
            )  # fmt: skip
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
                    self._deliver(made)
                    due, leave = events.due_ns, events.event_ns
                    steady, queue_row = not waiting, _NOBODY
            else:
                made = end
            start = end
            if entered:
                self._spans.entered(entered, it, end - duration, end)
                if entries is not None:
                    _log_entered(entries, entered, it)
            note_refusal(refused)
            if ending:
                finished(ending, it, end)
                if not asynchronous:
                    self._concluded(conclude(state, ending))
                    steady, due, leave = not waiting, events.due_ns, events.event_ns
        self.made, self.start, self.owed = made, start, owed
        if state.it == first:
            return False
        state.executed += state.it - first
        state.suspended = False  # where the prefill cadence counts, nobody waited
        return True

    def _plain(self, made: int, start: int, due: int, leave: int, until: int, queue_row: QueueRow) -> tuple[int, int]:
        """Iterations in which the same members decode, nobody ends, and whoever waits goes on waiting for the same reason."""
        state, decodes, pool, rows = self._state, self._decodes, self._pool, self._rows
        buckets, ends, size, asynchronous, usable = self._buckets, self._ends, self._size, self._asynchronous, self._usable
        waiting, refused, head, need = queue_row
        count, kv, it, first = decodes.count, decodes.kv, state.it, state.it
        base, per_kv, host = self._executor.decode_cost(count, count, 0)
        free, blank = pool.free, pool.blank
        buffer, at, row, end, pack, threshold = rows.buffer, rows.at, rows.size, rows.end, rows.pack, self._gaps.threshold
        duration = stalled = evicted = 0
        while made < due and start < leave and it < until and it + 1 not in ends:
            if buckets[(it + 1) % size]:
                grow = len(buckets[(it + 1) % size])
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
                duration = device if device > host else host
                made = start
            else:
                duration = device + host
                made = start + duration
            pack(
                buffer, at, it, start, duration, device, host, kv, usable - free, free - blank, evicted, count, count, 0, 0, 0,
                0, waiting, 0, 0, 0, refused, head, need, 0,
            )  # fmt: skip
            evicted = 0
            start += duration
            at += row
            if at == end:
                rows.at = at
                rows.flush()
                at = 0
            if threshold is not None and duration > threshold:
                stalled += duration - threshold
        rows.at = at
        if it != first:
            if free != pool.free:
                pool.take(pool.free - free)
                state.evicted = pool.evicted
            state.it, decodes.kv = it, kv
            state.joined, state.left = [], []
            self._spans.note_refusal(refused)
            self._gaps.pass_over(duration, stalled)  # the last one is the longest: they grow with the KV
        return made, start


def can_coast(scheduler: Scheduler) -> bool:
    """Whether stretches of ``scheduler`` follow from sums: blocks are counted, and no batch holds places."""
    return isinstance(scheduler.state.pool, CountedPool | TracedPool) and scheduler.state.gate is None


def _log_entered(entries: RowBuffer, entered: list[Entry], it: int) -> None:
    for seq, tokens, cached in entered:
        comp, lost = cached + tokens, seq.lost_high
        entries.add(it, seq.index, tokens, comp, min(comp, lost) - cached if lost > cached else 0)
