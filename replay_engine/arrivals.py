"""The calendar of timed events: arrivals as they stream in, and what each of them brings with it later."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from enum import IntEnum
from itertools import repeat

import numpy as np
import numpy.typing as npt

from replay_engine.prefix import block_keys
from replay_engine.types import NEVER, PrefixRuns, Request, RequestBatch, RequestSource

__all__ = ["NEVER", "Calendar", "EventKind", "Inbox"]


class EventKind(IntEnum):
    """What happens to a request, in the order in which things of one moment happen. Its arrival comes after all of them."""

    slot = 0  # the client learns that it ended, and may send another
    cancel = 1
    queue_timeout = 2
    timeout = 3
    fetched = 4  # its KV has come from the engine that computed it
    released = 5  # its KV is needed here no more
    missed = 6  # its KV will not come: it is computed here


class Calendar:
    """Events in time order; nothing else in the engine knows about future time.

    A request with a parent is released by the parent's completion, or never (its arrival is unknown until then).
    ``due_ns`` is the earliest of ``arrival_ns`` (the next arrival), ``event_ns`` (the next of everything else: before it nobody
    who has arrived leaves by himself) and ``horizon_ns`` (what comes from there on is not known yet).
    """

    __slots__ = (
        "_block_size", "_events", "_followers", "_next", "_pending", "_released", "arrival_ns", "due_ns", "event_ns",
        "horizon_ns",
    )  # fmt: skip

    def __init__(self, source: RequestSource | None, block_size: int, *, caching: bool) -> None:
        self._block_size = block_size if caching else 0
        self._pending: Iterator[Request] = self._requests(source) if source is not None else iter(())
        self._events: list[tuple[int, EventKind, int]] = []
        self.arrival_ns = self.event_ns = self.due_ns = self.horizon_ns = NEVER
        self._next: Request | None = None
        self._followers: dict[int, list[Request]] = {}
        self._released: list[tuple[int, int, Request]] = []
        self._advance()

    def _advance(self) -> None:
        self._next = self._root(next(self._pending, None))
        self._look()

    def _root(self, request: Request | None) -> Request | None:
        """``request``, or the first after it that waits for no other's completion; those before it are kept."""
        while request is not None and request.parent is not None:
            self._followers.setdefault(request.parent, []).append(request)
            request = next(self._pending, None)
        return request

    def _look(self) -> None:
        self.arrival_ns = NEVER if self._next is None else self._next.arrival_ns
        if self._released and self._released[0][0] < self.arrival_ns:
            self.arrival_ns = self._released[0][0]
        self._set_due()

    def _set_due(self) -> None:
        due = self.arrival_ns if self.arrival_ns < self.event_ns else self.event_ns
        self.due_ns = due if due < self.horizon_ns else self.horizon_ns

    @property
    def next_ns(self) -> int:
        """When the next known thing happens, whatever the horizon (ns); ``NEVER``: nothing is known."""
        return min(self.arrival_ns, self.event_ns)

    def look_to(self, horizon_ns: int) -> None:
        """All that comes before ``horizon_ns`` is known."""
        self.horizon_ns = horizon_ns
        self._set_due()

    @property
    def exhausted(self) -> bool:
        """Whether no arrival is known: the trace has no more requests, but for those that wait for another one's completion."""
        return self._next is None and not self._released

    @property
    def has_followers(self) -> bool:
        """Whether requests wait for another one's completion."""
        return bool(self._followers)

    def release(self, index: int, at: int) -> None:
        """Request ``index`` has completed at ``at`` (ns): those that wait for it arrive after their think time."""
        for request in self._followers.pop(index, ()):
            moment = max(at + request.think_ns, request.arrival_ns)
            request.arrival_ns = moment
            request.cancel_ns = None if request.cancel_ns is None else request.cancel_ns + moment
            request.deadline_ns = None if request.deadline_ns is None else request.deadline_ns + moment
            heapq.heappush(self._released, (moment, request.index, request))
        self._look()

    def abandon(self, index: int) -> list[Request]:
        """Request ``index`` will not complete: all that wait for it, and for them, in the order of the trace."""
        gone = self._followers.pop(index, [])
        for request in gone:
            gone += self._followers.pop(request.index, [])
        return sorted(gone, key=lambda request: request.index)

    def abandon_all(self) -> list[Request]:
        """The replay stops: all that have not arrived and are not still to come with the trace."""
        gone = [request for _, _, request in self._released]
        for waiting in self._followers.values():
            gone += waiting
        self._released, self._followers = [], {}
        self._look()
        return sorted(gone, key=lambda request: request.index)

    def add(self, at: int, kind: EventKind, index: int) -> None:
        """Something will happen to request ``index`` at ``at`` (ns)."""
        heapq.heappush(self._events, (at, kind, index))
        self.event_ns = self._events[0][0]
        if at < self.due_ns:
            self.due_ns = at

    def pop_arrival(self) -> Request:
        """The next request of the trace."""
        request = self._next
        if self._released and (request is None or self._released[0][:2] < (request.arrival_ns, request.index)):
            released = heapq.heappop(self._released)[2]
            self._look()
            return released
        if request is None:
            raise IndexError("no request arrives any more")
        if self._released:
            self._advance()
            return request
        following = self._next = next(self._pending, None)  # most often there is no more to it
        if following is not None and following.parent is not None:
            following = self._next = self._root(following)
        at = self.arrival_ns = NEVER if following is None else following.arrival_ns
        due = at if at < self.event_ns else self.event_ns
        self.due_ns = due if due < self.horizon_ns else self.horizon_ns
        return request

    def pop_event(self) -> tuple[int, EventKind, int]:
        """The next event that is no arrival: when, what, and to which request."""
        event = heapq.heappop(self._events)
        self.event_ns = self._events[0][0] if self._events else NEVER
        self._set_due()
        return event

    def push(self, at: int, request: Request, keys: SequenceOf[int]) -> None:
        """Only an ``Inbox`` is sent requests."""
        raise NotImplementedError("this calendar draws its requests from a source")

    def keys(self, request: Request) -> SequenceOf[int]:
        """The request's block keys, for the prefix cache."""
        size = self._block_size
        return block_keys(request.prefix, request.prompt_tokens, size) if size else []

    @staticmethod
    def _requests(source: RequestSource) -> Iterator[Request]:
        for batch in source.batches():
            yield from _rows(batch)


class Inbox(Calendar):
    """The calendar of an engine that is sent its requests one by one: ``push`` in time order, at or after the horizon.

    ``closed``: no more will come.
    """

    __slots__ = ("_keys", "_pushed", "closed")

    def __init__(self) -> None:
        self._pushed: deque[tuple[int, Request, SequenceOf[int]]] = deque()
        self._keys: SequenceOf[int] = ()
        self.closed = False
        super().__init__(None, 0, caching=False)

    def push(self, at: int, request: Request, keys: SequenceOf[int]) -> None:
        """``request`` comes in at ``at`` (ns), with ``keys``, its block keys for the prefix cache."""
        self._pushed.append((at, request, keys))
        if at < self.arrival_ns:
            self.arrival_ns = at
            self._set_due()

    def _look(self) -> None:
        self.arrival_ns = self._pushed[0][0] if self._pushed else NEVER
        self._set_due()

    @property
    def exhausted(self) -> bool:
        return self.closed and not self._pushed

    def pop_arrival(self) -> Request:
        _, request, self._keys = self._pushed.popleft()
        self._look()
        return request

    def keys(self, request: Request) -> SequenceOf[int]:
        """The keys that came with the request that was popped last."""
        return self._keys

    def __len__(self) -> int:
        return len(self._pushed)

    @property
    def indices(self) -> list[int]:
        """The requests that were sent and have not come in."""
        return [request.index for _, request, _ in self._pushed]

    def withdraw(self, index: int) -> None:
        """Request ``index``, which has not come in yet, will not."""
        self._pushed = deque(entry for entry in self._pushed if entry[1].index != index)
        self._look()


def _rows(batch: RequestBatch) -> Iterator[Request]:
    index = batch.index.tolist()
    names = batch.request_id if batch.request_id is not None else map(str, index)
    rows = zip(
        index, names, batch.arrival_ns.tolist(), batch.prompt_tokens.tolist(), batch.output_tokens.tolist(),
        _known(batch.max_tokens), batch.priority.tolist(), _prefixes(batch) or repeat(None), _known(batch.cancel_ns),
        batch.tenant.tolist() if batch.tenant is not None else repeat(-1), _known(batch.deadline_ns),
        _known(batch.predicted_tokens), _known(batch.parent),
        batch.think_ns.tolist() if batch.think_ns is not None else repeat(0), strict=False,
    )  # fmt: skip
    for number, name, arrival, prompt, output, limit, priority, prefix, cancel, tenant, deadline, guess, parent, think in rows:
        yield Request(
            index=number, request_id=name, arrival_ns=arrival, prompt_tokens=prompt, output_tokens=output, max_tokens=limit,
            priority=priority, prefix=prefix, cancel_ns=cancel, tenant=tenant, deadline_ns=deadline, predicted_tokens=guess,
            parent=parent, think_ns=think,
        )  # fmt: skip


def _known(column: npt.NDArray[np.int64] | None) -> Iterable[int | None]:
    """A column whose negative values stand for unknown."""
    if column is None or (column < 0).all():
        return repeat(None)
    return [value if value >= 0 else None for value in column.tolist()]


def _prefixes(batch: RequestBatch) -> list[PrefixRuns | None] | None:
    offsets, pos, first, length = batch.run_offsets, batch.run_pos, batch.run_first, batch.run_len
    if offsets is None or pos is None or first is None or length is None or batch.shared_blocks is None:
        return None
    runs = list(zip(pos.tolist(), first.tolist(), length.tolist(), strict=True))
    bounds, shared = offsets.tolist(), batch.shared_blocks.tolist()
    return [
        PrefixRuns(block_tokens=batch.block_tokens, runs=tuple(runs[bounds[i] : bounds[i + 1]]), shared_blocks=shared[i])
        if shared[i]
        else None
        for i in range(len(shared))
    ]
