"""Iterations replayed without making a plan for each.

An iteration's row follows from the decode set's sums, from how many members grow, from the calendar of finishes and from who
enters, and the loop may ask a predicting executor for its duration directly. Explicit sequences and preemption are decided by
the scheduler's own running pass; where rules beyond the queue's order and vLLM's knobs bear on admission, only iterations in
which nobody can enter are coasted. Byte for byte the rows are those of the plan-by-plan loop (a test replays both ways).
"""

from __future__ import annotations

from collections.abc import Callable

from replay_engine.admission import standing_refusal
from replay_engine.advancing import advance, drain
from replay_engine.arrivals import NEVER, Calendar
from replay_engine.chunk_pass import compute_chunks, grant_chunks
from replay_engine.chunk_stretch import ChunkStretch
from replay_engine.coasted import NOBODY, Done, after_preemption, lasting, next_due, serve_explicit, write_changes
from replay_engine.ending import conclude, register_late
from replay_engine.kv_counted import CountedPool
from replay_engine.kv_traced import TracedPool
from replay_engine.plain_admission import Entry, Fetched, admit_plain, compute
from replay_engine.preempting import end_loading
from replay_engine.queues import FairQueue
from replay_engine.recorder import Recorder
from replay_engine.scheduler import Scheduler
from replay_engine.simulator import SimExecutor
from replay_engine.types import Refusal, Sequence

__all__ = ["Coaster"]

_AFTER_PREEMPTION, _SEATS = int(Refusal.after_preemption), int(Refusal.max_num_seqs)
_NOBODY_ENTERS: list[Entry] = []


class Coaster:
    """Coasts one scheduler on one simulated executor. After ``run``: ``made`` is when the next plan is made, ``start`` when it
    starts, ``owed`` who has ended and holds seat and blocks until the next iteration is decided (asynchronous scheduling).

    ``deliver`` brings what ``events`` has due at a time; ``concluded`` is told who has ended for good. At the horizon of
    ``events`` a stretch ends; ``unwritten`` is then what the last iteration did to its members, to be written by ``settle`` once
    everything due at ``made`` has been delivered.
    """

    __slots__ = (
        "_asynchronous", "_buckets", "_chunks", "_concluded", "_decodes", "_deliver", "_ends", "_events", "_executor", "_loose",
        "_pool", "_recorder", "_running", "_size", "_state", "_usable", "_waiting", "made", "owed", "start", "unwritten",
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
        self._executor, self._recorder = executor, recorder
        self._events, self._deliver, self._concluded = events, deliver, concluded
        self._chunks = ChunkStretch(state, executor, recorder)
        self.owed: list[Sequence] = []
        self.made = self.start = 0
        self.unwritten: Done | None = None

    def settle(self) -> None:
        """Write what the last stretch has left unwritten."""
        if self.unwritten is not None:
            done, self.unwritten = self.unwritten, None
            write_changes(self._recorder, *done)

    def run(self, made: int, start: int, owed: list[Sequence]) -> bool:
        """Replay iterations, the first of them made at ``made`` and starting at ``start`` (ns), until one needs the scheduler or
        starts when somebody leaves. ``owed``: who ended in the iteration before. Returns whether anything ran."""
        state, decodes, pool, events, recorder = self._state, self._decodes, self._pool, self._events, self._recorder
        rows, gaps, spans = recorder.iteration_rows, recorder.gaps, recorder.spans
        waiting, running, loose, buckets, ends = self._waiting, self._running, self._loose, self._buckets, self._ends
        shares, plain, swaps, counted = state.shares, state.plain, state.host.total > 0, state.counted
        fair = waiting if isinstance(waiting, FairQueue) else None
        size, usable, asynchronous, executor = self._size, self._usable, self._asynchronous, self._executor
        buffer, width, full, pack, threshold = rows.buffer, rows.size, rows.end, rows.pack, gaps.threshold
        entries, chunks, capped = recorder.entry_rows is not None, self._chunks, state.threshold > 0  # a cap: prompts take long
        fixed, floor, per_seq, per_kv, host = executor.decode_terms()
        self.start, self.owed = start, owed
        due, leave, it, first = next_due(events, state), events.event_ns, state.it, state.it
        steady, queue_row, until, sure, lack, spare = not waiting, NOBODY, NEVER, -1, 0, 0
        fetched: list[Fetched] = []
        while True:
            if made >= due:
                if made >= events.due_ns:
                    free = pool.free
                    if made < events.horizon_ns:
                        self._deliver(made)
                    if made >= events.horizon_ns:
                        break
                    steady = not waiting or (steady and pool.free == free)  # else somebody who ran has left
                    queue_row = (len(waiting), *queue_row[1:]) if waiting else NOBODY
                if state.loading:
                    state.now = made
                    end_loading(state)
                due, leave, sure = next_due(events, state), events.event_ns, -1
            count = decodes.count
            if start >= leave or state.stuck or not (count or loose or (waiting and not swaps)):
                break
            standing, until = None, NEVER
            if waiting and not plain:
                standing = standing_refusal(state)
                if standing is None or not count:
                    break
                steady, queue_row = True, (len(waiting), standing[0], waiting.head().index, standing[1])
                if fair is not None:
                    until = fair.first_until(queue_row[2])
            elif waiting:
                if spare < 0:
                    (steady, lack), queue_row, spare = *after_preemption(state, queue_row), 0
                if steady and fair is not None:
                    if sure <= it:
                        fair.shares.tick = it + 1
                        sure = fair.first_until(queue_row[2])
                    until, steady = sure, sure > it
                elif steady:
                    steady = waiting.head().index == queue_row[2]
            if fixed:
                base = floor + per_seq * count
            else:
                base, per_kv, host = executor.decode_cost(count, len(running), len(state.joined) + len(state.left))
            if loose and capped and plain and not owed and it + 1 not in ends and (fixed or not (state.joined or state.left)):
                moved = chunks.run(made, start, due, leave, steady, queue_row)
                if moved is not None:
                    (made, start), it, spare = moved, state.it, 0
                    if waiting and chunks.row is not queue_row:
                        queue_row, steady, lack = chunks.row, chunks.row[1] == _SEATS, 0
                    continue
            kv = decodes.kv
            if (
                steady and count and not loose and it + 1 not in ends and not owed and (counted or not pool.filling)
                and (fixed or not (state.joined or state.left))
            ):  # fmt: skip
                # The same members decode, nobody ends, and whoever waits goes on waiting for the same reason.
                queued, refused, head, need = queue_row
                free, blank, at, before, duration, stalled = pool.free, pool.blank, rows.at, it, 0, 0
                seats = len(running)
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
                        buffer, at, it, start, duration, device, host, kv, usable - free, free - blank, evicted, count, seats, 0,
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
                    if made >= due or start >= leave or it >= until:
                        continue
            # An iteration that changes the set: members came or went before it, enter, or end in it.
            it = state.it = it + 1
            growing = buckets[it % size]
            plan, parts, spare, explicit = None, None, state.budget - count, False
            if loose or len(growing) > pool.free:
                if not plain:
                    state.it = it - 1
                    break
                explicit, (parts, spare) = True, grant_chunks(state, growing)
                if parts is None:
                    plan, spare, grants = serve_explicit(state, growing, made)
                    count, kv = decodes.count, decodes.kv
            elif not counted and pool.filling:
                pool.advance(growing, buckets[(it + state.fill_offset) % size], it, ())
            elif growing:
                pool.take(len(growing))
            kv += count
            tokens = qk = again = hit = need = refused = 0
            head, entered = -1, _NOBODY_ENTERS
            if spare < 0:
                refused, head, steady, lack = _AFTER_PREEMPTION, waiting.head().index, False, 0
            elif standing or (waiting and steady and count and (
                counted and spare > 0 and state.chunked if explicit else counted or not pool.filling
            )):  # fmt: skip
                _, refused, head, need = queue_row
            elif waiting:
                state.now = made
                if shares is not None:
                    shares.tick, shares.now_ns = it, made
                entered, refused, need, still, _ = admit_plain(state, spare, fetched)
                if not count and not entered and not explicit:
                    state.it = it - 1
                    break
                steady, lack = not refused, 0
                if still is not None:
                    head = still.index
                    steady, lack = lasting(state, still, refused, need)
            else:
                steady, lack = True, 0
            decodes.kv = kv
            changes = len(state.joined) + len(state.left)
            if changes:
                state.joined, state.left = [], []
            ending = drain(state, it) if it in ends else []
            prefills = preempted = 0
            if plan is not None:
                plan.decode_seqs, plan.decode_kv, plan.finishing = count, kv, ending
                advance(state, plan, grants)
                count, kv, ending = plan.decode_seqs, plan.decode_kv, list(plan.finishing)
                prefills, preempted = plan.prefill_seqs, len(plan.preempted)
                tokens, qk, again = plan.prefill_tokens, plan.prefill_qk, plan.recomputed_tokens
            elif parts is not None:
                tokens, qk, ending, plan = compute_chunks(state, parts, ending, entries=entries)
                prefills = len(parts)
            if entered:
                more, more_qk, more_again, hit = compute(state, entered, it, ending)
                tokens, qk, again, prefills = tokens + more, qk + more_qk, again + more_again, prefills + len(entered)
            if entered or fetched or explicit:
                duration, device, host = executor.predict(tokens, qk, count, kv, len(running), changes)
            else:
                device = round(base + per_kv * kv)
                duration = device + host if not asynchronous else max(device, host)
            if plan is not None:
                duration += plan.link_ns
                if plan.walked and (plan.prefill or entered or fetched or ending or preempted or plan.starved):
                    recorder.totals.walked += 1
            end = self.start = start + duration
            free, evicted, state.evicted = pool.free, pool.evicted - state.evicted, pool.evicted
            queue_row = (len(waiting), refused, head, need) if refused else NOBODY
            pack(
                buffer, rows.at, it, start, duration, device, host, kv, usable - free, free - pool.blank, evicted, count,
                len(running), qk, tokens, again, prefills, queue_row[0], preempted, len(entered) + len(fetched), len(ending),
                refused, head, queue_row[3], hit,
            )  # fmt: skip
            rows.at += width
            if rows.at == full:
                rows.flush()
            sure = -1 if asynchronous or entered or fetched or explicit else sure
            if asynchronous:
                made = start
                if state.late:
                    register_late(state)
                if owed:
                    self._concluded(conclude(state, owed))
                    steady, due, leave = not waiting or lack > pool.free, next_due(events, state), events.event_ns
                    queue_row = (len(waiting), *queue_row[1:]) if waiting else NOBODY
                owed = ending
            else:
                made = end
            if plan is not None and preempted:
                state.stuck = 0 if count or plan.sampled else state.stuck + 1
            if asynchronous and made >= events.due_ns and (entered or ending or explicit):
                # What comes now is known before the iteration under way has ended.
                if made < events.horizon_ns:
                    self._deliver(made)
                if made >= events.horizon_ns:
                    self.unwritten, start = (entered, fetched, plan, ending, it, start, end, refused), end
                    break
                steady, due, leave = steady or not waiting, next_due(events, state), events.event_ns
                queue_row = (len(waiting), *queue_row[1:]) if waiting else NOBODY
            write_changes(recorder, entered, fetched, plan, ending, it, start, end, refused)
            start = end
            if fetched:
                fetched, due = [], next_due(events, state)
            if ending and not asynchronous:
                self._concluded(conclude(state, ending))
                steady, due, leave = not waiting or lack > pool.free, next_due(events, state), events.event_ns
        self.made, self.start, self.owed = made, start, owed
        ran = state.it - first
        state.executed += ran
        state.suspended = state.suspended and not ran  # where the prefill cadence counts, nobody waited
        return ran > 0
