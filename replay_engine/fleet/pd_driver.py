"""Prefill and decode pools on one clock: requests to a prefill engine, their KV over a link, the rest to a decode engine.

Whatever passes between engines is an event with a time, and handled in the order of time. An engine is let go on as far as
nothing that is not known yet can reach it: that is the next event, the next arrival, and the next plan of whoever may send to it.
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
from replay_engine.fleet.kv_connector import KvConnector
from replay_engine.fleet.kv_link import Transfer
from replay_engine.fleet.kv_moves import KvMoves
from replay_engine.fleet.member import STOPPED, Member, Own
from replay_engine.fleet.pd_exchange import Exchange
from replay_engine.fleet.pd_lives import Happening, PdMember
from replay_engine.fleet.routers import make_router
from replay_engine.handover import Handover
from replay_engine.loop import RunState
from replay_engine.recorder import EventMode, Recorder
from replay_engine.replica import Replica
from replay_engine.rows import RowBuffer
from replay_engine.rules import Client, FrontDoorRules, Rules
from replay_engine.sinks import ReplicaSink
from replay_engine.tables import OutcomeReason
from replay_engine.totals import RunTotals
from replay_engine.types import EventSink, Executor, RequestSource

__all__ = ["PdReplay"]


class PdReplay:
    """Replays a request source through ``rules.pd`` pools; outwardly a ``FleetReplay``.

    ``engines``: each pool's scheduler by name; ``executors``: one an engine, prefill engines first, which is also how engines are
    numbered in the rows. ``kv_block_bytes``: what a KV block weighs on the link. ``options`` are the other ones of ``Replay``.
    Engines that compute: ``own`` as for a ``FleetReplay``, and the ``connector`` that copies KV from one to another.
    """

    def __init__(
        self, source: RequestSource, engines: dict[str, SchedulerConfig], executors: SequenceOf[Executor], sink: EventSink, *,
        rules: Rules, faults: SequenceOf[Fault] = (), mode: EventMode = "full",
        on_chunk: Callable[[RunTotals], None] | None = None, kv_block_bytes: int = 1 << 21, seed: int = 0,
        own: Own | None = None, connector: KvConnector | None = None, **options: Any,
    ) -> None:  # fmt: skip
        pd, prefill = rules.pd, engines["prefill"]
        self.failure: EngineFailure | None = None
        self._own, self._connector = own, connector
        self.rules, self.executors = rules, executors
        self._configs, self._sink, self._tell = engines, sink, on_chunk
        self._options = {**options, "mode": mode, "kv_block_bytes": kv_block_bytes}
        self._front = Recorder(ReplicaSink(sink, -1), prefill, mode=mode)
        self._routing = RowBuffer("routing", sink.append) if mode == "full" else None
        caching = any(config.enable_prefix_caching for config in engines.values())
        self.gateway = Gateway(source, replace(prefill, enable_prefix_caching=caching), rules, self._front)
        rows = (lambda n: ReplicaSink(sink, n)) if mode == "full" else None
        self.moves = KvMoves(rules.kv_link, pd.prefill, rows, None if connector is None else self._copy)
        self.exchange = Exchange(rules, self.gateway, self.moves, executors, kv_block_bytes, connector)
        self._members: dict[str, list[PdMember]] = {}
        self.prefill = self._pool("prefill", 0, pd.prefill, pd.prefill_router, seed)
        self.decode = self._pool("decode", pd.prefill, pd.decode, pd.decode_router, seed)
        self.members = [*self._members["prefill"], *self._members["decode"]]
        self.exchange.open(self.prefill, self.decode, self.members, faults)

    def _pool(self, name: str, first: int, engines: int, router: str, seed: int) -> Dispatch:
        config, decode = self._configs[name], name == "decode"
        door = FrontDoorRules(timeout_s=self.rules.front_door.timeout_s) if decode else self.rules.front_door
        options = {**self._options, "rules": replace(self.rules, client=Client(), front_door=door)}

        def make(inbox: Inbox, member: Member, before: Replica | None) -> Replica:
            assert isinstance(member, PdMember)
            number = member.engine_number
            rows: EventSink = ReplicaSink(self._sink, number)
            pool, rows = (None, rows) if self._own is None else self._own(number, rows)
            kept = Handover(decode=decode, token_known=self.rules.pd.first_token_from == "prefill")
            return Replica(
                inbox, config, self.executors[number], rows, client=member, desk=member, handover=kept, before=before, pool=pool,
                on_chunk=None if self._tell is None else self._chunk, **options,
            )  # fmt: skip

        members = [PdMember(i, first + i, make, self.exchange, decode=decode) for i in range(engines)]
        self._members[name] = members
        made = make_router(router, engines, seed=seed, blocks=config.usable_blocks)
        return Dispatch(members, made, self._front, self._routing, first=first)

    def _copy(self, transfer: Transfer) -> int:
        """The KV that ``transfer`` is about, copied: how long that took (ns)."""
        life = self.exchange.lives[transfer.request]
        assert self._connector is not None and life.past is not None and life.second is not None
        target = self.rules.pd.prefill + transfer.target
        return self._connector.move(transfer.source, life.past, target, life.second, transfer.blocks)

    def _chunk(self, totals: RunTotals) -> None:
        if self._tell is not None:
            self._tell(self.totals)

    @property
    def totals(self) -> RunTotals:
        """Sums over all iterations of all engines so far that were flushed. A request counts as finished where it ended."""
        merged = RunTotals.merged(self.totals_by_replica)
        merged.finished = max(merged.finished - self.exchange.handed, 0)
        return merged

    @property
    def totals_by_replica(self) -> list[RunTotals]:
        """The same of each engine; a prefill engine's ``finished`` counts what it has handed over too."""
        return [member.engine.recorder.totals for member in self.members]

    def run(self) -> RunState:
        """Replay to the end. An interrupt (Ctrl-C) or an engine's failure ends the run early, with all before it kept."""
        state: RunState = "finished"
        try:
            self._play()
            stuck = any(member.up and member.engine.intake.live for member in self.members)
            state = "no_progress" if stuck and self._whole else "finished"
        except KeyboardInterrupt:
            state = "interrupted"
            for member in self.members:
                member.engine.interrupted()
        except EngineFailure as failure:
            state, self.failure = "failed", failure
        self._end(state)
        return state

    @property
    def _whole(self) -> bool:
        """Whether requests can still go all the way."""
        return not self.moves.down and bool(self.prefill.up) and bool(self.decode.up)

    def _end(self, state: RunState) -> None:
        """Whoever has not ended fails, and all is written."""
        reason = STOPPED.get(state, OutcomeReason.no_progress)
        if state == "finished":
            reason = OutcomeReason.link_failed if self.moves.down else OutcomeReason.no_replica
        now = max(member.engine.now for member in self.members)
        there = {index for member in self.members if member.up for index in (*member.engine.intake.live, *member.inbox.indices)}
        nobody = reason if state in STOPPED else OutcomeReason.no_replica
        for index, life in self.exchange.lives.items():
            if index not in there:
                since = max(life.since, life.request.arrival_ns)
                self.gateway.lost(life.request, max(now, since), nobody, waited_since=since)
        for member in self.members:
            member.end_all(reason)
        self.gateway.end_all(now, reason)
        for recorder in (*(member.engine.recorder for member in self.members), self._front):
            recorder.flush()
        self.moves.flush()
        if self._routing is not None:
            self._routing.flush()

    def _play(self) -> None:
        """Whatever is next: an event, an arrival, or a plan of the engine that is furthest behind."""
        exchange, gateway = self.exchange, self.gateway
        events = exchange.events
        while True:
            event, door = events[0][0] if events else NEVER, gateway.calendar.next_ns
            due = event if event < door else door
            engine = min((member.engine for member in self.members), key=_next)
            if due > engine.next_ns:
                engine.advance(max(min(due, self._bound(engine)), engine.next_ns + 1))
            elif due == NEVER:
                return
            elif event <= door:
                at, kind, _, what = heapq.heappop(events)
                exchange.handle(at, Happening(kind), what)
            else:
                for request in gateway.due(door):
                    exchange.arrive(request, door)

    def _bound(self, engine: Replica) -> int:
        """Before this moment (ns) no other engine can make anything that concerns ``engine``."""
        handover = engine.scheduler.state.handover
        assert handover is not None
        if self.exchange.coupled or self.gateway.depends:
            others = [member.engine for member in self.members]
        elif handover.decode:
            others = [member.engine for member in self._members["prefill"]]
        else:
            others = [member.engine for member in self._members["decode"]] if handover.held else []
        return min((other.next_ns for other in others if other is not engine), default=NEVER)

def _next(engine: Replica) -> int:
    return engine.next_ns
