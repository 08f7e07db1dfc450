"""Stretches in which every iteration only decodes the same sequences, replayed without making a plan for each.

Nothing is decided in such an iteration: no explicit sequence, nobody waits, nobody ends, the blocks suffice. So its row follows from the decode
set's sums and from how many members grow, and the loop may ask a predicting executor for its duration directly. Byte for byte the rows are
those of the plan-by-plan loop (a test replays both ways); any change ends the stretch and is left to the scheduler.
"""

from __future__ import annotations

from replay_engine.kv_counted import CountedPool
from replay_engine.kv_traced import TracedPool
from replay_engine.recorder import Recorder
from replay_engine.scheduler import Scheduler
from replay_engine.simulator import SimExecutor

__all__ = ["Coaster"]


class Coaster:
    """Coasts one scheduler on one simulated executor."""

    __slots__ = ("_asynchronous", "_buckets", "_calendar", "_decodes", "_executor", "_loose", "_pool", "_recorder", "_rows", "_running",
                 "_size", "_state", "_usable", "_waiting")  # fmt: skip

    def __init__(self, scheduler: Scheduler, executor: SimExecutor, recorder: Recorder, *, asynchronous: bool) -> None:
        state = self._state = scheduler.state
        self._decodes = state.decodes
        self._buckets = state.decodes.buckets
        self._calendar = state.decodes.calendar
        self._loose = state.loose
        self._running = state.running
        self._waiting = state.waiting
        assert isinstance(state.pool, CountedPool | TracedPool)
        self._pool = state.pool
        self._size = state.size
        self._usable = scheduler.config.usable_blocks
        self._executor = executor
        self._recorder = recorder
        self._rows = recorder.iteration_rows
        self._asynchronous = asynchronous

    def ready(self) -> bool:
        """Whether the next iteration may be one of a stretch: only decodes, all of them members, and nobody ends in it."""
        return (
            not self._loose
            and not self._waiting
            and self._decodes.count == len(self._running)
            and self._state.it + 1 not in self._calendar
            and not self._pool.filling
        )

    def run(self, made: int, start: int, due: int, cancel: int) -> tuple[int, int]:
        """Replay iterations whose plan is made before ``due`` and that start before ``cancel``, when someone leaves; the first is made at
        ``made`` and starts at ``start`` (ns).

        Returns when the next plan is made and when it can start.
        """
        state, decodes, pool, rows = self._state, self._decodes, self._pool, self._rows
        buckets, calendar, size = self._buckets, self._calendar, self._size
        asynchronous = self._asynchronous
        base, per_kv, host, first_host = self._executor.decode_cost(decodes.count, len(state.joined) + len(state.left))
        gaps = self._recorder.gaps
        threshold = gaps.threshold
        count, kv, it = decodes.count, decodes.kv, state.it
        free, blank = pool.free, pool.blank
        usable = self._usable
        pack, buffer, at, end, row = rows.pack, rows.buffer, rows.at, rows.end, rows.size
        longest, stalled = 0, 0
        first = it
        while made < due and start < cancel and it + 1 not in calendar:
            due_blocks = len(buckets[(it + 1) % size])
            evicted = 0
            if due_blocks:
                if due_blocks > free:
                    break
                free -= due_blocks
                blank -= due_blocks
                if blank < 0:
                    evicted, blank = -blank, 0
            it += 1
            kv += count
            device = round(base + per_kv * kv)
            spent = host if it > first + 1 else first_host
            if not asynchronous:
                duration = device + spent
            else:
                duration = device if device > spent else spent
            if at == end:
                rows.at = at
                rows.flush()
                at = 0
            pack(buffer, at, it, start, duration, device, spent, kv, 0, 0, 0, 0, count, 0, count,
                 usable - free, free - blank, 0, 0, 0, 0, -1, -1, 0, evicted)  # fmt: skip
            at += row
            if duration > longest:
                longest = duration
            if threshold is not None and duration > threshold:
                stalled += duration - threshold
            made = start if asynchronous else start + duration
            start += duration
        rows.at = at
        if at == end:
            rows.flush()
        if it > first:
            pool.take(pool.free - free)
            state.evicted = pool.evicted
            state.it, decodes.kv = it, kv
            state.executed += it - first
            state.joined, state.left = [], []
            gaps.pass_over(longest, stalled)
            self._recorder.spans.note_refusal(0)
        return made, start
