"""The waiting queue in every order: first come first served, by a static key, or fair between tenants.

Aging is linear in waiting time, so that it moves into the key: ``priority + arrival / aging`` orders two requests at any
moment as their aged priorities would. Nothing is ever re-sorted.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from replay_engine.rules import Order
from replay_engine.shares import FairShares, Share
from replay_engine.types import Request, Sequence

__all__ = ["FairQueue", "FcfsQueue", "KeyedQueue", "WaitingQueue", "order_key"]

_NS = 1e9


class WaitingQueue(Protocol):
    """Order of admission. Nobody overtakes the head."""

    def __len__(self) -> int: ...
    def push(self, seq: Sequence) -> None:
        """A new request joins."""
        ...

    def push_preempted(self, seq: Sequence) -> None: ...
    def head(self) -> Sequence: ...
    def pop(self) -> Sequence: ...
    def remove(self, seq: Sequence) -> None: ...
    def before(self, first: Sequence, second: Sequence) -> bool:
        """Whether a waiting ``first`` is looked at before ``second``, were that one preempted now."""
        ...

    def in_order(self) -> Iterator[Sequence]:
        """All waiting sequences in the order in which they would be looked at. Costs O(waiting)."""
        ...


class FcfsQueue(deque[Sequence]):
    """Arrival order; preempted sequences go back to the front. A deque itself: it is looked at in every iteration."""

    __slots__ = ()

    push = deque.append
    push_preempted = deque.appendleft
    pop = deque.popleft

    def head(self) -> Sequence:
        return self[0]

    def before(self, first: Sequence, second: Sequence) -> bool:
        return False

    def in_order(self) -> Iterator[Sequence]:
        return iter(self)


Key = Callable[[Request], Any]


class KeyedQueue(set[Sequence]):
    """A heap by ``(key, arrival, request id as text)``, small first. Removal is lazy. A set of those who wait itself: whether
    anybody does is asked all the time."""

    __slots__ = ("_gone", "_heap", "_key")

    def __init__(self, key: Key) -> None:
        self._key = key
        self._heap: list[tuple[Any, float, str, int, Sequence]] = []
        self._gone: set[int] = set()

    def _entry(self, seq: Sequence) -> tuple[Any, float, str, int, Sequence]:
        return self._key(seq.request), seq.arrival_order, seq.request_id, seq.index, seq

    def before(self, first: Sequence, second: Sequence) -> bool:
        return self._entry(first)[:4] < self._entry(second)[:4]

    def push(self, seq: Sequence) -> None:
        entry = self._entry(seq)
        if seq.index in self._gone:  # its removed entry is still in the heap and would count again
            self._gone.discard(seq.index)
            self._heap = [old for old in self._heap if old[3] != seq.index]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, entry)
        self.add(seq)

    push_preempted = push

    def head(self) -> Sequence:
        while self._gone and self._heap[0][3] in self._gone:
            self._gone.discard(heapq.heappop(self._heap)[3])
        return self._heap[0][4]

    def pop(self) -> Sequence:
        seq = self.head()
        heapq.heappop(self._heap)
        self.discard(seq)
        return seq

    def remove(self, seq: Sequence) -> None:
        self._gone.add(seq.index)
        self.discard(seq)

    def in_order(self) -> Iterator[Sequence]:
        return (entry[4] for entry in sorted(self._heap, key=lambda e: e[:4]) if entry[3] not in self._gone)


class FairQueue(set[Sequence]):
    """First come first served within a tenant; the tenant with the smallest virtual counter first (VTC, Sheng et al., OSDI
    2024). A set of those who wait itself.

    With aging a waiting head's counter is lowered by 1,000 tokens for every ``aging_s`` it waits. Costs O(tenants that wait) a
    look.
    """

    __slots__ = ("_aging_ns", "_tied", "shares")

    def __init__(self, shares: FairShares, aging_s: float | None) -> None:
        self.shares = shares
        self._aging_ns = None if aging_s is None else aging_s * _NS
        self._tied = False

    def push(self, seq: Sequence) -> None:
        share = seq.share = self.shares.of(seq.request.tenant)
        if not share.waits:
            self._joins(share)
        share.waits.append(seq)
        self.add(seq)

    def push_preempted(self, seq: Sequence) -> None:
        share = seq.share
        if not share.waits:
            self._joins(share)
        share.waits.appendleft(seq)
        self.add(seq)
        if self._tied:
            self.shares.forget()

    def _joins(self, share: Share) -> None:
        shares = self.shares
        if self._aging_ns is not None:
            shares.comes(share, min(map(shares.counter, shares.waiting)) if shares.waiting else None)
        elif shares.waiting:
            first = shares.first
            if first is None or not shares.since <= shares.tick <= shares.until:
                first = self._turn()
            shares.comes(share, first.level + first.growth * shares.tick)
        else:
            shares.comes_alone(share)
            self._tied = False

    def _turn(self) -> Share:
        """The tenant whose turn it is, looked for."""
        shares = self.shares
        if self._aging_ns is not None:
            return min(shares.waiting.values(), key=self._rank)
        level = shares.look()
        if level:  # who is first of those that are level may change with whoever comes or goes
            self._tied = True
            shares.first = min(level, key=self._rank)
        else:
            self._tied = False
        assert shares.first is not None
        return shares.first

    def first_until(self, index: int) -> int:
        """The last iteration for which request ``index`` is surely the head, from ``shares.tick`` on, if only what decodes are
        charged changes; -1: it is not, or one cannot know for long (aging)."""
        shares = self.shares
        first = shares.first
        if first is None or not shares.since <= shares.tick <= shares.until:
            first = self._turn()
        return shares.until if first.waits[0].index == index else -1

    def _rank(self, share: Share) -> tuple[float, float, int]:
        shares, head = self.shares, share.waits[0]
        counter = share.level + share.growth * shares.tick
        if self._aging_ns is not None:
            counter -= 1000.0 * (shares.now_ns - head.request.arrival_ns) / self._aging_ns
        return counter, head.arrival_order, share.tenant

    def head(self) -> Sequence:
        shares = self.shares
        first = shares.first
        if first is None or not shares.since <= shares.tick <= shares.until:
            first = self._turn()
        return first.waits[0]

    def pop(self) -> Sequence:
        shares = self.shares
        share = shares.first
        if share is None or not shares.since <= shares.tick <= shares.until:
            share = self._turn()
        seq = share.waits.popleft()
        self.discard(seq)
        if self._tied:
            shares.forget()
        if not share.waits:
            shares.goes(share)
        return seq

    def remove(self, seq: Sequence) -> None:
        share = seq.share
        share.waits.remove(seq)
        self.discard(seq)
        if self._tied:
            self.shares.forget()
        if not share.waits:
            self.shares.goes(share)

    def before(self, first: Sequence, second: Sequence) -> bool:
        return False

    def in_order(self) -> Iterator[Sequence]:
        """By the counters as they stand: service to come changes them."""
        for share in sorted(self.shares.waiting.values(), key=self._rank):
            yield from share.waits


def order_key(order: Order, by: str) -> Key:
    """The static key of ``by``: smaller is looked at first."""
    per_ns = 0.0 if order.aging_s is None else 1.0 / (order.aging_s * _NS)
    if by == "priority":
        return lambda request: request.priority + per_ns * request.arrival_ns if per_ns else request.priority
    if by == "deadline":
        patience = float("inf") if order.aging_s is None else order.aging_s * _NS
        return lambda request: min(_or(request.deadline_ns, float("inf")), request.arrival_ns + patience)
    size = _SIZES[order.size]
    return lambda request: size(request) / 1000.0 + per_ns * request.arrival_ns


def _or(value: int | None, unknown: float) -> float:
    return unknown if value is None else value


_SIZES: dict[str, Callable[[Request], float]] = {
    "prompt": lambda r: r.prompt_tokens,
    "output": lambda r: r.output_tokens,
    "predicted": lambda r: _or(r.predicted_tokens, float("inf")),
    "total": lambda r: r.prompt_tokens + r.output_tokens,
}
