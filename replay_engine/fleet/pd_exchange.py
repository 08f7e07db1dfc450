"""What passes between prefill and decode engines: prompts that are computed, KV that is asked for, moves and comes, and ends."""

from __future__ import annotations

import heapq
from collections.abc import Sequence as SequenceOf
from typing import Any

from replay_engine.arrivals import EventKind
from replay_engine.fleet.dispatch import Dispatch
from replay_engine.fleet.faults import Fault
from replay_engine.fleet.gateway import Gateway
from replay_engine.fleet.kv_connector import KvConnector
from replay_engine.fleet.kv_link import Transfer
from replay_engine.fleet.kv_moves import KvMoves
from replay_engine.fleet.pd_faults import PdFaults
from replay_engine.fleet.pd_lives import Happening, Life, PdMember, carry_over, expect, stop_before
from replay_engine.rules import Rules
from replay_engine.tables import TransferEnd
from replay_engine.types import Executor, Phase, Request, Sequence

__all__ = ["Exchange"]


class Exchange:
    """``lives`` by request of those that came and have not ended; ``events`` in the order of time. ``coupled``: a request may
    leave by itself, and free what others wait for. ``handed``: prompts handed over. ``connector``: moves KV that is real.

    ``open`` gives it the pools, whose members speak to it.
    """

    prefill: Dispatch
    decode: Dispatch
    members: list[PdMember]

    def __init__(
        self, rules: Rules, gateway: Gateway, moves: KvMoves, executors: SequenceOf[Executor], block_bytes: int,
        connector: KvConnector | None = None,
    ) -> None:  # fmt: skip
        self.rules, self.executors, self.moves = rules, executors, moves
        self._gateway = gateway
        self._block_bytes, self._connector = block_bytes, connector
        self.events: list[tuple[int, int, int, Any]] = []
        self._serial = self.handed = 0
        self.lives: dict[int, Life] = {}
        self.coupled = rules.front_door.timeout_s is not None or rules.front_door.queue_timeout_s is not None

    def open(self, prefill: Dispatch, decode: Dispatch, members: list[PdMember], faults: SequenceOf[Fault]) -> None:
        """The pools are there."""
        self.prefill, self.decode, self.members = prefill, decode, members
        self._faults = PdFaults(self, faults)

    def add(self, at: int, kind: Happening, what: Any) -> None:
        """``what`` happens at ``at`` (ns)."""
        self._serial += 1
        heapq.heappush(self.events, (at, int(kind), self._serial, what))

    def handle(self, at: int, kind: Happening, what: Any) -> None:
        """``what`` happens now, at ``at``."""
        if kind == Happening.answered:
            self._answer(what, at)
        elif kind == Happening.computed:
            self._hand_over(what, at)
        elif kind == Happening.moved:
            self._moved(what, at)
        elif kind == Happening.lost:
            self._faults.happens(at, kind, *what)
        elif kind != Happening.asked:
            self._faults.happens(at, kind, what)
        else:
            self._ask(what, at)

    def arrive(self, request: Request, at: int) -> None:
        """``request`` comes in at ``at`` and goes to a prefill engine."""
        self.coupled = self.coupled or request.cancel_ns is not None
        life = self.lives[request.index] = Life(request, self._gateway.calendar.keys(request))
        self.prefill.send(at, life.sent, at)

    def _hand_over(self, seq: Sequence, at: int) -> None:
        """A prefill engine is done with ``seq``: a decode engine is chosen, and will ask for its KV when it has room."""
        self.handed += 1
        life = self.lives[seq.index]
        life.past, life.held, life.since = seq, True, at
        self.decode.send(at, life.sent, at)

    def _target(self, transfer: Transfer) -> PdMember:
        return self.members[len(self.prefill.members) + transfer.target]

    def started(self, transfers: SequenceOf[Transfer], at: int) -> None:
        """``transfers`` begin at ``at``."""
        for transfer in transfers:
            member, seq = self._target(transfer), self.lives[transfer.request].second
            if seq is not None and member.up:
                member.engine.recorder.spans.between(seq, Phase.transfer, at)
            self.add(transfer.end_ns, Happening.moved, transfer)

    def _ask(self, transfer: Transfer, at: int) -> None:
        life = self.lives.get(transfer.request)
        if life is None or life.transfer is not transfer:
            return
        if self.moves.down and self.rules.kv_link.on_failure == "recompute":
            self._faults.recompute(life, at)
        else:
            self.started(self.moves.ask(transfer, at), at)

    def _moved(self, transfer: Transfer, at: int) -> None:
        if (started := self.moves.finish(transfer, at)) is None:
            return
        self.started(started, at)
        life = self.lives[transfer.request]
        life.transfer = None
        expect(self._target(transfer), at, EventKind.fetched, transfer.request)
        self.release(life, at)

    def release(self, life: Life, at: int) -> None:
        """The KV of ``life`` is needed no more where it was computed."""
        life.held = False
        expect(self.prefill.members[life.source], at, EventKind.released, life.request.index)

    def drop(self, life: Life, at: int, why: TransferEnd) -> None:
        """The transfer of ``life``, if there is one, is not wanted any more."""
        transfer, life.transfer = life.transfer, None
        if transfer is not None:
            self.started(self.moves.drop(transfer, at, why), at)

    def _answer(self, answer: tuple[Request, bool], at: int) -> None:
        """A request has left the pools: whatever is still kept for it is given up."""
        request, completed = answer
        life = self.lives[request.index]
        self.drop(life, at, TransferEnd.given_up)
        if life.held:
            self.release(life, at)
        del self.lives[request.index]
        self._gateway.ended(request, at, completed=completed)

    def ended(self, replica: int, request: Request, at: int, *, completed: bool) -> None:
        """``request`` is answered, which is known from ``at`` on."""
        self.add(at, Happening.answered, (request, completed))
        if self.coupled or self._gateway.depends:
            for member in self.members:
                stop_before(member.engine, at)

    def goes_to(self, member: PdMember, request: Request, at: int) -> None:
        """A router has chosen ``member``."""
        life = self.lives[request.index]
        life.since = at
        if member.decode:
            life.target, life.second = member.number, None
        else:
            life.source = member.number

    def computed(self, member: PdMember, seq: Sequence, at: int) -> None:
        """``member`` has computed the prompt of ``seq``."""
        if self._connector is not None:
            self.lives[seq.index].token = self._connector.sampled(member.engine_number, seq)
        self.add(at, Happening.computed, seq)
        stop_before(member.engine, at)

    def entered(self, member: PdMember, seq: Sequence, at: int) -> None:
        """A decode engine has queued ``seq``, which goes on with the figures it has from its prefill engine."""
        life = self.lives[seq.index]
        life.second = seq
        assert life.past is not None
        token_known = self.rules.pd.first_token_from == "prefill"
        carry_over(life.past, seq, held=life.held, token_known=token_known)
        if self._connector is not None and token_known:
            self._connector.tell(member.engine_number, seq.index, life.token)
        if not life.held:
            member.engine.scheduler.fetch_failed(seq, again=False)

    def asked(self, member: PdMember, seqs: SequenceOf[Sequence], at: int) -> None:
        """A decode engine wants the KV of ``seqs``."""
        for seq in seqs:
            life, tokens = self.lives[seq.index], member.engine.scheduler.state.size
            blocks = -(-seq.prompt_tokens // tokens) - seq.fetch_hit  # a block beyond the prompt's has nothing in it yet
            life.transfer = Transfer(seq.index, life.source, member.number, blocks, blocks * self._block_bytes, at)
            life.transfer.hit_blocks = seq.fetch_hit
            self.add(at, Happening.asked, life.transfer)
        stop_before(member.engine, at)
