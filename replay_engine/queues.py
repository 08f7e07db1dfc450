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
from replay_engine.shares import FairShares
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


class KeyedQueue:
    """A heap by ``(key, arrival, request id as text)``, small first. Removal is lazy."""

    __slots__ = ("_gone", "_heap", "_key", "_length")

    def __init__(self, key: Key) -> None:
        self._key = key
        self._heap: list[tuple[Any, float, str, int, Sequence]] = []
        self._gone: set[int] = set()
        self._length = 0

    def __len__(self) -> int:
        return self._length

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
        self._length += 1

    push_preempted = push

    def head(self) -> Sequence:
        while self._gone and self._heap[0][3] in self._gone:
            self._gone.discard(heapq.heappop(self._heap)[3])
        return self._heap[0][4]

    def pop(self) -> Sequence:
        seq = self.head()
        heapq.heappop(self._heap)
        self._length -= 1
        return seq

    def remove(self, seq: Sequence) -> None:
        self._gone.add(seq.index)
        self._length -= 1

    def in_order(self) -> Iterator[Sequence]:
        return (entry[4] for entry in sorted(self._heap, key=lambda e: e[:4]) if entry[3] not in self._gone)


class FairQueue:
    """First come first served within a tenant; the tenant with the smallest virtual counter first (VTC, Sheng et al., OSDI
    2024).

    With aging a waiting head's counter is lowered by 1,000 tokens for every ``aging_s`` it waits. Costs O(tenants that wait) a
    look.
    """

    __slots__ = ("_aging_ns", "_changes", "_found", "_length", "_queues", "_seen", "shares")

    def __init__(self, shares: FairShares, aging_s: float | None) -> None:
        self.shares = shares
        self._queues: dict[int, deque[Sequence]] = {}
        self._length = 0
        self._aging_ns = None if aging_s is None else aging_s * _NS
        self._changes = 0
        self._seen = (-1, -1, -1)
        self._found = 0
        """Who was first when what ``_seen`` counts was last looked at."""

    @property
    def ages(self) -> bool:
        """Whether waiting lowers a counter."""
        return self._aging_ns is not None

    def __len__(self) -> int:
        return self._length

    def push(self, seq: Sequence) -> None:
        self._queue_of(seq).append(seq)

    def push_preempted(self, seq: Sequence) -> None:
        self._queue_of(seq).appendleft(seq)

    def _queue_of(self, seq: Sequence) -> deque[Sequence]:
        tenant = seq.request.tenant
        queue = self._queues.get(tenant)
        if queue is None:
            self.shares.comes(tenant, self._queues)
            queue = self._queues[tenant] = deque()
        self._length += 1
        self._changes += 1
        return queue

    def _first(self) -> int:
        if self._aging_ns is not None:
            return self._least()
        seen = (self.shares.tick, self.shares.changes, self._changes)
        if seen != self._seen:
            self._seen, self._found = seen, self._least()
        return self._found

    def _least(self) -> int:
        if len(self._queues) == 1:
            return next(iter(self._queues))
        alike = self.shares.least(self._queues) if self._aging_ns is None else list(self._queues)
        return alike[0] if len(alike) == 1 else min(alike, key=self._rank)

    def first_until(self) -> int:
        """The last iteration for which the head at ``shares.tick`` stays first, if only what decodes are charged changes. Without
        aging."""
        first = self._first()
        return self.shares.least_until(first, (tenant for tenant in self._queues if tenant != first))

    def _counter(self, tenant: int) -> float:
        counter = self.shares.counter(tenant)
        if self._aging_ns is not None:
            counter -= 1000.0 * (self.shares.now_ns - self._queues[tenant][0].request.arrival_ns) / self._aging_ns
        return counter

    def _rank(self, tenant: int) -> tuple[float, float, int]:
        return self._counter(tenant), self._queues[tenant][0].arrival_order, tenant

    def head(self) -> Sequence:
        return self._queues[self._first()][0]

    def pop(self) -> Sequence:
        tenant = self._first()
        seq = self._queues[tenant].popleft()
        self._left(tenant)
        return seq

    def remove(self, seq: Sequence) -> None:
        tenant = seq.request.tenant
        self._queues[tenant].remove(seq)
        self._left(tenant)

    def before(self, first: Sequence, second: Sequence) -> bool:
        return False

    def _left(self, tenant: int) -> None:
        self._length -= 1
        self._changes += 1
        if not self._queues[tenant]:
            del self._queues[tenant]
            self.shares.goes(tenant)

    def in_order(self) -> Iterator[Sequence]:
        """By the counters as they stand: service to come changes them."""
        for tenant in sorted(self._queues, key=self._rank):
            yield from self._queues[tenant]


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
