"""One engine: deliver due events -> schedule -> execute -> update -> log, on the engine clock, as far as somebody lets it.

The clock is int64 ns and advances by what iterations take; idle gaps are skipped, nothing sleeps. Simulator and real engine
differ in one thing only: where a duration comes from. Under asynchronous scheduling plan n+1 is made at the clock of iteration
n's start. The loops are generators that give control back when the next plan would be made at or after the calendar's horizon:
whoever sends this engine its requests may then add some, and nothing comes out differently for it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from collections.abc import Sequence as SequenceOf

from replay_engine.arrivals import NEVER, Calendar
from replay_engine.coast import Coaster
from replay_engine.coasted import can_coast, may_coast
from replay_engine.config import SchedulerConfig
from replay_engine.followed_set import LongestLog, LongestSink
from replay_engine.front_door import DoorFacts
from replay_engine.handover import Desk, Handover
from replay_engine.intake import Client, Intake
from replay_engine.kv_counted import BlockPool
from replay_engine.pools import make_pool
from replay_engine.recorder import EventMode, Recorder
from replay_engine.rules import Rules
from replay_engine.scheduler import Scheduler
from replay_engine.simulator import SimExecutor, SkewedExecutor
from replay_engine.tables import OutcomeReason
from replay_engine.totals import RunTotals
from replay_engine.types import BatchPlan, EventSink, Executor, Pending, Request, Sequence, Watching

__all__ = ["Replica", "halt"]

_VLLM = Rules()
_NO_FACTS = DoorFacts()


def _schedule(executor: Executor, scheduler: Scheduler, recorder: Recorder) -> Callable[[int], BatchPlan]:
    return executor.watch(scheduler.schedule, recorder.flush) if isinstance(executor, Watching) else scheduler.schedule


class Replica:
    """An engine behind a calendar. ``next_ns`` is when its next plan is made, ``NEVER`` while nothing it knows of is to come.

    ``now`` is the end of its last iteration; ``client`` is told how its requests end. ``before``: the engine that failed and
    whose log this one continues, with a cold cache. The other options are those of ``Replay``.
    """

    _longest: LongestLog

    def __init__(
        self,
        calendar: Calendar,
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
        client: Client | None = None,
        handover: Handover | None = None,
        desk: Desk | None = None,
        pool: BlockPool | None = None,
        before: Replica | None = None,
    ) -> None:
        self.rules = rules
        pool = pool or make_pool(config, "auto", rules)
        follow = isinstance(executor, SkewedExecutor) and executor.follows
        self.scheduler = Scheduler(config, pool, rules, block_bytes=kv_block_bytes, handover=handover, follow=follow)
        self._desk, self._executor = desk, executor
        self.calendar = calendar
        sink = _followed(self, sink, mode in ("iterations", "full"), before) if follow else sink
        if before is None:
            self.recorder = Recorder(sink, config, mode=mode, stall_threshold_ns=stall_threshold_ns, on_chunk=on_chunk)
        else:
            self.recorder, self.scheduler.state.it = before.recorder, before.scheduler.state.it
        self._schedule = _schedule(executor, self.scheduler, self.recorder)
        self.recorder.spans.batch_answers = rules.batching.answers == "batch"
        self.intake = Intake(calendar, self.scheduler, self.recorder, rules, facts, client, desk)
        self.now: int = 0 if before is None else before.now
        self.next_ns = self.now
        self._coaster: Coaster | None = _coaster(self) if coast else None
        self._under_way: tuple[tuple[BatchPlan, Pending] | None, SequenceOf[Sequence], int] = (None, (), self.now)
        """The plan in flight, who has ended but still holds seat and blocks, and when the next plan is made."""
        self._loop = self._asynchronous() if config.async_scheduling else self._synchronous()

    @property
    def idle(self) -> bool:
        """Whether nobody runs or waits."""
        return not self.scheduler.has_requests()

    def advance(self, horizon_ns: int) -> None:
        """Make every plan that is made before ``horizon_ns``; nothing may be sent to this engine for an earlier moment any
        more. With ``NEVER``: to the end. An engine whose requests evict each other for ever stands still for good."""
        self.calendar.look_to(horizon_ns)
        if (self.next_ns < horizon_ns or horizon_ns == NEVER) and next(self._loop, True):
            self.next_ns = NEVER

    def push(self, at: int, request: Request, keys: SequenceOf[int]) -> None:
        """``request`` comes in at ``at`` (ns), not before the last horizon and in time order; the calendar is an ``Inbox``."""
        self.calendar.push(at, request, keys)
        if at < self.next_ns:
            self.next_ns = at

    def interrupted(self) -> None:
        """A stretch was cut off in its middle: what it has logged has been."""
        if self._coaster is not None:
            self.now = max(self.now, self._coaster.start)

    def end_all(self, reason: OutcomeReason) -> None:
        """Whoever came and has not ended fails."""
        self.intake.end_all(self.now, reason)

    def _synchronous(self) -> Generator[None]:
        calendar, scheduler, record, coaster = self.calendar, self.scheduler, self.recorder.record, self._coaster
        schedule, submit, update = self._schedule, self._executor.submit, scheduler.update
        state = scheduler.state
        running, waiting = state.running, state.waiting
        now = self.now
        while True:
            if now >= calendar.due_ns:
                if now >= calendar.horizon_ns:
                    self.next_ns = now
                    yield
                else:
                    self._deliver(now)
                continue
            if not running and not waiting:
                if calendar.due_ns == calendar.horizon_ns:
                    self.next_ns = calendar.next_ns
                    yield
                else:
                    now = calendar.due_ns
                continue
            if coaster is not None and may_coast(state) and coaster.run(now, now, []):
                now = self.now = coaster.start
                continue
            plan = schedule(now)
            if plan.fetching and self._desk is not None:
                self._desk.asked(plan.fetching, now)
            result = submit(plan).wait()
            record(plan, now, result)
            now += result.duration_ns
            self.now = now
            if plan.finishing:
                self._retire(update(plan))
            if plan.preempted and _no_progress(self, plan):
                break
            if not plan.decode_seqs and not plan.prefill:
                while (then := _wait(plan, now, calendar, scheduler)) >= calendar.horizon_ns:
                    self.next_ns = then
                    yield
                now = self.now = then

    def _asynchronous(self) -> Generator[None]:
        """``made`` is when the next plan is made: the start of the plan ``before`` it, so later arrivals are invisible to it.
        It runs from ``start``, when that one ends. ``owed`` ended in it and are freed once the next plan is made."""
        calendar, state, coaster = self.calendar, self.scheduler.state, self._coaster
        schedule, submit = self._schedule, self._executor.submit
        (before, owed, made), start = self._under_way, self.now
        while True:
            if made >= calendar.due_ns:
                if made >= calendar.horizon_ns:
                    self.next_ns, self._under_way = made, (before, owed, made)
                    yield
                    self._resume(made)
                else:
                    self._deliver(made)
                continue
            if not state.running and not state.waiting:
                if before is not None:
                    (made, _), before = self._complete(*before, made), None
                    start = made
                elif calendar.due_ns == calendar.horizon_ns:
                    self.next_ns, self._under_way = calendar.next_ns, (None, (), made)
                    yield
                else:
                    made = start = calendar.due_ns
                continue
            if coaster is not None and may_coast(state):
                if before is not None:
                    (start, owed), before = self._complete(*before, made), None
                if coaster.run(made, start, list(owed)):
                    made, start, owed, self.now = coaster.made, coaster.start, coaster.owed, coaster.start
                    continue
            plan = schedule(made)
            pending = submit(plan)
            if before is not None:
                start, owed = self._complete(*before, made)
            if owed or state.late:
                self._conclude(owed)
            if plan.fetching and self._desk is not None:
                self._desk.asked(plan.fetching, start)
            before, owed, made = (plan, pending), (), start
            if state.handover is not None and plan.waiting and not (plan.running or plan.preempted):
                made = start = yield from _blocked(self, plan, pending, made)
                before = None
                continue
            if plan.preempted and _no_progress(self, plan):
                return self._conclude(self._complete(plan, pending, made)[1])

    def _resume(self, made: int) -> None:
        """A stretch that stopped before a horizon that is not in the way any more: what is due at ``made`` comes first."""
        if self._coaster is not None and made < self.calendar.horizon_ns:
            self._deliver(made)
            if made < self.calendar.horizon_ns:
                self._coaster.settle()

    def _complete(self, plan: BatchPlan, pending: Pending, start: int) -> tuple[int, SequenceOf[Sequence]]:
        """``plan``, in flight since ``start``, ends. Returns when, and who got a last token."""
        result = pending.wait()
        self.recorder.record(plan, start, result)
        self.now = start + result.duration_ns
        return self.now, plan.finishing

    def _conclude(self, finishing: SequenceOf[Sequence]) -> None:
        self.scheduler.register_late()
        self._retire(self.scheduler.conclude(finishing))

    def _deliver(self, now: int) -> None:
        calendar = self.calendar
        while calendar.due_ns <= now and calendar.due_ns < calendar.horizon_ns:
            left = self.intake.deliver(now)
            if left and self.scheduler.state.gate is not None:  # whoever left may have been the last of a batch
                self._retire(self.scheduler.conclude(()))

    def _retire(self, finished: list[Sequence]) -> None:
        if finished and self.rules.batching.answers == "batch":
            self.recorder.spans.answer(finished, self.scheduler.state.it, self.now)
        if finished:
            self.scheduler.state.stuck = 0
            self.intake.retire(finished)


def _coaster(engine: Replica) -> Coaster | None:
    """What replays stretches, where blocks follow from sums and the executor predicts by its terms alone, as these two do."""
    executor, state = engine._executor, engine.scheduler.state
    if isinstance(executor, SimExecutor) and type(executor) in (SimExecutor, SkewedExecutor) and can_coast(state):
        return Coaster(engine.scheduler, executor, engine.recorder, engine.calendar, engine._deliver, engine._retire)
    return None


def _followed(engine: Replica, sink: EventSink, kept: bool, before: Replica | None) -> EventSink:
    """The executor of ``engine`` is told whose decodes it predicts, and rows get the longest of their contexts on their way to
    ``sink``."""
    assert isinstance(engine._executor, SkewedExecutor)
    engine._longest = LongestLog(kept=kept) if before is None else before._longest
    engine._executor.follow(engine.scheduler.state, engine._longest)
    return LongestSink(sink, engine._longest)


def halt(engine: Replica, at: int) -> int:
    """``engine``, which has been advanced to ``at`` (ns), makes no plan any more. What is under way still ends, and all that is
    due by then is delivered. Returns the moment from which it stands still."""
    before, owed, made = engine._under_way
    if engine._coaster is not None:
        engine._coaster.settle()
    engine.calendar.look_to(NEVER)
    if engine.scheduler.config.async_scheduling:
        engine._conclude(owed)
        if before is not None:
            engine._conclude(engine._complete(*before, made)[1])
    engine._loop.close()
    engine.now = max(engine.now, at)
    engine._deliver(engine.now)
    return engine.now


def _wait(plan: BatchPlan, now: int, calendar: Calendar, scheduler: Scheduler) -> int:
    """An iteration computed nothing: when something may have changed. ``NEVER`` when nothing ever will."""
    if plan.preempted or plan.loading or plan.admitted or plan.displaced:
        return now
    return max(now, min(calendar.next_ns, scheduler.wake_ns()))


def _blocked(engine: Replica, plan: BatchPlan, pending: Pending, start: int) -> Generator[None, None, int]:
    """Nobody runs and nobody can come in before KV has come or gone: when that is (ns)."""
    made = engine._complete(plan, pending, start)[0]
    while (then := max(made, engine.calendar.next_ns)) >= engine.calendar.horizon_ns:
        engine.next_ns, engine._under_way = then, (None, (), then)
        yield
    return then


def _no_progress(engine: Replica, plan: BatchPlan) -> bool:
    """Whether requests evict each other for ever: a long row of iterations that preempt and bring nobody a token.

    Nobody decodes and no prefill completes in such an iteration; whenever one of both happens the count starts again. Where KV is
    held for others, blocks will come free.
    """
    state = engine.scheduler.state
    waits = state.handover is not None and bool(state.handover.held)
    state.stuck = 0 if plan.decode_seqs or plan.sampled or waits else state.stuck + 1
    return state.stuck > 1000 + 10 * len(engine.intake.live)
