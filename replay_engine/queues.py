"""The waiting queue: first come first served, or by priority. Both hold sequences in state WAIT only."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from replay_engine.types import Sequence

__all__ = ["FcfsQueue", "PriorityQueue", "WaitingQueue"]


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
    def in_order(self) -> Iterator[Sequence]:
        """All waiting sequences in the order in which they would be looked at. Costs O(waiting)."""
        ...


class FcfsQueue:
    """Arrival order; preempted sequences go back to the front."""

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue: deque[Sequence] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def push(self, seq: Sequence) -> None:
        self._queue.append(seq)

    def push_preempted(self, seq: Sequence) -> None:
        self._queue.appendleft(seq)

    def head(self) -> Sequence:
        return self._queue[0]

    def pop(self) -> Sequence:
        return self._queue.popleft()

    def remove(self, seq: Sequence) -> None:
        self._queue.remove(seq)

    def in_order(self) -> Iterator[Sequence]:
        return iter(self._queue)


class PriorityQueue:
    """A heap by ``(priority, arrival, request id as text)``, small first. Removal is lazy."""

    __slots__ = ("_gone", "_heap", "_length")

    def __init__(self) -> None:
        self._heap: list[tuple[int, float, str, int, Sequence]] = []
        self._gone: set[int] = set()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def push(self, seq: Sequence) -> None:
        self._gone.discard(seq.index)
        heapq.heappush(self._heap, (seq.priority, seq.arrival_order, seq.request_id, seq.index, seq))
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
