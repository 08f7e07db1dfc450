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

from replay_engine.arrivals import NEVER, Calendar, EventKind, Inbox
from replay_engine.config import SchedulerConfig
from replay_engine.fleet.kv_link import Transfer
from replay_engine.fleet.kv_moves import KvMoves
from replay_engine.fleet.pd_lives import Answer, Happening, Life, Speaker, carry_over
from replay_engine.fleet.pd_pool import Pool
from replay_engine.fleet.routers import make_router
from replay_engine.front_door import DoorFacts
from replay_engine.handover import Handover
from replay_engine.loop import RunState
from replay_engine.recorder import EventMode
from replay_engine.replica import Replica
from replay_engine.rules import Client, FrontDoorRules, Rules
from replay_engine.tables import OutcomeReason, TransferEnd
from replay_engine.totals import RunTotals
from replay_engine.types import EventSink, Executor, Phase, Request, RequestSource, RequestState, Sequence

__all__ = ["PdReplay"]

_NO_FACTS = DoorFacts()


class PdReplay:
    """Replays a request source through ``rules.pd`` pools; outwardly a ``Replay``.

    ``engines``: each pool's scheduler by name; ``executor`` makes one for it; ``sink(n)``: where the rows of engine ``n``
    go, prefill engines first. ``kv_block_bytes``: what a KV block weighs on the link.
    """

    def __init__(
        self, source: RequestSource, engines: dict[str, SchedulerConfig], executor: Callable[[SchedulerConfig], Executor],
        sink: Callable[[int], EventSink], *, rules: Rules, mode: EventMode = "full", stall_threshold_ns: int | None = None,
        on_chunk: Callable[[RunTotals], None] | None = None, coast: bool = True, facts: DoorFacts = _NO_FACTS,
        kv_block_bytes: int = 1 << 21, seed: int = 0,
    ) -> None:  # fmt: skip
        self.rules = rules
        self._configs, self._executor, self._sink = engines, executor, sink
        self._shared: dict[str, Any] = {
            "mode": mode, "stall_threshold_ns": stall_threshold_ns, "on_chunk": on_chunk, "coast": coast, "facts": facts,
            "kv_block_bytes": kv_block_bytes,
        }  # fmt: skip
        caching = any(config.enable_prefix_caching for config in engines.values())
        self._trace = Calendar(source, engines["prefill"].block_size, caching=caching)
        self._events: list[tuple[int, int, int, Answer | Sequence | Transfer]] = []
        self._number = 0
        self._lives: dict[int, Life] = {}
        self._coupled = rules.front_door.timeout_s is not None or rules.front_door.queue_timeout_s is not None
        """Whether a request may leave by itself, and free what others wait for."""
        pd = rules.pd
        self.moves = KvMoves(rules.kv_link, pd.prefill, sink if mode == "full" else None)
        self.prefill = self._pool("prefill", 0, pd.prefill, pd.prefill_router, seed)
        self.decode = self._pool("decode", pd.prefill, pd.decode, pd.decode_router, seed)
        self.engines = [*self.prefill.engines, *self.decode.engines]

    def _pool(self, name: str, first: int, engines: int, router: str, seed: int) -> Pool:
        config = self._configs[name]
        made = [self._engine(first + i, config, decode=name == "decode") for i in range(engines)]
        return Pool(first, made, make_router(router, engines, seed=seed, blocks=config.usable_blocks))

    def _engine(self, number: int, config: SchedulerConfig, *, decode: bool) -> Replica:
        rules, says = self.rules, Speaker(self, number)
        own = replace(rules, client=Client(), front_door=_door(rules) if decode else rules.front_door)
        kept = Handover(decode=decode, token_known=rules.pd.first_token_from == "prefill")
        return Replica(
            Inbox(), config, self._executor(config), self._sink(number), rules=own, client=says, handover=kept, desk=says,
            **self._shared,
        )  # fmt: skip

    def run(self) -> RunState:
        """Replay to the end. An interrupt (Ctrl-C) ends the run as ``interrupted`` with all before it kept."""
        state: RunState = "finished"
        try:
            self._play()
            if self._lives:
                state = "no_progress"
        except KeyboardInterrupt:
            state = "interrupted"
            for engine in self.engines:
                engine.interrupted()
        if state != "finished":
            self._end_all(OutcomeReason.no_progress if state == "no_progress" else OutcomeReason.interrupted)
        for engine in self.engines:
            engine.recorder.flush()
        self.moves.flush()
        return state

    def _play(self) -> None:
        """Whatever is next: an event, an arrival, or a plan of the engine that is furthest behind."""
        events, trace, engines = self._events, self._trace, self.engines
        while True:
            event = events[0][0] if events else NEVER
            arrival = trace.arrival_ns
            due = event if event < arrival else arrival
            engine = min(engines, key=_next)
            if due > engine.next_ns:
                engine.advance(max(min(due, self._bound(engine)), engine.next_ns + 1))
            elif due == NEVER:
                return
            elif event <= arrival:
                at, kind, _, what = heapq.heappop(events)
                self._handle(at, kind, what)
            else:
                self._arrive(trace.pop_arrival(), arrival)

    def _bound(self, engine: Replica) -> int:
        """Before this moment (ns) no other engine can make anything that concerns ``engine``."""
        if self._coupled or self._trace.has_followers:
            return min((other.next_ns for other in self.engines if other is not engine), default=NEVER)
        handover = engine.scheduler.state.handover
        assert handover is not None
        if handover.decode:
            return self.prefill.next_ns
        return self.decode.next_ns if handover.held else NEVER

    def _add(self, at: int, kind: Happening, what: Answer | Sequence | Transfer) -> None:
        self._number += 1
        heapq.heappush(self._events, (at, int(kind), self._number, what))

    def _handle(self, at: int, kind: int, what: Answer | Sequence | Transfer) -> None:
        if isinstance(what, Answer):
            self._answer(what, at)
        elif isinstance(what, Sequence):
            self._hand_over(what, at)
        elif kind == Happening.moved:
            self._moved(what, at)
        else:
            self._started(self.moves.ask(what, at), at)

    def _arrive(self, request: Request, at: int) -> None:
        """``request`` comes in at ``at`` and goes to a prefill engine."""
        self._coupled = self._coupled or request.cancel_ns is not None
        life = self._lives[request.index] = Life(request, self._trace.keys(request))
        self._to_prefill(life, at)

    def _to_prefill(self, life: Life, at: int) -> None:
        life.source = self.prefill.pick(life.request, life.keys, life.request.prompt_tokens)
        self.prefill.engines[life.source].push(at, life.request, life.keys)

    def _hand_over(self, seq: Sequence, at: int) -> None:
        """A prefill engine is done with ``seq``: a decode engine is chosen, and will ask for its KV when it has room."""
        self.prefill.answered(seq.index)
        life = self._lives[seq.index]
        life.first = seq
        life.target = self.decode.pick(life.request, life.keys, life.request.prompt_tokens + life.request.output_tokens)
        self.decode.engines[life.target].push(at, life.request, life.keys)

    def _started(self, transfers: list[Transfer], at: int) -> None:
        for transfer in transfers:
            if (seq := self._lives[transfer.request].second) is not None:
                self.decode.engines[transfer.target].recorder.spans.between(seq, Phase.transfer, at)
            self._add(transfer.end_ns, Happening.moved, transfer)

    def _moved(self, transfer: Transfer, at: int) -> None:
        if (started := self.moves.finish(transfer, at)) is None:
            return
        self._started(started, at)
        life = self._lives[transfer.request]
        life.transfer = life.first = None
        _expect(self.decode.engines[transfer.target], at, EventKind.fetched, transfer.request)
        _expect(self.prefill.engines[transfer.source], at, EventKind.released, transfer.request)

    def _answer(self, answer: Answer, at: int) -> None:
        """A request has left the pools: whatever is still kept for it is given up, and who waits for it is released, or never."""
        index = answer.index
        self.prefill.answered(index)
        self.decode.answered(index)
        life = self._lives.pop(index)
        if life.transfer is not None:
            self._started(self.moves.drop(life.transfer, at, TransferEnd.given_up), at)
        if life.first is not None:
            _expect(self.prefill.engines[life.source], at, EventKind.released, index)
        if answer.completed:
            self._trace.release(index, answer.at)
        elif self._trace.has_followers:
            self._unreleased(self._trace.abandon(index), answer.at)

    def _unreleased(self, requests: list[Request], at: int) -> None:
        spans = self.prefill.engines[0].recorder.spans
        for request in requests:
            spans.never_started(
                request.index, at, request.prompt_tokens, RequestState.unreleased, OutcomeReason.parent_unfinished
            )

    def _end_all(self, reason: OutcomeReason) -> None:
        """Whoever came and has not ended fails."""
        there = {index for engine in self.engines for index in engine.intake.live}
        now = max(engine.now for engine in self.engines)
        spans = self.prefill.engines[0].recorder.spans
        for index, life in self._lives.items():
            if index not in there:
                request = life.request
                spans.never_started(index, request.arrival_ns, request.prompt_tokens, RequestState.failed, reason)
        for engine in self.engines:
            engine.end_all(reason)
        self._unreleased(self._trace.abandon_all(), now)

    def answered(self, number: int, answer: Answer, at: int) -> None:
        """Engine ``number`` has answered a request, and knows of it at ``at``."""
        self._add(at, Happening.answered, answer)
        if self._coupled or self._trace.has_followers:
            _stop_before(self.engines[number], at)

    def computed(self, number: int, seq: Sequence, at: int) -> None:
        self._add(at, Happening.computed, seq)
        _stop_before(self.engines[number], at)

    def entered(self, number: int, seq: Sequence, at: int) -> None:
        """A decode engine has queued ``seq``, which goes on with the figures it has from its prefill engine."""
        life = self._lives[seq.index]
        life.second = seq
        if life.first is not None:
            carry_over(life.first, seq, token_known=self.rules.pd.first_token_from == "prefill")

    def asked(self, number: int, seqs: SequenceOf[Sequence], at: int) -> None:
        for seq in seqs:
            life = self._lives[seq.index]
            blocks = seq.nblocks - seq.fetch_hit
            target = number - self.decode.first
            life.transfer = Transfer(seq.index, life.source, target, blocks, blocks * self._shared["kv_block_bytes"], at)
            life.transfer.hit_blocks = seq.fetch_hit
            self._add(at, Happening.asked, life.transfer)
        _stop_before(self.engines[number], at)


def _next(engine: Replica) -> int:
    return engine.next_ns


def _expect(engine: Replica, at: int, kind: EventKind, index: int) -> None:
    """Something will happen to request ``index`` in ``engine`` at ``at`` (ns)."""
    engine.calendar.add(at, kind, index)
    engine.next_ns = min(at, engine.next_ns)


def _stop_before(engine: Replica, at: int) -> None:
    """``engine`` is to make no plan at or after ``at`` (ns) until it is let go on."""
    engine.calendar.look_to(min(at, engine.calendar.horizon_ns))


def _door(rules: Rules) -> FrontDoorRules:
    """A decode engine turns nobody away; what a request may take in all holds there too."""
    return FrontDoorRules(timeout_s=rules.front_door.timeout_s)
