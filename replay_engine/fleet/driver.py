"""A replay over several engines behind one router, on one clock.

Replicas owe each other nothing, so each is only let on as far as somebody has to know: where a router looks at it, where it
fails, or, while ends release other requests, all together in the order of their clocks. What a replica writes is what it would
have written alone, sent the same requests.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from typing import Any

from replay_engine.arrivals import NEVER, Inbox
from replay_engine.config import SchedulerConfig
from replay_engine.failure import EngineFailure
from replay_engine.fleet.dispatch import Dispatch
from replay_engine.fleet.faults import Fault
from replay_engine.fleet.gateway import Gateway
from replay_engine.fleet.member import STOPPED, Member, Own, Sent
from replay_engine.fleet.routers import Router
from replay_engine.loop import RunState
from replay_engine.recorder import EventMode, Recorder
from replay_engine.replica import Replica
from replay_engine.rows import RowBuffer
from replay_engine.rules import Client, Rules
from replay_engine.simulator import SimExecutor
from replay_engine.sinks import ReplicaSink
from replay_engine.tables import OutcomeReason
from replay_engine.totals import RunTotals
from replay_engine.types import EventSink, Executor, Request, RequestSource

__all__ = ["FleetReplay"]

_VLLM = Rules()
_FAIL, _SLOW, _BACK, _AGAIN = range(4)
"""What happens at one moment happens in this order; arrivals come after all of it."""
_AHEAD = 256
"""Requests sent to a replica before it is let on, where no router looks."""


class FleetReplay:
    """Replays ``source`` through one engine per executor. ``run`` returns how it ended; ``totals`` are the sums over all.

    Rows reach ``sink`` with a field ``replica``. ``options`` are the other ones of ``Replay``; ``client.max_in_flight`` holds in
    front of the router, everything else per replica. ``own``: the KV pool that a replica's executor needs, and where its rows go,
    given its number and the sink. ``failure`` says why an engine gave up.
    """

    def __init__(
        self,
        source: RequestSource,
        config: SchedulerConfig,
        executors: SequenceOf[Executor],
        router: Router,
        sink: EventSink,
        *,
        faults: SequenceOf[Fault] = (),
        rules: Rules = _VLLM,
        mode: EventMode = "full",
        on_chunk: Callable[[RunTotals], None] | None = None,
        own: Own | None = None,
        **options: Any,
    ) -> None:
        self.config = config
        self._executors, self._own = executors, own
        self.failure: EngineFailure | None = None
        self._options = {**options, "mode": mode, "rules": replace(rules, client=Client())}
        self._sink = sink
        self._tell = on_chunk
        self._front = Recorder(ReplicaSink(sink, -1), config, mode=mode)
        self._routing = RowBuffer("routing", sink.append) if mode == "full" else None
        self.gateway = Gateway(source, config, rules, self._front)
        self.members = [Member(number, self._engine, self) for number in range(len(executors))]
        self._dispatch = Dispatch(self.members, router, self._front, self._routing)
        self._events: list[tuple[int, int, int, int, Fault | Sent]] = []
        self._serial = 0
        for fault in faults:
            self._add(fault.at_ns, _SLOW if fault.factor else _FAIL, fault.replica, fault)
        self._down_until = [0] * len(executors)
        self._running: Member | None = None
        self._now = 0

    def _engine(self, inbox: Inbox, member: Member, before: Replica | None) -> Replica:
        number = member.number
        sink: EventSink = ReplicaSink(self._sink, number)
        pool, sink = (None, sink) if self._own is None else self._own(number, sink)
        return Replica(
            inbox, self.config, self._executors[number], sink, client=member, before=before, pool=pool,
            on_chunk=None if self._tell is None else self._chunk, **self._options,
        )  # fmt: skip

    def _chunk(self, totals: RunTotals) -> None:
        if self._tell is not None:
            self._tell(self.totals)

    @property
    def totals(self) -> RunTotals:
        """Sums over all iterations of all replicas so far that were flushed."""
        return RunTotals.merged(self.totals_by_replica)

    @property
    def totals_by_replica(self) -> list[RunTotals]:
        """The same of each replica."""
        return [member.engine.recorder.totals for member in self.members]

    def run(self) -> RunState:
        """Replay to the end. An interrupt (Ctrl-C) or an engine's failure ends the run early, with all before it kept."""
        state: RunState = "finished"
        try:
            self._run()
            if not all(member.idle for member in self.members):
                state = "no_progress"
        except KeyboardInterrupt:
            state = "interrupted"
            for member in self.members:
                member.engine.interrupted()
        except EngineFailure as failure:
            state, self.failure = "failed", failure
        self._end(STOPPED.get(state))
        return state

    def _end(self, stopped: OutcomeReason | None) -> None:
        """Whoever has not ended fails, and all is written. ``stopped``: what stopped the whole replay."""
        now = max([self._now, *(member.engine.now for member in self.members)])
        reason = stopped or OutcomeReason.no_replica
        again = [(at, item) for at, kind, _, _, item in sorted(self._events) if kind == _AGAIN and isinstance(item, tuple)]
        for since, (request, _) in [*((since, sent) for since, sent, _ in self._dispatch.waiting), *again]:
            self.gateway.lost(request, max(now, since), reason, waited_since=since)
        for member in self.members:
            member.end_all(stopped or OutcomeReason.no_progress)
        self.gateway.end_all(now, reason)
        for recorder in (*(member.engine.recorder for member in self.members), self._front):
            recorder.flush()
        if self._routing is not None:
            self._routing.flush()

    def _run(self) -> None:
        gateway = self.gateway
        sent = 0
        while True:
            due = self._due()
            if gateway.depends:
                self._in_clock_order(due)
                due = self._due()
            if due == NEVER:
                break
            self._now = due
            while self._events and self._events[0][0] <= due:
                self._happens(*heapq.heappop(self._events))
            for request in gateway.due(due):
                self._dispatch.send(due, (request, gateway.calendar.keys(request)), due)
                sent += 1
            if gateway.exhausted:
                for member in self.members:
                    member.close(due)
            if sent >= _AHEAD * len(self.members):
                sent = 0
                for member in self.members:
                    member.look(due)
        for member in self.members:
            member.close(self._now)
            member.engine.advance(NEVER)

    def _due(self) -> int:
        due = self.gateway.calendar.next_ns
        return min(due, self._events[0][0]) if self._events else due

    def _in_clock_order(self, due: int) -> None:
        """Every replica makes its plans before ``due``, or before what an end releases on the way there."""
        engines = self.members
        while True:
            behind, second = None, NEVER
            for member in engines:
                at = member.engine.next_ns
                if behind is None or at < behind.engine.next_ns:
                    behind, second = member, second if behind is None else behind.engine.next_ns
                elif at < second:
                    second = at
            due = min(due, self._due())
            if behind is None or behind.engine.next_ns >= due:
                return
            self._running = behind
            behind.engine.advance(min(due, max(second, behind.engine.next_ns + 1)))
            self._running = None

    def ended(self, replica: int, request: Request, at: int, *, completed: bool) -> None:
        """``request`` is answered; if that releases others, the replica that runs now goes no further than there."""
        gateway, member = self.gateway, self._running
        if not gateway.depends:
            return
        gateway.ended(request, at, completed=completed)
        due = gateway.calendar.next_ns
        if member is not None and due < member.inbox.horizon_ns:
            member.inbox.look_to(due)
        if not gateway.exhausted:
            for each in self.members:
                each.open()

    def _add(self, at: int, kind: int, replica: int, item: Fault | Sent) -> None:
        self._serial += 1
        heapq.heappush(self._events, (at, kind, self._serial, replica, item))

    def _happens(self, at: int, kind: int, _: int, replica: int, item: Any) -> None:
        member = self.members[replica]
        if kind == _AGAIN:
            self._dispatch.send(at, item, at, lost=replica)
        elif kind == _SLOW:
            member.look(at)
            executor = self._executors[replica]
            assert isinstance(executor, SimExecutor), "a real engine is as fast as it is"
            executor.slow_down(item.factor)
            if item.until_ns < NEVER:
                self._add(item.until_ns, _SLOW, replica, Fault(replica=replica, at_ns=item.until_ns, factor=1.0))
        elif kind == _FAIL:
            self._down_until[replica] = max(self._down_until[replica], item.until_ns)
            if member.up:
                self._fails(replica, at)
            if item.until_ns < NEVER:
                self._add(item.until_ns, _BACK, replica, item)
        elif not member.up and at >= self._down_until[replica]:
            self._dispatch.back(replica, at)

    def _fails(self, replica: int, at: int) -> None:
        moment, lost = self._dispatch.fails(replica, at)
        for sent in lost:
            sent[0].attempt += 1
            self._add(moment, _AGAIN, replica, sent)
