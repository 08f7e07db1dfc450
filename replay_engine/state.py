"""What the scheduler's three passes share: the knobs as numbers, the running list, the decode set, the pool, the queue."""

from __future__ import annotations

from replay_engine.config import SchedulerConfig
from replay_engine.decode_set import DecodeSet
from replay_engine.kv_counted import BlockPool
from replay_engine.queues import FcfsQueue, PriorityQueue, WaitingQueue
from replay_engine.types import SeqState, Sequence

__all__ = ["State"]

_DECODE = int(SeqState.DECODE)
_DRAIN = int(SeqState.DRAIN)


class State:
    """Mutable scheduler state, with one slot for each thing a pass reads.

    ``running`` maps tickets (handed out at admission) to sequences: insertion order is vLLM's running list.
    ``it`` counts ``schedule`` calls; the decode set's implied counters hang on it.
    """

    __slots__ = (
        "adaptive", "budget", "carried", "chunked", "continue_self", "decodes", "evicted", "executed", "fill_offset", "full_isl", "hold", "interval",
        "it", "joined", "lag", "last_prefill", "late", "left", "lone_exempt", "loose", "memo_changes", "memo_head", "memo_lack",
        "next_ticket", "pool", "priority", "reserve", "running", "seats", "size", "suspended", "threshold", "waiting",
    )  # fmt: skip

    def __init__(self, config: SchedulerConfig, pool: BlockPool) -> None:
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
        self.priority = config.policy == "priority"
        self.lone_exempt = new
        self.continue_self = new and self.priority
        self.lag = 1 if config.async_scheduling else 0
        self.fill_offset = 1 - self.lag
        self.pool = pool
        self.decodes = DecodeSet(config.block_size)
        self.running: dict[int, Sequence] = {}
        self.loose: dict[int, Sequence] = {}
        self.waiting: WaitingQueue = PriorityQueue() if self.priority else FcfsQueue()
        self.it = -1
        self.next_ticket = 0
        self.joined: list[Sequence] = []
        self.left: list[Sequence] = []
        self.late: list[Sequence] = []
        """Starved asynchronous decodes whose last full block is registered when their token lands."""
        self.evicted = 0
        self.hold = False
        self.executed = 0
        self.last_prefill = -self.interval
        self.suspended = False
        self.carried = False
        """Whether the walk gave a prefill chunk, even if a preemption took it back: the cadence counts it."""
        self.memo_head: Sequence | None = None
        self.memo_lack = 0
        self.memo_changes = 0

    def computed(self, seq: Sequence) -> int:
        """Tokens of ``seq`` that are computed or being computed after the last ``schedule``."""
        return self.it - seq.origin if seq.state == _DECODE else seq.comp

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
