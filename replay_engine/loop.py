"""The one loop: deliver due events -> schedule -> execute -> update -> log, on the engine clock.

The clock is int64 ns and advances by what iterations take; idle gaps are skipped, nothing sleeps. Simulator and real engine
differ in one
thing only: where a duration comes from. Under asynchronous scheduling plan n+1 is made at the clock of iteration n's start.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import Literal

from replay_engine.arrivals import NEVER, Calendar
from replay_engine.coast import Coaster, can_coast
from replay_engine.config import SchedulerConfig
from replay_engine.front_door import DoorFacts
from replay_engine.intake import Intake
from replay_engine.pools import make_pool
from replay_engine.recorder import EventMode, Recorder
from replay_engine.rules import Rules
from replay_engine.scheduler import Scheduler
from replay_engine.simulator import SimExecutor
from replay_engine.tables import OutcomeReason
from replay_engine.totals import RunTotals
from replay_engine.types import (
    BatchPlan,
    EventSink,
    Executor,
    Pending,
    RequestSource,
    Sequence,
)

__all__ = ["Replay", "RunState"]

RunState = Literal["finished", "no_progress", "interrupted"]
_VLLM = Rules()
_NO_FACTS = DoorFacts()


class Replay:
    """Replays a request source through one engine. ``run`` returns how it ended; ``totals`` has the sums.

    ``coast`` replays stretches of unchanged decoding without a plan for each iteration where the executor predicts (same rows).

    ``rules`` go beyond vLLM's knobs; ``facts`` is what the front door is told besides, ``kv_block_bytes`` the size of a KV block,
    for copies over the link.
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
    ) -> None:
        self.config = config
        self.rules = rules
        self.scheduler = Scheduler(config, make_pool(config, "auto", rules), rules, block_bytes=kv_block_bytes)
        self._executor = executor
        self._calendar = Calendar(source, config.block_size, caching=config.enable_prefix_caching)
        self._recorder = Recorder(sink, config, mode=mode, stall_threshold_ns=stall_threshold_ns, on_chunk=on_chunk)
        self._recorder.spans.batch_answers = rules.batching.answers == "batch"
        self._intake = Intake(self._calendar, self.scheduler, self._recorder, rules, facts)
        self._live = self._intake.live
        self._stuck = 0
        self.now = 0
        self._coaster = (
            Coaster(self.scheduler, executor, self._recorder, self._calendar, self._deliver, self._retire)
            if coast and isinstance(executor, SimExecutor) and can_coast(self.scheduler)
            else None
        )

    @property
    def totals(self) -> RunTotals:
        """Sums over all iterations so far that were flushed."""
        return self._recorder.totals

    def run(self) -> RunState:
        """Replay to the end. An interrupt (Ctrl-C) ends the run as ``interrupted`` with all before it kept."""
        state: RunState
        try:
            finished = self._run_asynchronous() if self.config.async_scheduling else self._run_synchronous()
            state = "finished" if finished else "no_progress"
        except KeyboardInterrupt:
            state = "interrupted"
            if self._coaster is not None:
                self.now = max(self.now, self._coaster.start)
        if state != "finished":
            self._intake.end_all(self.now, OutcomeReason.no_progress if state == "no_progress" else OutcomeReason.interrupted)
        self._recorder.flush()
        return state

    def _run_synchronous(self) -> bool:
        calendar, scheduler, record, coaster = self._calendar, self.scheduler, self._recorder.record, self._coaster
        schedule, submit, update = scheduler.schedule, self._executor.submit, scheduler.update
        running, waiting = scheduler.state.running, scheduler.state.waiting
        now = self.now
        while True:
            if now >= calendar.due_ns:
                self._deliver(now)
            if not running and not waiting:
                if calendar.due_ns == NEVER:
                    return True
                now = calendar.due_ns
                continue
            if coaster is not None and coaster.ready() and coaster.run(now, now, []):
                now = self.now = coaster.start
                continue
            plan = schedule(now)
            result = submit(plan).wait()
            record(plan, now, result)
            now += result.duration_ns
            self.now = now
            if plan.finishing:
                self._retire(update(plan))
            if plan.preempted and self._no_progress(plan):
                return False
            if not plan.decode_seqs and not plan.prefill:
                now = self.now = self._wait(plan, now)
                if now == NEVER:
                    return False

    def _wait(self, plan: BatchPlan, now: int) -> int:
        """An iteration computed nothing: when something may have changed. ``NEVER`` when nothing ever will."""
        if plan.preempted or plan.loading or plan.admitted or plan.displaced:
            return now
        return max(now, min(self._calendar.due_ns, self.scheduler.wake_ns()))

    def _run_asynchronous(self) -> bool:
        """``made`` is when the next plan is made: the start of the plan ``before`` it, so later arrivals are invisible to it.
        It runs from ``start``, when that one ends. ``owed`` ended in it and are freed once the next plan is made."""
        calendar, scheduler, coaster = self._calendar, self.scheduler, self._coaster
        schedule, submit, state = scheduler.schedule, self._executor.submit, scheduler.state
        running, waiting = state.running, state.waiting
        made = start = self.now
        before: tuple[BatchPlan, Pending] | None = None
        owed: SequenceOf[Sequence] = ()
        while True:
            if made >= calendar.due_ns:
                self._deliver(made)
            if not running and not waiting:
                start = made if before is None else self._complete(*before, made)[0]
                before = None
                if start < calendar.due_ns:
                    start = calendar.due_ns
                made = start
                if made == NEVER:
                    return True
                continue
            if coaster is not None and coaster.ready():
                if before is not None:
                    start, owed = self._complete(*before, made)
                    before = None
                if coaster.run(made, start, list(owed)):
                    made, start, owed = coaster.made, coaster.start, coaster.owed
                    self.now = start
                    continue
            plan = schedule(made)
            pending = submit(plan)
            if before is not None:
                start, owed = self._complete(*before, made)
            if owed or state.late:
                self._conclude(owed)
                owed = ()
            before, made = (plan, pending), start
            if plan.preempted and self._no_progress(plan):
                self._conclude(self._complete(plan, pending, made)[1])
                return False

    def _complete(self, plan: BatchPlan, pending: Pending, start: int) -> tuple[int, SequenceOf[Sequence]]:
        """``plan``, in flight since ``start``, ends. Returns when, and who got a last token."""
        result = pending.wait()
        self._recorder.record(plan, start, result)
        self.now = start + result.duration_ns
        return self.now, plan.finishing

    def _conclude(self, finishing: SequenceOf[Sequence]) -> None:
        self.scheduler.register_late()
        self._retire(self.scheduler.conclude(finishing))

    def _deliver(self, now: int) -> None:
        while self._calendar.due_ns <= now:
            left = self._intake.deliver(now)
            if left and self.scheduler.state.gate is not None:  # whoever left may have been the last of a batch
                self._retire(self.scheduler.conclude(()))

    def _retire(self, finished: list[Sequence]) -> None:
        if finished and self.rules.batching.answers == "batch":
            self._recorder.spans.answer(finished, self.scheduler.state.it, self.now)
        if finished:
            self._stuck = 0
            self._intake.retire(finished)

    def _no_progress(self, plan: BatchPlan) -> bool:
        """Whether requests evict each other for ever: a long row of iterations that preempt and bring nobody a token.

        Nobody decodes and no prefill completes in such an iteration; whenever one of both happens the count starts again.
        """
        self._stuck = 0 if plan.decode_seqs or plan.sampled else self._stuck + 1
        return self._stuck > 1000 + 10 * len(self._live)
