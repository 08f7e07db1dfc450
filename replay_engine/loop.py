"""A replay through one engine: a request source in, totals out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from replay_engine.arrivals import NEVER, Calendar
from replay_engine.config import SchedulerConfig
from replay_engine.failure import EngineFailure
from replay_engine.front_door import DoorFacts
from replay_engine.kv_counted import BlockPool
from replay_engine.recorder import EventMode
from replay_engine.replica import Replica
from replay_engine.rules import Rules
from replay_engine.scheduler import Scheduler
from replay_engine.tables import OutcomeReason
from replay_engine.totals import RunTotals
from replay_engine.types import EventSink, Executor, RequestSource

__all__ = ["Replay", "RunState"]

RunState = Literal["finished", "no_progress", "interrupted", "failed"]
_VLLM = Rules()
_REASONS = {
    "no_progress": OutcomeReason.no_progress,
    "interrupted": OutcomeReason.interrupted,
    "failed": OutcomeReason.engine_failed,
}
_NO_FACTS = DoorFacts()


class Replay:
    """Replays a request source through one engine. ``run`` returns how it ended; ``totals`` has the sums.

    ``coast`` replays stretches of unchanged decoding without a plan for each iteration where the executor predicts (same rows).

    ``rules`` go beyond vLLM's knobs; ``facts`` is what the front door is told besides, ``kv_block_bytes`` the size of a KV block,
    for copies over the link; ``pool`` the KV pool of an engine that needs its own. ``failure`` says why an engine gave up.
    """

    def __init__(
        self,
        source: RequestSource,
        config: SchedulerConfig,
        executor: Executor,
        sink: EventSink,
        *,
        mode: EventMode = "full",
        stall_threshold_ns: int | None = None,
        on_chunk: Callable[[RunTotals], None] | None = None,
        coast: bool = True,
        rules: Rules = _VLLM,
        facts: DoorFacts = _NO_FACTS,
        kv_block_bytes: int = 1 << 21,
        pool: BlockPool | None = None,
    ) -> None:
        self.config = config
        self.rules = rules
        self.failure: EngineFailure | None = None
        self._engine = Replica(
            Calendar(source, config.block_size, caching=config.enable_prefix_caching), config, executor, sink, mode=mode,
            stall_threshold_ns=stall_threshold_ns, on_chunk=on_chunk, coast=coast, rules=rules, facts=facts,
            kv_block_bytes=kv_block_bytes, pool=pool,
        )  # fmt: skip

    @property
    def scheduler(self) -> Scheduler:
        """The engine's scheduler."""
        return self._engine.scheduler

    @property
    def now(self) -> int:
        """When the last iteration ended, on the engine clock (ns)."""
        return self._engine.now

    @property
    def totals(self) -> RunTotals:
        """Sums over all iterations so far that were flushed."""
        return self._engine.recorder.totals

    def run(self) -> RunState:
        """Replay to the end. An interrupt (Ctrl-C) or an engine's failure ends the run early, with all before it kept."""
        engine = self._engine
        state: RunState
        try:
            engine.advance(NEVER)
            state = "finished" if engine.idle else "no_progress"
        except KeyboardInterrupt:
            state = "interrupted"
            engine.interrupted()
        except EngineFailure as failure:
            state, self.failure = "failed", failure
        if state != "finished":
            engine.end_all(_REASONS[state])
        engine.recorder.flush()
        return state
