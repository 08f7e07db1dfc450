"""Stretches in which prompts under way go on by the same chunk each, beside the same decodes: no plan for each iteration.

A chunk stays what it is while the cap, or what the budget leaves, binds it in every iteration; then tokens are constant,
attention work grows by the same sum of squares, and blocks follow from the tokens. Who waits goes on waiting where the budget
or the seats are taken, or where it lacks blocks for certain. Everything else is a plan's.
"""

from __future__ import annotations

from replay_engine.coasted import NOBODY, QueueRow
from replay_engine.kv_counted import CountedPool
from replay_engine.kv_traced import TracedPool
from replay_engine.queues import FairQueue
from replay_engine.recorder import Recorder
from replay_engine.simulator import SimExecutor
from replay_engine.state import State
from replay_engine.types import Phase, Refusal, Sequence

__all__ = ["ChunkStretch", "Part", "constant_chunks"]

_BUDGET, _SEATS = int(Refusal.token_budget), int(Refusal.max_num_seqs)
_PREFILL = int(Phase.prefill)
_MANY = 1 << 62
Part = tuple[Sequence, int]
"""A prompt under way, and the tokens of it that every iteration computes."""


def constant_chunks(state: State) -> tuple[list[Part], int, int] | None:
    """The chunks of all explicit sequences, in running order, the budget they leave, and for how many iterations they stay so;
    ``None`` where one ends, gets nothing, computes again what it lost, or the walk would have to decide."""
    cap = state.cap() if state.threshold else 0
    spare, newest, lasts = state.budget - state.decodes.count, state.decodes.newest, _MANY
    parts: list[Part] = []
    for ticket in sorted(state.loose):
        seq = state.loose[ticket]
        comp = seq.comp
        left = seq.nt - comp
        tokens = cap if 0 < cap < left else left
        if tokens > spare:
            if ticket < newest:
                return None
            tokens = spare
        if not 0 < tokens < left or seq.phase != _PREFILL or not seq.chunk or seq.lost_high > comp:
            return None
        if seq.nblocks != -(-comp // state.size):
            return None
        spare -= tokens
        more = (left - 1) // tokens
        if more < lasts:
            lasts = more
        parts.append((seq, tokens))
    return parts, spare, lasts


class ChunkStretch:
    """Such stretches of one scheduler on one simulated executor. ``row``: why the head stood refused in the last one."""

    __slots__ = ("_asynchronous", "_careful", "_executor", "_fair", "_pool", "_recorder", "_state", "row")

    def __init__(self, state: State, executor: SimExecutor, recorder: Recorder) -> None:
        assert isinstance(state.pool, CountedPool | TracedPool)
        self._state, self._executor, self._recorder, self._pool = state, executor, recorder, state.pool
        self._asynchronous, self._careful = bool(state.lag), False
        self._fair = state.waiting if isinstance(state.waiting, FairQueue) else None
        self.row: QueueRow = NOBODY

    def run(self, made: int, start: int, due: int, leave: int, steady: bool, row: QueueRow) -> tuple[int, int] | None:
        """Replay iterations, the first made at ``made`` and starting at ``start``, until something comes to be known at ``due``,
        somebody leaves at ``leave`` (all ns), a member of the decode set ends or blocks are short. ``steady``: the head stays
        refused as ``row`` says. When the next one is made and starts; ``None``: none ran."""
        found = constant_chunks(self._state)
        if found is None:
            return None
        parts, spare, lasts = found
        until = self._stands(spare, steady, row)
        it = self._state.it
        if until <= it:
            return None
        made, start = self._replay(parts, min(it + lasts, until), made, start, due, leave)
        return (made, start) if self._state.it > it else None

    def _stands(self, spare: int, steady: bool, row: QueueRow) -> int:
        """The last iteration for which whoever waits is refused for certain, and for the same reason (``row``); -1: none."""
        state, until = self._state, _MANY
        waiting = state.waiting
        if not waiting:
            self.row = NOBODY
            return until
        if spare > 0 and len(state.running) < state.seats:
            if not (steady and state.counted and state.chunked and state.decodes.count):
                return -1
            self.row = row
            head = row[2]
        else:
            if self._fair is not None:
                self._fair.shares.tick = state.it + 1
            head = waiting.head().index
            self.row = (len(waiting), _SEATS if spare > 0 else _BUDGET, head, 0)
        if self._fair is not None:
            self._fair.shares.tick = state.it + 1
            until = self._fair.first_until(head)
        return until

    def _replay(self, parts: list[Part], last: int, made: int, start: int, due: int, leave: int) -> tuple[int, int]:
        state, pool, rows, threshold = self._state, self._pool, self._recorder.iteration_rows, self._recorder.gaps.threshold
        decodes, size, usable, asynchronous = state.decodes, state.size, state.usable, self._asynchronous
        count, kv, it, seats = decodes.count, decodes.kv, state.it, len(state.running)
        buckets, ends, first, longest, stalled, evicted = decodes.buckets, decodes.calendar, state.it, 0, 0, 0
        (tokens, qk, more, each), careful = self._sums(parts), self._careful
        base, per_qk, decoding, per_kv, host = self._executor.chunk_terms(tokens, count, seats)
        free, blank, prompts, tail = pool.free, pool.blank, len(parts), (*self.row, 0)
        while made < due and start < leave and it < last and it + 1 not in ends:
            growing = buckets[(it + 1) % size]
            need = len(growing) + (each if each else _blocks(parts, 0 if careful else it - first, size))
            if need > free:
                break
            it += 1
            free, blank, evicted = free - need, blank - need, 0
            if blank < 0:
                evicted, blank = -blank, 0
            if careful:
                self._serve(parts, growing, it)
            kv += count
            device = round(base + per_qk * qk + decoding + per_kv * kv)
            if asynchronous:
                made, duration = start, (device if device > host else host) if device else 0
            else:
                duration = device + host
                made = start + duration
            rows.pack(
                rows.buffer, rows.at, it, start, duration, device, host, kv, usable - free, free - blank, evicted, count, seats,
                qk, tokens, 0, prompts, tail[0], 0, 0, 0, tail[1], tail[2], tail[3], 0,
            )  # fmt: skip
            rows.at += rows.size
            if rows.at == rows.end:
                rows.flush()
            qk, start = qk + more, start + duration
            longest = duration if duration > longest else longest
            if threshold is not None and duration > threshold:
                stalled += duration - threshold
        self._ran(parts, it, kv, pool.free - free, longest, stalled)
        return made, start

    def _sums(self, parts: list[Part]) -> tuple[int, int, int, int]:
        """Tokens of an iteration, attention work of the first and what each next one has more, blocks where they are the same in
        each (else 0). ``_careful``: blocks are to be entered in the prefix cache, one iteration after the other."""
        size, pool = self._state.size, self._pool
        tokens = qk = more = each = 0
        even, careful = True, pool.filling
        for seq, n in parts:
            tokens += n
            qk += n * seq.comp + n * n // 2
            more += n * n
            each += n // size
            even = even and not n % size
            careful = careful or (not self._state.counted and seq.keys is not None and seq.keys.held < seq.keys.length)
        self._careful = careful
        return tokens, qk, more, each if even else 0

    def _serve(self, parts: list[Part], growing: dict[int, Sequence], it: int) -> None:
        """Blocks are handed out and entered in the prefix cache, as the running pass does it."""
        state, size = self._state, self._state.size
        grants = [(seq, n, -(-(seq.comp + n) // size) - seq.nblocks) for seq, n in parts]
        self._pool.advance(growing, state.decodes.buckets[(it + state.fill_offset) % size], it, grants)
        for seq, n in parts:
            seq.comp += n

    def _ran(self, parts: list[Part], it: int, kv: int, taken: int, longest: int, stalled: int) -> None:
        """The state after iteration ``it``; of blocks ``taken`` are not handed out yet, nor then counted for their sequences."""
        state, size, first, entries = self._state, self._state.size, self._state.it, self._recorder.entry_rows
        if it == first:
            return
        if taken:
            self._pool.take(taken)
        for seq, n in parts:
            if not self._careful:
                comp = seq.comp = seq.comp + (it - first) * n
                seq.nblocks = -(-comp // size)
                if not state.counted and comp // size > seq.nreg:
                    seq.nreg = comp // size
        if entries is not None:
            for at in range(first + 1, it + 1):
                for seq, n in parts:
                    entries.add(at, seq.index, n, seq.comp - (it - at) * n, 0)
        state.it, state.decodes.kv, state.evicted = it, kv, self._pool.evicted
        if state.joined or state.left:
            state.joined, state.left = [], []
        self._recorder.gaps.pass_over(longest, stalled)
        self._recorder.spans.note_refusal(self.row[1])


def _blocks(parts: list[Part], done: int, size: int) -> int:
    """Blocks that iteration ``done`` of a stretch takes for prompts, the first being 0."""
    return sum((-(seq.comp + done * n) // size) - (-(seq.comp + done * n + n) // size) for seq, n in parts)
