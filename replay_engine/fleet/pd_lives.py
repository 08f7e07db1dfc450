"""What a replay with separate pools keeps of a request, and the engines of its pools as members that say more than a replica."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from replay_engine.arrivals import EventKind, Inbox
from replay_engine.fleet.kv_link import Transfer
from replay_engine.fleet.member import Listener, Member, expected_tokens
from replay_engine.replica import Replica
from replay_engine.tables import OutcomeReason
from replay_engine.types import Phase, Request, Sequence

__all__ = ["Happening", "Hears", "Life", "PdMember", "carry_over", "expect", "stop_before", "wake"]


class Happening(IntEnum):
    """Events between engines, in the order in which those of one moment are handled."""

    answered = 0
    computed = 1
    moved = 2
    asked = 3
    slow = 4
    fail = 5
    lost = 6
    back = 7


@dataclass(slots=True)
class Life:
    """One request between the pools: its engines' numbers in their pools (-1: none yet), ``past``, its last sequence on a prefill
    engine, which holds its KV while ``held``, ``second``, that on the decode engine, since when (ns) it stands there, and the
    ``token`` that the prefill engine sampled (-1: it only simulates)."""

    request: Request
    keys: SequenceOf[int]
    source: int = -1
    past: Sequence | None = None
    held: bool = False
    target: int = -1
    second: Sequence | None = None
    transfer: Transfer | None = None
    since: int = -1
    token: int = -1

    @property
    def sent(self) -> tuple[Request, SequenceOf[int]]:
        """The request with its block keys."""
        return self.request, self.keys


class Hears(Listener, Protocol):
    """Whoever drives the pools hears from its members; moments are those of ``Client`` and ``Desk``."""

    def goes_to(self, member: PdMember, request: Request, at: int) -> None: ...
    def computed(self, member: PdMember, seq: Sequence, at: int) -> None: ...
    def entered(self, member: PdMember, seq: Sequence, at: int) -> None: ...
    def asked(self, member: PdMember, seqs: SequenceOf[Sequence], at: int) -> None: ...


class PdMember(Member):
    """Number ``number`` of the pool of prefill or ``decode`` engines, with number ``engine_number`` among all of them.

    A prefill engine weighs what it still has to prefill, a decode engine a request as a whole.
    """

    def __init__(
        self, number: int, engine_number: int, make: Callable[[Inbox, Member, Replica | None], Replica], hears: Hears, *,
        decode: bool,
    ) -> None:  # fmt: skip
        self.decode = decode
        self.engine_number = engine_number
        self._hears = hears
        super().__init__(number, make, hears)

    def weigh(self, request: Request) -> int:
        return expected_tokens(request) if self.decode else request.prompt_tokens

    def send(self, at: int, request: Request, keys: SequenceOf[int]) -> None:
        self._hears.goes_to(self, request, at)
        super().send(at, request, keys)

    def computed(self, seq: Sequence, at: int) -> None:
        """``seq`` has its prompt computed."""
        self._answer(seq.index, at)
        self._hears.computed(self, seq, at)

    def entered(self, seq: Sequence, at: int) -> None:
        """``seq`` stands in the queue."""
        self._hears.entered(self, seq, at)

    def asked(self, seqs: SequenceOf[Sequence], at: int) -> None:
        """``seqs`` have blocks for their KV."""
        self._hears.asked(self, seqs, at)

    def withdraw(self, index: int, at: int) -> int:
        """Request ``index``, which computes nothing here, is to go elsewhere at ``at``. Returns until when (ns) its spans are
        written, -1: it has not come in yet."""
        self._answer(index, at)
        engine = self.engine
        seq = engine.intake.live.pop(index, None)
        if seq is None:
            self.inbox.withdraw(index)
            return -1
        engine.scheduler.abort(seq)
        until = max(at, seq.phase_start_ns)
        engine.recorder.spans.end_early(seq, until, engine.scheduler.state.it, None, OutcomeReason.none, 0)
        return until

    def _answer(self, index: int, at: int) -> None:
        heapq.heappush(self._answers, (at, self._sent.pop(index)[2]))


def carry_over(past: Sequence, seq: Sequence, *, held: bool, token_known: bool) -> None:
    """``seq`` goes on where ``past`` has left off on a prefill engine, which still has its KV (``held``) or not."""
    seq.phase = int(Phase.transfer_wait if held else Phase.preempted)
    seq.queue_ns = past.queue_ns
    seq.cached_tokens = past.cached_tokens
    seq.recomputed_tokens = past.recomputed_tokens
    seq.past_preemptions = past.past_preemptions + past.num_preemptions
    if token_known:
        seq.first_token_ns = seq.last_token_ns = past.last_token_ns


def expect(member: Member, at: int, kind: EventKind, index: int) -> None:
    """Something will happen to request ``index`` in the engine of ``member`` at ``at`` (ns), if it is up."""
    if member.up:
        member.engine.calendar.add(at, kind, index)
        member.engine.next_ns = min(at, member.engine.next_ns)


def stop_before(engine: Replica, at: int) -> None:
    """``engine`` is to make no plan at or after ``at`` (ns) until it is let go on."""
    engine.calendar.look_to(min(at, engine.calendar.horizon_ns))


def wake(member: Member, at: int) -> None:
    """Something has changed at ``at`` for who waits in the engine of ``member``."""
    expect(member, at, EventKind.released, -1)
