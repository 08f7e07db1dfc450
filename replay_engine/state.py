"""What the scheduler's passes share: the knobs as numbers, the running list, the decode set, the pool, the queue."""

from __future__ import annotations

from replay_engine.batches import BatchGate
from replay_engine.config import SchedulerConfig
from replay_engine.decode_set import DecodeSet
from replay_engine.followed_set import FollowedSet
from replay_engine.handover import FetchedFirst, Handover
from replay_engine.kv_contiguous import ContiguousPool
from replay_engine.kv_counted import BlockPool, CountedPool
from replay_engine.plugins import Admit, Victim, load_plugin, plugin_name
from replay_engine.queues import FairQueue, FcfsQueue, KeyedQueue, WaitingQueue, order_key
from replay_engine.rules import Batching, Rules
from replay_engine.shares import FairShares
from replay_engine.swap import HostPool
from replay_engine.types import Request, SeqState, Sequence

__all__ = ["State"]

_DECODE = int(SeqState.DECODE)
_PLAIN = Batching()
_NO_BLOCKS: dict[int, Sequence] = {}


class State:
    """Mutable scheduler state, with one slot for each thing a pass reads.

    ``running`` maps tickets (handed out at admission) to sequences: insertion order is vLLM's running list.
    ``it`` counts ``schedule`` calls; the decode set's implied counters hang on it.
    """

    __slots__ = (
        "adaptive", "admit", "align", "budget", "carried", "chunked", "contiguous", "continue_self", "counted", "decode_first",
        "decodes", "evicted", "executed", "expected", "fill_offset", "full_isl", "gate", "handover", "hold", "host", "interval",
        "it", "joined", "lag", "last_prefill", "late", "left", "levels", "loading", "lone_exempt", "loose", "memo_changes",
        "memo_head", "memo_lack", "next_ticket", "now", "partial", "paused", "plain", "pool", "priority", "reserve",
        "reserve_decode", "rules", "running", "seats", "shares", "size", "stuck", "suspended", "threshold", "turn", "turns",
        "usable", "victim", "waiting",
    )  # fmt: skip

    def __init__(
        self, config: SchedulerConfig, pool: BlockPool, rules: Rules, host: HostPool, handover: Handover | None = None, *,
        follow: bool = False,
    ) -> None:  # fmt: skip
        self._set_knobs(config)
        self._set_rules(config, rules, handover)
        self.pool = pool
        self.host = host
        self.contiguous = isinstance(pool, ContiguousPool)
        self.counted = isinstance(pool, CountedPool)
        self.plain = not self.contiguous and self._without_rules(rules)
        """Whether nothing but the queue's order and vLLM's knobs bears on admission, and the rarer of these are off."""
        self.usable = config.usable_blocks
        self.decodes = (FollowedSet if follow else DecodeSet)(config.block_size, self.shares)
        self.running: dict[int, Sequence] = {}
        self.loose: dict[int, Sequence] = {}
        self.it = -1
        self.now = self.next_ticket = 0
        self.joined: list[Sequence] = []
        self.left: list[Sequence] = []
        self.late: list[Sequence] = []
        """Starved asynchronous decodes whose last full block is registered when their token lands."""
        self.paused: dict[int, Sequence] = {}
        """Waiting sequences that keep their KV, by request, in the order in which they were paused."""
        self.loading: list[Sequence] = []
        self.expected = 0
        """Prompt and expected output tokens of everything admitted (``batching.output_reserve``)."""
        self.levels: dict[int, int] = {}
        """Running sequences by priority, kept where a more urgent arrival may preempt."""
        self.hold = False
        self.turn = self.evicted = 0
        self.executed = 0
        self.stuck = 0
        """Iterations that preempted and brought nobody a token, since one that did not."""
        self.last_prefill = -self.interval
        self.suspended = False
        self.carried = False
        """Whether the walk gave a prefill chunk, even if a preemption took it back: the cadence counts it."""
        self.memo_head: Sequence | None = None
        self.memo_lack = self.memo_changes = 0

    def _set_knobs(self, config: SchedulerConfig) -> None:
        new = config.engine_version == "0.33.0"
        self.budget = config.token_budget
        self.seats = config.seat_limit
        self.size = config.block_size
        self.threshold = config.long_prefill_token_threshold
        self.adaptive = config.max_num_batched_tokens if config.long_prefill_token_threshold_adaptive else 0
        self.reserve = int(config.watermark * config.num_gpu_blocks)
        self.full_isl = config.scheduler_reserve_full_isl
        self.chunked = config.enable_chunked_prefill
        self.interval = config.prefill_schedule_interval
        self.lone_exempt = new
        self.continue_self = new and config.policy == "priority"
        self.lag = 1 if config.async_scheduling else 0
        self.fill_offset = 1 - self.lag

    def _set_rules(self, config: SchedulerConfig, rules: Rules, handover: Handover | None) -> None:
        self.rules = rules
        self.handover = handover
        batching = rules.batching
        self.decode_first = batching.step == "decode_first"
        self.turns = {"prefill_first": (1, 0), "interleave": batching.turns}.get(batching.step)
        self.reserve_decode = batching.decode_reserve
        self.align = batching.chunk_align
        self.partial = batching.max_partial_prefills
        self.gate = BatchGate(batching) if batching.mode != "continuous" else None
        by = config.policy if rules.order.by == "engine" else rules.order.by
        self.priority = rules.preemption.victim == "lowest_priority" or (
            rules.preemption.victim == "engine" and config.policy == "priority"
        )
        self.shares = FairShares(rules.order.prompt_weight, rules.order.output_weight) if by == "fair" else None
        queue = self._queue(by)
        self.waiting: WaitingQueue = FetchedFirst(queue) if self._fetches else queue
        own = plugin_name(rules.preemption.victim)
        self.victim: Victim | None = load_plugin("victim", own) if own else None
        own = plugin_name(batching.admit)
        self.admit: Admit | None = load_plugin("admit", own) if own else None

    @property
    def _fetches(self) -> bool:
        return self.handover is not None and self.handover.decode

    def _without_rules(self, rules: Rules) -> bool:
        plain = rules.batching == _PLAIN and not rules.order.reserved and not rules.preemption.to_admit
        return plain and self.interval == 1 and not self._fetches

    def _queue(self, by: str) -> WaitingQueue:
        if by == "fcfs":
            return FcfsQueue()
        if self.shares is not None:
            return FairQueue(self.shares, self.rules.order.aging_s)
        own = plugin_name(by)
        return KeyedQueue(load_plugin("order", own) if own else order_key(self.rules.order, by))

    def growth(self) -> dict[int, Sequence]:
        """Members of the decode set that need a block in this iteration."""
        return _NO_BLOCKS if self.contiguous else self.decodes.buckets[self.it % self.size]

    def computed(self, seq: Sequence) -> int:
        """Tokens of ``seq`` that are computed or being computed after the last ``schedule``."""
        return self.it - seq.origin if seq.state == _DECODE else seq.comp

    def held(self, seq: Sequence, comp: int) -> int:
        """Blocks a sequence with ``comp`` computed tokens holds, whose counters are implied."""
        return seq.nblocks if self.contiguous else -(-comp // self.size)

    def registered(self, seq: Sequence, comp: int) -> int:
        """Cached full blocks of a decoding sequence with ``comp`` computed tokens; the one in flight is not known yet."""
        if self.lag:
            known = (comp - 1) // self.size
            return known if known > seq.nreg else seq.nreg
        return comp // self.size

    def cap(self) -> int:
        """The threshold in force in this iteration: most tokens one request may get, 0 for no cap."""
        threshold = self.threshold
        if not threshold:
            return 0
        requests = len(self.running) + len(self.waiting)
        if self.lone_exempt and requests <= 1:
            return 0
        if self.adaptive:
            return max(threshold, self.adaptive // max(requests, 1))
        return threshold

    def aligned(self, tokens: int, left: int) -> int:
        """``tokens`` of a prefill with ``left`` to go, cut so that a chunk that does not end it is a multiple of the
        alignment."""
        return tokens if tokens >= left else tokens - tokens % self.align

    def reserved(self, request: Request, limit: int, longest: int) -> int:
        """Output tokens for which room is kept: all that may come in one piece, or what admission expects."""
        batching = self.rules.batching
        most = longest - request.prompt_tokens
        known = request.max_tokens if request.max_tokens is not None else most
        if self.contiguous:
            return max(min(known, most), limit)
        if batching.output_reserve == "predicted" and request.predicted_tokens is not None:
            known = request.predicted_tokens
        known = min(known, most)
        if batching.output_reserve_clip is not None:
            known = min(known, batching.output_reserve_clip)
        return round(known * batching.output_reserve_ratio)

    def seat(self, seq: Sequence) -> None:
        """``seq`` joins the running list."""
        seq.ticket = self.next_ticket
        self.next_ticket += 1
        self.running[seq.ticket] = seq
        self.expected += seq.prompt_tokens + seq.reserved_tokens
        if self.rules.preemption.to_admit:
            self.levels[seq.priority] = self.levels.get(seq.priority, 0) + 1

    def unseat(self, seq: Sequence) -> None:
        """``seq`` leaves the running list."""
        del self.running[seq.ticket]
        self.expected -= seq.prompt_tokens + seq.reserved_tokens
        if self.rules.preemption.to_admit:
            self.levels[seq.priority] -= 1
            if not self.levels[seq.priority]:
                del self.levels[seq.priority]
