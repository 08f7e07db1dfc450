"""Stretches that only decode, replayed without making a plan for each iteration.

Nothing is decided in such an iteration: no explicit sequence, nobody waits or the head is refused as it was, the blocks
suffice. So
its row follows from the decode set's sums, from how many members grow, and from the calendar of finishes, and the loop may ask a
predicting executor for its duration directly. Byte for byte the rows are those of the plan-by-plan loop (a test replays both
ways);
any other change is left to the scheduler.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from replay_engine.admission import Refused, standing_refusal
from replay_engine.arrivals import Calendar
from replay_engine.kv_counted import CountedPool
from replay_engine.kv_traced import TracedPool
from replay_engine.queues import FairQueue
from replay_engine.recorder import Recorder
from replay_engine.scheduler import Scheduler
from replay_engine.simulator import SimExecutor
from replay_engine.types import Sequence

__all__ = ["Coaster"]

_HEAD = Struct("<qqqqqqiiiii")
_TAIL = Struct("<qiiiiiiiiiii")
_ADMITTED: Refused = (0, -1)
_NEVER = 1 << 62
"""Nobody waits."""


class Coaster:
    """Coasts one scheduler on one simulated executor. ``owed`` sequences have ended, and hold seat and blocks until the next
    iteration is decided (asynchronous scheduling)."""

    __slots__ = (
        "_asynchronous", "_buckets", "_calendar", "_concluded", "_decodes", "_executor", "_gaps", "_loose", "_pool", "_refused",
        "_rows", "_running", "_scheduler", "_size", "_spans", "_state", "_usable", "_waiting", "made", "owed", "start",
    )  # fmt: skip

    def __init__(
        self, scheduler: Scheduler, executor: SimExecutor, recorder: Recorder, concluded: Callable[[list[Sequence]], None]
    ) -> None:
        state = self._state = scheduler.state
        self._scheduler = scheduler
        self._decodes = state.decodes
        self._buckets, self._calendar = state.decodes.buckets, state.decodes.calendar
        self._loose, self._running, self._waiting = state.loose, state.running, state.waiting
        assert isinstance(state.pool, CountedPool | TracedPool)
        self._pool = state.pool
        self._size = state.size
        self._usable = scheduler.config.usable_blocks
        self._executor = executor
        self._rows, self._spans, self._gaps = recorder.iteration_rows, recorder.spans, recorder.gaps
        self._asynchronous = scheduler.config.async_scheduling
        self._concluded = concluded
        self._refused: Refused = _ADMITTED
        self.owed: list[Sequence] = []
        self.made = self.start = 0

    @staticmethod
    def can(scheduler: Scheduler) -> bool:
        """Whether stretches of ``scheduler`` follow from sums: blocks are counted, and no batch holds places."""
        return isinstance(scheduler.state.pool, CountedPool | TracedPool) and scheduler.state.gate is None

    def ready(self) -> bool:
        """Whether the next iterations may be a stretch: members of the decode set run, and nothing else gets anything."""
        if not self._decodes.count or self._loose or self._pool.filling or self._state.loading:
            return False
        return not self._waiting or standing_refusal(self._state) is not None

    def _stands(self) -> bool:
        """Whether nobody is admitted in the next iteration, and why."""
        refused = standing_refusal(self._state) if self._waiting else _ADMITTED
        if refused is None:
            return False
        self._refused = refused
        return True

    def run(self, made: int, start: int, events: Calendar, owed: list[Sequence]) -> bool:
        """Replay iterations whose plan is made before the next of ``events`` is due, and that start before someone leaves; the
        first
        is made at ``made`` and starts at ``start`` (ns). ``owed``: who ended in the iteration before. Who ends may bring an
        event.

        Returns whether anything ran; then the attributes ``made``, ``start`` and ``owed`` hold for the iteration after.
        """
        state, calendar = self._state, self._calendar
        self.made, self.start, self.owed = made, start, owed
        first = state.it
        while self.made < events.due_ns and self.start < events.event_ns and self._decodes.count:
            before = state.it
            if not self._stands():
                break
            if self.owed or state.joined or state.left or before + 1 in calendar:
                self._one()
            else:
                self._plain(events.due_ns, events.event_ns)
            if state.it == before:
                break
        if state.it == first:
            return False
        self._spans.note_refusal(self._refused[0])
        return True

    def _one(self) -> None:
        """One iteration of a stretch in which the set changes: members came or went before it, or end in it."""
        state, decodes, pool = self._state, self._decodes, self._pool
        grow = len(self._buckets[(state.it + 1) % self._size])
        if grow > pool.free:
            return
        it = state.it = state.it + 1
        state.executed += 1
        if grow:
            pool.take(grow)
        evicted = pool.evicted - state.evicted
        state.evicted = pool.evicted
        seqs = decodes.count
        kv = decodes.kv = decodes.kv + seqs
        running = len(self._running)
        base, per_kv, host = self._executor.decode_cost(seqs, running, len(state.joined) + len(state.left))
        state.joined, state.left = [], []
        device = round(base + per_kv * kv)
        start = self.start
        duration = device + host if not self._asynchronous else device if device > host else host
        end = self.start = start + duration
        self.made = start if self._asynchronous else end
        used, cached = self._usable - pool.free, pool.free - pool.blank
        waiting, head = len(self._waiting), self._waiting.head().index if self._waiting else -1
        ending = self._scheduler.drain(it) if it in self._calendar else []
        self._rows.add(
            it, start, duration, device, host, kv, used, cached, evicted, seqs, running, 0, 0, 0, 0, waiting, 0, 0, len(ending),
            self._refused[0], head, self._refused[1], 0,
        )
        if ending:
            self._spans.finished(ending, it, start, end)
        else:
            self._gaps.tick(duration)
        over = self.owed if self._asynchronous else ending
        self.owed = ending if self._asynchronous else []
        if over:
            self._concluded(self._scheduler.conclude(over))

    def _plain(self, due: int, cancel: int) -> None:
        """Iterations in which the same members decode and nobody ends."""
        state, decodes, pool, rows = self._state, self._decodes, self._pool, self._rows
        buckets, calendar, size = self._buckets, self._calendar, self._size
        asynchronous, gaps, usable = self._asynchronous, self._gaps, self._usable
        threshold = gaps.threshold
        count, kv, it, first = decodes.count, decodes.kv, state.it, state.it
        base, per_kv, host = self._executor.decode_cost(count, count, 0)
        made, start, free, blank = self.made, self.start, pool.free, pool.blank
        buffer, at, row, end = rows.buffer, rows.at, rows.size, rows.end
        pack, split = _HEAD.pack_into, _HEAD.size
        head = self._waiting.head().index if self._waiting else -1
        tail = _TAIL.pack(0, 0, 0, 0, len(self._waiting), 0, 0, 0, self._refused[0], head, self._refused[1], 0)
        longest = stalled = 0
        waiting = self._waiting
        until = waiting.first_until() if waiting and isinstance(waiting, FairQueue) else _NEVER
        while made < due and start < cancel and it < until and it + 1 not in calendar:
            evicted = 0
            grow = len(buckets[(it + 1) % size])
            if grow:
                if grow > free:
                    break
                free -= grow
                blank -= grow
                if blank < 0:
                    evicted, blank = -blank, 0
            it += 1
            kv += count
            device = round(base + per_kv * kv)
            duration = device + host if not asynchronous else device if device > host else host
            pack(buffer, at, it, start, duration, device, host, kv, usable - free, free - blank, evicted, count, count)
            buffer[at + split : at + row] = tail
            at += row
            if at == end:
                rows.at = at
                rows.flush()
                at = 0
            if duration > longest:
                longest = duration
            if threshold is not None and duration > threshold:
                stalled += duration - threshold
            made = start if asynchronous else start + duration
            start += duration
        rows.at = at
        if it == first:
            return
        pool.take(pool.free - free)
        state.evicted = pool.evicted
        state.executed += it - first
        state.it, decodes.kv = it, kv
        self.made, self.start = made, start
        gaps.pass_over(longest, stalled)
