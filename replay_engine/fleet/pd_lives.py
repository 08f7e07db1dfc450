"""What a replay with separate pools keeps of a request, and how its engines speak of one."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from replay_engine.fleet.kv_link import Transfer
from replay_engine.types import Phase, Request, Sequence

__all__ = ["Answer", "Hears", "Happening", "Life", "Speaker", "carry_over"]


class Happening(IntEnum):
    """Events between engines, in the order in which those of one moment are handled."""

    answered = 0
    computed = 1
    moved = 2
    asked = 3


@dataclass(slots=True)
class Life:
    """One request between the pools: ``source`` and ``target`` are its engines' places in their pools (-1: not chosen yet),
    ``first`` its sequence on the prefill engine while that holds its KV, ``second`` that on the decode engine."""

    request: Request
    keys: SequenceOf[int]
    source: int = -1
    first: Sequence | None = None
    target: int = -1
    second: Sequence | None = None
    transfer: Transfer | None = None


@dataclass(slots=True)
class Answer:
    """A request that has left an engine for good at ``at`` (ns)."""

    index: int
    at: int
    completed: bool


class Hears(Protocol):
    """Whoever drives the pools hears from engine ``number``; moments are those of ``Client`` and ``Desk``."""

    def answered(self, number: int, answer: Answer, at: int) -> None: ...
    def computed(self, number: int, seq: Sequence, at: int) -> None: ...
    def entered(self, number: int, seq: Sequence, at: int) -> None: ...
    def asked(self, number: int, seqs: SequenceOf[Sequence], at: int) -> None: ...


class Speaker:
    """What engine ``number`` says as ``Client`` and ``Desk``, with its number."""

    __slots__ = ("_number", "_to")

    def __init__(self, to: Hears, number: int) -> None:
        self._to = to
        self._number = number

    def ended(self, request: Request, at: int, *, completed: bool) -> None:
        self._to.answered(self._number, Answer(request.index, at, completed), at)

    def computed(self, seq: Sequence, at: int) -> None:
        self._to.computed(self._number, seq, at)

    def entered(self, seq: Sequence, at: int) -> None:
        self._to.entered(self._number, seq, at)

    def asked(self, seqs: SequenceOf[Sequence], at: int) -> None:
        self._to.asked(self._number, seqs, at)


def carry_over(first: Sequence, seq: Sequence, *, token_known: bool) -> None:
    """``seq`` goes on where ``first`` has left off on another engine, its KV still there."""
    seq.phase = int(Phase.transfer_wait)
    seq.queue_ns = first.queue_ns
    seq.cached_tokens = first.cached_tokens
    seq.recomputed_tokens = first.recomputed_tokens
    seq.past_preemptions = first.past_preemptions + first.num_preemptions
    if token_known:
        seq.first_token_ns = seq.last_token_ns = first.last_token_ns
