"""Prefill and decode on separate engines: what a scheduler of either side keeps besides, and the queue of the decode side.

On the prefill side a sequence computes its prompt, samples one token, and gives up its seat; its blocks stay held until its KV
has been copied. On the decode side a request first gets blocks, without a seat, while its KV is on the way, and stands in front
of the queue again when it has come (vLLM's ``WAITING_FOR_REMOTE_KVS``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from typing import Protocol

from replay_engine.queues import WaitingQueue
from replay_engine.types import Sequence

__all__ = ["FETCH", "GIVE", "Desk", "FetchedFirst", "Handover", "enlist"]

GIVE, FETCH = 1, 2
"""``Sequence.handover``: its KV goes to another engine when its prompt is computed; its KV is to come from one."""


class Handover:
    """``decode`` tells the side. ``token_known``: the decode side is told the first token, and goes on with the second.

    ``held`` are sequences that are done here and whose KV is still needed, ``fetching`` those that have blocks and no KV in them
    yet, both by request.
    """

    __slots__ = ("decode", "fetching", "held", "token_known")

    def __init__(self, *, decode: bool, token_known: bool = False) -> None:
        self.decode = decode
        self.token_known = token_known
        self.held: dict[int, Sequence] = {}
        self.fetching: dict[int, Sequence] = {}


def enlist(handover: Handover, seq: Sequence) -> None:
    """A new sequence is of this side: one that ends with its prompt and one token, or one whose KV is to be fetched.

    The prefill side ends a request by itself whose only token it may hand to the client.
    """
    if handover.decode:
        seq.handover = FETCH
        if handover.token_known:
            seq.nt += 1
    elif seq.output_limit > 1 or not handover.token_known:
        seq.handover = GIVE
        seq.output_limit = 1
        seq.total = seq.prompt_tokens


class Desk(Protocol):
    """Whoever moves KV between engines. Each moment is in ns, and never before the plan the engine makes next."""

    def computed(self, seq: Sequence, at: int) -> None:
        """A prefill engine is done with ``seq`` and holds its KV."""
        ...

    def entered(self, seq: Sequence, at: int) -> None:
        """A decode engine has queued ``seq``."""
        ...

    def asked(self, seqs: SequenceOf[Sequence], at: int) -> None:
        """A decode engine has blocks for ``seqs`` and wants their KV."""
        ...


class FetchedFirst:
    """A waiting queue behind those whose KV has come, who are served first, in the order in which it came.

    They hold blocks: did anybody stand before them who needs blocks, both might wait for each other for ever.
    """

    __slots__ = ("_fetched", "rest")

    def __init__(self, rest: WaitingQueue) -> None:
        self.rest = rest
        self._fetched: deque[Sequence] = deque()

    def __len__(self) -> int:
        return len(self._fetched) + len(self.rest)

    def push(self, seq: Sequence) -> None:
        self.rest.push(seq)

    def push_preempted(self, seq: Sequence) -> None:
        self.rest.push_preempted(seq)

    def push_fetched(self, seq: Sequence) -> None:
        """The KV of ``seq`` has come."""
        self._fetched.append(seq)

    def head(self) -> Sequence:
        return self._fetched[0] if self._fetched else self.rest.head()

    def pop(self) -> Sequence:
        return self._fetched.popleft() if self._fetched else self.rest.pop()

    def remove(self, seq: Sequence) -> None:
        if seq in self._fetched:
            self._fetched.remove(seq)
        else:
            self.rest.remove(seq)

    def before(self, first: Sequence, second: Sequence) -> bool:
        return self.rest.before(first, second)

    def in_order(self) -> Iterator[Sequence]:
        yield from self._fetched
        yield from self.rest.in_order()
