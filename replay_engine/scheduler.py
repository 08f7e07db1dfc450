"""The scheduler: vLLM's decisions, at a cost of O(changes). Pure: no I/O, no clock of its own, no randomness.

``schedule`` decides one iteration, ``update`` takes its outcome. Asynchronous scheduling is not a second algorithm: the driver
calls
``update(plan n-1)`` after ``schedule(n)``, so seats and blocks are held one iteration longer by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

from replay_engine.admission import admit_waiting
from replay_engine.advancing import advance, drain
from replay_engine.cadence import count_cadence, set_hold
from replay_engine.config import SchedulerConfig
from replay_engine.ending import abort, conclude, register_late
from replay_engine.fetching import fetch_arrived, fetch_lost, release_held
from replay_engine.handover import Handover, enlist
from replay_engine.kv_counted import BlockPool
from replay_engine.phases import phased_pass
from replay_engine.plain_admission import admit_into
from replay_engine.pools import make_pool
from replay_engine.preempting import end_loading, make_room
from replay_engine.rules import Rules
from replay_engine.running import running_pass
from replay_engine.state import State
from replay_engine.swap import HostPool
from replay_engine.types import BatchPlan, Refusal, Request, SeqState, Sequence

__all__ = ["NO_WAKE", "Scheduler"]

_LOOSE = int(SeqState.LOOSE)
_AFTER_PREEMPTION = int(Refusal.after_preemption)
NO_WAKE = 1 << 62
"""No time at which waiting alone changes anything, ns."""
_DEFAULT = Rules()


class Scheduler:
    """One engine's scheduler. Counters of decoding sequences are implied: read them with ``computed``.

    ``rules`` go beyond vLLM's knobs; the defaults are vLLM. ``block_bytes``: of a KV block. ``follow``: a ``FollowedSet``.
    """

    __slots__ = ("_decodes", "_fill", "_loose", "_pool", "_size", "_waiting", "config", "rules", "state")

    def __init__(
        self,
        config: SchedulerConfig,
        pool: BlockPool | None = None,
        rules: Rules = _DEFAULT,
        *,
        block_bytes: int = 1 << 21,
        handover: Handover | None = None,
        follow: bool = False,
    ) -> None:
        self.config = config
        self.rules = rules
        host = HostPool(rules.preemption.host_blocks if rules.preemption.mode == "swap" else 0, rules.link, block_bytes)
        pool = make_pool(config, "auto", rules) if pool is None else pool
        state = self.state = State(config, pool, rules, host, handover, follow=follow)
        self._decodes = state.decodes
        self._pool = state.pool
        self._loose = state.loose
        self._waiting = state.waiting
        self._size = state.size
        self._fill = state.fill_offset

    def add(self, request: Request, keys: SequenceOf[int]) -> Sequence:
        """Queue a request; ``keys`` are its block keys (``BlockPool.bind``). Prompts of ``max_model_len`` or more never get
        here."""
        limit = min(request.output_tokens, self.config.max_model_len - request.prompt_tokens)
        assert limit > 0
        seq = Sequence(request, limit)
        handover = self.state.handover
        if handover is not None:
            enlist(handover, seq)
        if self.state.contiguous or self.rules.batching.output_reserve != "none":
            seq.reserved_tokens = self.state.reserved(request, limit, self.config.max_model_len)
        self._pool.bind(seq, keys)
        if self.state.shares is not None:
            self.state.shares.tick = self.state.it
        self._waiting.push(seq)
        return seq

    def has_requests(self) -> bool:
        """Whether anything waits or runs."""
        return bool(self.state.running or len(self._waiting))

    def computed(self, seq: Sequence) -> int:
        """Computed tokens of ``seq`` after the last ``schedule``."""
        return self.state.computed(seq)

    def wake_ns(self) -> int:
        """Engine time at which an empty plan may stop being one although nothing arrives: a window closes, a copy is done."""
        state = self.state
        wake = min((seq.ready_ns for seq in state.loading), default=NO_WAKE)
        if state.gate is not None and not state.running and state.waiting:
            wake = min(wake, max(state.gate.open_ns(len(state.waiting), state.waiting.head().request.arrival_ns), state.now))
        return wake

    def drained(self) -> None:
        """No more requests will be added."""
        if self.state.gate is not None:
            self.state.gate.drained = True

    def schedule(self, now: int = 0) -> BatchPlan:
        """Decide one iteration at engine time ``now`` (ns). The plan's ``joined``/``left`` are handed over once."""
        state, decodes = self.state, self._decodes
        it = state.it = state.it + 1
        state.now = now
        plan = BatchPlan()
        plan.iteration = it
        if state.interval > 1:
            set_hold(state)
        if state.rules is not _DEFAULT:
            self._begin(plan)
        grants: list[tuple[Sequence, int]] | None = None
        carries = False
        phased = phased_pass(state, plan) if state.turns is not None else None
        spare = 0
        if phased is not None:
            grants, carries = phased
        else:
            spare, grants, carries = self._run(plan)
        if state.joined:
            plan.joined, state.joined = state.joined, []
        if state.left:
            plan.left, state.left = state.left, []
        plan.decode_seqs = decodes.count
        decodes.kv += decodes.count
        plan.decode_kv = decodes.kv
        if self._waiting and phased is None:
            carries = self._admit(plan, spare, grants) or carries
        if it in decodes.calendar:
            plan.finishing = drain(state, it)
        if grants:
            advance(state, plan, grants)
        if state.interval > 1:
            count_cadence(state, plan, carries)
        self._note_levels(plan)
        return plan

    def _note_levels(self, plan: BatchPlan) -> None:
        state, pool = self.state, self._pool
        plan.running = len(state.running)
        plan.waiting = len(self._waiting)
        plan.kv_free = pool.free
        plan.kv_blank = pool.blank
        if pool.evicted != state.evicted:
            plan.evicted = pool.evicted - state.evicted
            state.evicted = pool.evicted

    def _begin(self, plan: BatchPlan) -> None:
        """What the rules beyond vLLM do before anybody is served."""
        state = self.state
        if self.rules.batching.mode == "static":
            plan.scheduling = False
        if state.turns is not None:
            state.hold = False
        if state.shares is not None:
            state.shares.tick, state.shares.now_ns = state.it - 1, state.now
        if state.loading:
            end_loading(state)
        if state.rules.preemption.to_admit and self._waiting:
            make_room(state, plan)

    def _run(self, plan: BatchPlan) -> tuple[int, list[tuple[Sequence, int]], bool]:
        """The running list's share: budget left, explicit grants, whether it carries prefill."""
        state = self.state
        due = state.growth()
        if self._loose or len(due) > self._pool.free:
            spare, grants = running_pass(state, plan, due)
            carries = state.interval > 1 and (state.carried or any(seq.chunk for seq, _ in grants))
            return spare, grants, carries
        if due or self._fill:
            self._pool.advance(due, self._decodes.buckets[(state.it + self._fill) % self._size], state.it, ())
        return state.budget - self._decodes.count, [], False

    def _admit(self, plan: BatchPlan, spare: int, grants: list[tuple[Sequence, int]]) -> bool:
        if spare < 0:
            plan.refused_by, plan.refused = _AFTER_PREEMPTION, self._waiting.head()
            return False
        state = self.state
        if state.shares is not None:
            state.shares.tick = state.it
        if state.plain:
            admit_into(state, plan, spare, grants)
            return False
        before = len(grants)
        carries = admit_waiting(state, plan, spare, grants)
        if state.gate is not None:
            if state.gate.to_admit and len(grants) == before and state.running:
                state.gate.to_admit = 0  # the rest of the batch does not fit: it is what it is
            plan.scheduling = plan.scheduling or len(grants) > before
        return carries

    def update(self, plan: BatchPlan) -> list[Sequence]:
        """The outcome of ``plan`` is known: free what finished, in scheduling order. Returns the finished sequences."""
        self.register_late()
        return self.conclude(plan.finishing) if plan.finishing else []

    def conclude(self, finishing: SequenceOf[Sequence]) -> list[Sequence]:
        """Sequences whose last token has come free what they hold; those gone already are left out of the answer."""
        return conclude(self.state, finishing)

    def register_late(self) -> None:
        """Register the last full block of asynchronous decodes that starved while its last token was in flight."""
        register_late(self.state)

    def abort(self, seq: Sequence) -> bool:
        """The client is gone: free the blocks at once, between iterations. False if it had already ended."""
        return abort(self.state, seq)

    def release_transferred(self, seq: Sequence) -> bool:
        """The KV of ``seq``, which was computed here, is needed here no more. False if nothing was held for it."""
        return release_held(self.state, seq)

    def fetched(self, seq: Sequence) -> None:
        """The KV of ``seq`` has come: it is first in line for a seat."""
        fetch_arrived(self.state, seq)

    def fetch_failed(self, seq: Sequence, *, again: bool) -> None:
        """The KV of ``seq`` will not come: it computes its prompt here, or (``again``) waits for blocks to fetch it once more."""
        fetch_lost(self.state, seq, again=again)

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
