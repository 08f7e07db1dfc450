"""What the front door sees of an engine: its queue, and how full its KV cache is."""

from __future__ import annotations

from replay_engine.config import SchedulerConfig
from replay_engine.expected import least_prefill
from replay_engine.rules import Rules
from replay_engine.scheduler import Scheduler
from replay_engine.types import Request, SeqState, Sequence

__all__ = ["QueueView"]

_WAIT = int(SeqState.WAIT)


class QueueView:
    """Looks at one scheduler. Token sums are taken once after each decision of the scheduler, by one walk over the queue, and
    kept up to date as requests come; nothing is counted where no rule asks.
    """

    __slots__ = ("_ahead", "_by", "_scheduler", "_seen", "_tokens", "caching", "kv_total", "waiting")

    def __init__(self, scheduler: Scheduler, config: SchedulerConfig, rules: Rules) -> None:
        self._scheduler = scheduler
        self.waiting = scheduler.state.waiting
        self.kv_total = config.usable_blocks
        self.caching = config.enable_prefix_caching
        by = config.policy if rules.order.by == "engine" else rules.order.by
        strict = rules.batching.mode == "continuous" and not config.long_prefill_token_threshold
        self._by = by if strict and by in ("fcfs", "priority") else None
        """The order in which nobody overtakes; ``None``: somebody behind may be served before."""
        self._seen = -2
        self._tokens = 0
        self._ahead: dict[int, int] = {}

    def requests(self) -> int:
        """Requests waiting."""
        return len(self.waiting)

    def kv_used(self) -> int:
        """Blocks in use."""
        return self.kv_total - self._scheduler.state.pool.free

    def tokens(self) -> int:
        """Tokens that the requests waiting still have to compute before their next token."""
        self._look()
        return self._tokens

    def ahead_of(self, request: Request) -> int:
        """Prefill tokens that must be computed before the request's own, at least. 0 where the order promises nothing."""
        if self._by is None:
            return 0
        self._look()
        urgent = self._ahead.items()
        return sum(tokens for priority, tokens in urgent if self._by == "fcfs" or priority <= request.priority)

    def came(self, seq: Sequence) -> None:
        """``seq`` was added to the queue."""
        if self._seen == self._scheduler.state.it:
            self._count(seq)

    def left(self) -> None:
        """Somebody left the queue between two decisions: count again."""
        self._seen = -2

    def _look(self) -> None:
        it = self._scheduler.state.it
        if self._seen != it:
            self._seen, self._tokens, self._ahead = it, 0, {}
            for seq in self.waiting.in_order():
                self._count(seq)

    def _count(self, seq: Sequence) -> None:
        if seq.state != _WAIT:  # its KV is kept: it goes on decoding
            return
        self._tokens += seq.nt
        least = least_prefill(seq.request, caching=self.caching)
        self._ahead[seq.priority] = self._ahead.get(seq.priority, 0) + least
