"""Engines of separate pools that fail, come back or are slow, links that fail, and what becomes of the requests they had."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Protocol

from replay_engine.arrivals import NEVER, EventKind
from replay_engine.fleet.dispatch import Dispatch
from replay_engine.fleet.faults import LINK, Fault
from replay_engine.fleet.kv_link import Transfer
from replay_engine.fleet.kv_moves import KvMoves
from replay_engine.fleet.member import Sent
from replay_engine.fleet.pd_lives import Happening, Life, PdMember, expect, wake
from replay_engine.rules import Rules
from replay_engine.simulator import SimExecutor
from replay_engine.tables import TransferEnd
from replay_engine.types import Executor

__all__ = ["PdFaults"]

class Pools(Protocol):
    """What failures need of the pools."""

    rules: Rules
    executors: SequenceOf[Executor]
    moves: KvMoves
    lives: dict[int, Life]
    prefill: Dispatch
    decode: Dispatch
    members: list[PdMember]

    def add(self, at: int, kind: Happening, what: object) -> None: ...
    def started(self, transfers: SequenceOf[Transfer], at: int) -> None: ...
    def drop(self, life: Life, at: int, why: TransferEnd) -> None: ...
    def release(self, life: Life, at: int) -> None: ...


class PdFaults:
    """Carries out ``faults``. An engine that fails ends what is under way; from then on its KV is gone, and not before then it
    comes back."""

    def __init__(self, pools: Pools, faults: SequenceOf[Fault]) -> None:
        self._pools = pools
        self._until: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        for fault in faults:
            pools.add(fault.at_ns, Happening.slow if fault.factor else Happening.fail, fault)

    def happens(self, at: int, kind: Happening, fault: Fault, sents: SequenceOf[Sent] = ()) -> None:
        """``fault`` begins or ends at ``at``, or its engine stands still now and ``sents`` are without one."""
        pools, number = self._pools, fault.replica
        if kind == Happening.lost:
            self._lost(pools.members[number], sents, at)
        elif kind == Happening.slow:
            executor = pools.executors[number]
            assert isinstance(executor, SimExecutor), "a real engine is as fast as it is"
            executor.slow_down(fault.factor)
            if fault.until_ns < NEVER:
                pools.add(fault.until_ns, Happening.slow, Fault(replica=number, at_ns=fault.until_ns, factor=1.0))
        elif kind == Happening.fail:
            self._until[number] = max(self._until.get(number, 0), fault.until_ns)
            self._fail(number, at)
            if fault.until_ns < NEVER:
                pools.add(fault.until_ns, Happening.back, fault)
        elif at < self._ends.get(number, 0):
            pools.add(self._ends[number], Happening.back, fault)
        elif at >= self._until[number]:
            self._back(number, at)

    def _fail(self, number: int, at: int) -> None:
        pools = self._pools
        if number == LINK:
            pools.moves.fail(at)
            if pools.rules.kv_link.on_failure == "recompute":
                for life in [each for each in pools.lives.values() if each.transfer is not None]:
                    self.recompute(life, at)
        elif pools.members[number].up:
            member = pools.members[number]
            moment, sents = (pools.decode if member.decode else pools.prefill).fails(member.number, at)
            self._ends[number] = moment
            pools.add(moment, Happening.lost, (Fault(replica=number, at_ns=at), sents))

    def _back(self, number: int, at: int) -> None:
        pools = self._pools
        if number == LINK:
            pools.started(pools.moves.back(at), at)
        elif not (member := pools.members[number]).up:
            (pools.decode if member.decode else pools.prefill).back(member.number, at)

    def _lost(self, member: PdMember, sents: SequenceOf[Sent], at: int) -> None:
        """``member`` stands still since ``at``: ``sents`` are without an engine, and what KV it held is lost."""
        pools = self._pools
        if not member.decode:
            for life in [each for each in pools.lives.values() if each.held and each.source == member.number]:
                self._kv_lost(life, at, member)
        for request, _ in sents:
            found = pools.lives.get(request.index)
            if found is None or (found.target if member.decode else found.source) != member.number:
                continue  # it has gone elsewhere since
            request.attempt += 1
            found.since = at
            if not member.decode:
                found.source = -1
                pools.prefill.send(at, found.sent, at, member.engine_number)
                continue
            pools.drop(found, at, TransferEnd.target_lost)
            found.second, found.target = None, -1
            again = found.held or pools.rules.pd.lost_kv == "decode"
            (pools.decode if again else pools.prefill).send(at, found.sent, at, member.engine_number)

    def _kv_lost(self, life: Life, at: int, member: PdMember) -> None:
        """The KV of ``life`` was on ``member``: its prompt is computed again, here or there."""
        pools = self._pools
        if pools.rules.pd.lost_kv == "decode":
            pools.drop(life, at, TransferEnd.source_lost)
            self.recompute(life, at)
            return
        pools.drop(life, at, TransferEnd.source_lost)
        life.held = False
        if life.target >= 0:
            holder = pools.decode.members[life.target]
            assert isinstance(holder, PdMember)
            if not holder.up:
                return  # it has failed too, and gives the request up when it stands still
            until = holder.withdraw(life.request.index, at)
            life.since = until if until >= 0 else life.since
            wake(holder, at)
        else:
            pools.decode.forget(life.request.index)
        life.second, life.target = None, -1
        life.request.attempt += 1
        pools.prefill.send(at, life.sent, life.since, member.engine_number)

    def recompute(self, life: Life, at: int) -> None:
        """The decode engine of ``life`` computes the prompt itself, from ``at`` on."""
        pools = self._pools
        pools.drop(life, at, TransferEnd.link_failed)
        pools.release(life, at)
        if life.target >= 0:
            expect(pools.decode.members[life.target], at, EventKind.missed, life.request.index)
