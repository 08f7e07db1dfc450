"""The scheduler: vLLM's decisions, at a cost of O(changes). Pure: no I/O, no clock of its own, no randomness.

``schedule`` decides one iteration, ``update`` takes its outcome. Asynchronous scheduling is not a second algorithm: the driver calls
``update(plan n-1)`` after ``schedule(n)``, so seats and blocks are held one iteration longer by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from typing import Literal

from replay_engine.admission import admit_waiting
from replay_engine.config import SchedulerConfig
from replay_engine.kv_counted import BlockPool, CountedPool
from replay_engine.kv_identified import IdentifiedPool
from replay_engine.kv_traced import TracedPool
from replay_engine.running import running_pass
from replay_engine.state import State
from replay_engine.types import BatchPlan, PrefillEntry, Refusal, Request, SeqState, Sequence

__all__ = ["PoolKind", "Scheduler", "make_pool"]

PoolKind = Literal["auto", "counted", "identified", "traced"]
_WAIT, _LOOSE, _DECODE, _DRAIN, _GONE = (int(s) for s in SeqState)
_AFTER_PREEMPTION = int(Refusal.after_preemption)


def make_pool(config: SchedulerConfig, kind: PoolKind = "auto") -> BlockPool:
    """The KV pool for ``config``. Without caching blocks are counted, unless real ids are asked for; ``auto`` traces with caching, and
    identifies blocks where only that is exact (before 0.24 free blocks were one list)."""
    caching = config.enable_prefix_caching
    split = config.engine_version != "0.20.0"
    if kind == "auto":
        kind = "traced" if split else "identified"
    lag = int(config.async_scheduling)
    if not caching and kind != "identified":
        return CountedPool(config.usable_blocks)
    if kind == "traced" and split:
        return TracedPool(config.usable_blocks, config.block_size, lag)
    return IdentifiedPool(config.usable_blocks, config.block_size, lag, caching=caching, split_free_list=split)


class Scheduler:
    """One engine's scheduler. Counters of decoding sequences are implied: read them with ``computed``."""

    __slots__ = ("_buckets", "_decodes", "_fill", "_loose", "_pool", "_size", "_waiting", "config", "state")

    def __init__(self, config: SchedulerConfig, pool: BlockPool | None = None) -> None:
        self.config = config
        state = self.state = State(config, make_pool(config) if pool is None else pool)
        self._decodes = state.decodes
        self._buckets = state.decodes.buckets
        self._pool = state.pool
        self._loose = state.loose
        self._waiting = state.waiting
        self._size = state.size
        self._fill = state.fill_offset

    def add(self, request: Request, keys: list[int]) -> Sequence:
        """Queue a request; ``keys`` are its block keys (``BlockPool.bind``). Prompts of ``max_model_len`` or more never get here."""
        limit = min(request.output_tokens, self.config.max_model_len - request.prompt_tokens)
        assert limit > 0
        seq = Sequence(request, limit)
        self._pool.bind(seq, keys)
        self._waiting.push(seq)
        return seq

    def has_requests(self) -> bool:
        """Whether anything waits or runs."""
        return bool(self.state.running or len(self._waiting))

    def computed(self, seq: Sequence) -> int:
        """Computed tokens of ``seq`` after the last ``schedule``."""
        return self.state.computed(seq)

    def schedule(self, now: int = 0) -> BatchPlan:
        """Decide one iteration. The plan's ``joined``/``left`` are handed over once."""
        state, decodes = self.state, self._decodes
        it = state.it = state.it + 1
        plan = BatchPlan()
        plan.iteration = it
        if state.interval > 1:
            self._set_hold()
        due = self._buckets[it % self._size]
        spare = state.budget - decodes.count
        grants: list[tuple[Sequence, int]] | None = None
        carries = False
        if self._loose or spare < 0 or len(due) > self._pool.free:
            spare, grants = running_pass(state, plan, due)
            carries = state.interval > 1 and (state.carried or any(seq.chunk for seq, _ in grants))
        elif due or self._fill:
            self._pool.advance(due, self._buckets[(it + self._fill) % self._size], it, ())
        if state.joined:
            plan.joined, state.joined = state.joined, []
        if state.left:
            plan.left, state.left = state.left, []
        plan.decode_seqs = decodes.count
        decodes.kv += decodes.count
        plan.decode_kv = decodes.kv
        if self._waiting:
            if spare >= 0:
                grants = [] if grants is None else grants
                carries = admit_waiting(state, plan, spare, grants) or carries
            else:
                plan.refused_by, plan.refused = _AFTER_PREEMPTION, self._waiting.head()
        if it in decodes.calendar:
            self._retire(plan)
        if grants:
            self._advance(plan, grants)
        if state.interval > 1:
            self._count_cadence(plan, carries)
        plan.running = len(state.running)
        plan.waiting = len(self._waiting)
        pool = self._pool
        plan.kv_free = pool.free
        plan.kv_blank = pool.blank
        if pool.evicted != state.evicted:
            plan.evicted = pool.evicted - state.evicted
            state.evicted = pool.evicted
        return plan

    def _retire(self, plan: BatchPlan) -> None:
        """Members whose last token this iteration computes leave the set; they hold seat and blocks until ``update``."""
        gone = self.drain(plan.iteration)
        if gone:
            plan.finishing = gone

    def drain(self, iteration: int) -> list[Sequence]:
        """Members of the decode set whose last token ``iteration`` computes leave it, in ticket order."""
        gone = self._decodes.retire(iteration)
        for seq in gone:
            seq.state = _DRAIN
            self._pool.left(seq)
        self.state.left += gone
        return gone

    def _advance(self, plan: BatchPlan, grants: list[tuple[Sequence, int]]) -> None:
        """Count the explicit grants as computed; whoever has all known tokens samples one and decodes from here, or ends."""
        entries: list[PrefillEntry] = []
        sampled: list[Sequence] = []
        ending: list[Sequence] = []
        seqs = tokens = qk = recomputed = 0
        for seq, n in grants:
            context = seq.comp
            comp = seq.comp = context + n
            again = min(comp, seq.lost_high) - context
            again = again if again > 0 else 0
            entries.append(PrefillEntry(seq, n, comp, again, not seq.chunk))
            if seq.chunk:
                seqs += 1
                tokens += n
                qk += n * context + n * n // 2
                recomputed += again
            else:
                plan.decode_seqs += 1
                plan.decode_kv += comp
            if again:
                seq.recomputed_tokens += again
            if comp == seq.nt:
                sampled.append(seq)
                self._settle(seq, plan.iteration, ending)
            else:
                seq.chunk = True
        plan.prefill, plan.prefill_seqs = entries, seqs
        plan.prefill_tokens, plan.prefill_qk, plan.recomputed_tokens = tokens, qk, recomputed
        if sampled:
            plan.sampled = sampled
        if ending:
            plan.finishing = sorted([*plan.finishing, *ending], key=_ticket) if plan.finishing else ending

    def _settle(self, seq: Sequence, iteration: int, ending: list[Sequence]) -> None:
        del self._loose[seq.ticket]
        seq.chunk = False
        if seq.comp == seq.total:
            seq.state = _DRAIN
            ending.append(seq)
        else:
            self._decodes.join(seq, iteration)
            self._pool.joined(seq)
            self.state.joined.append(seq)

    def update(self, plan: BatchPlan) -> list[Sequence]:
        """The outcome of ``plan`` is known: free what finished, in scheduling order. Returns the finished sequences."""
        self.register_late()
        return self.conclude(plan.finishing) if plan.finishing else []

    def conclude(self, finishing: SequenceOf[Sequence]) -> list[Sequence]:
        """Sequences whose last token has come free what they hold; those gone already are left out of the answer."""
        state = self.state
        ended = []
        for seq in finishing:
            if seq.state == _DRAIN:
                total = seq.total
                if state.lag:
                    self._pool.commit(seq, total)
                del state.running[seq.ticket]
                self._pool.release(seq, -(-total // self._size), total // self._size, resumes=False)
            elif seq.state == _WAIT:
                self._waiting.remove(seq)
                if state.memo_head is seq:
                    state.memo_head = None
            else:
                continue
            seq.state = _GONE
            ended.append(seq)
        return ended

    def register_late(self) -> None:
        """Register the last full block of asynchronous decodes that starved while its last token was in flight."""
        if self.state.late:
            for seq in self.state.late:
                if seq.state == _LOOSE:
                    self._pool.commit(seq, seq.comp)
            self.state.late = []

    def abort(self, seq: Sequence) -> bool:
        """The client is gone: free the blocks at once, between iterations. False if it had already ended."""
        state = self.state
        if seq.state == _GONE:
            return False
        if seq.state == _WAIT:
            self._waiting.remove(seq)
            if state.memo_head is seq:
                state.memo_head = None
        else:
            comp = self.computed(seq)
            held, registered = seq.nblocks, seq.nreg
            if seq.state == _LOOSE:
                del state.loose[seq.ticket]
            else:
                held, registered = -(-comp // self._size), state.registered(seq, comp)
                if seq.state == _DECODE:
                    self._decodes.leave(seq, comp)
                    self._pool.left(seq)
                    state.left.append(seq)
            del state.running[seq.ticket]
            self._pool.release(seq, held, registered, resumes=False)
        seq.state = _GONE
        return True

    def _set_hold(self) -> None:
        """Whether this iteration must not prefill (``prefill_schedule_interval``)."""
        state = self.state
        decoding = len(state.running) - sum(1 for seq in state.loose.values() if seq.chunk)
        state.carried = False
        state.hold = not state.suspended and state.executed + 1 - state.last_prefill < state.interval and decoding > 0

    def _count_cadence(self, plan: BatchPlan, carries: bool) -> None:
        state = self.state
        if plan.total_tokens:
            state.executed += 1
        if carries:
            state.last_prefill = state.executed
        if not state.hold and not plan.preempted:
            state.suspended = len(self._waiting) > 0

    def running_in_order(self) -> Iterable[Sequence]:
        """The running list, in vLLM's order. Costs O(running)."""
        return self.state.running.values()

    def cache_entries(self) -> int:
        """Distinct block contents that can be hit now. Costs O(running)."""
        state = self.state
        held = []
        for seq in state.running.values():
            registered = seq.nreg if seq.state == _LOOSE else state.registered(seq, state.computed(seq))
            held.append((seq, registered))
        return self._pool.entries(held)


def _ticket(seq: Sequence) -> int:
    return seq.ticket
