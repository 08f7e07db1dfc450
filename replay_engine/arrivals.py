"""The calendar of timed events: arrivals as they stream in, and whatever else is known to happen later (today: client
cancels)."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from replay_engine.prefix import block_keys
from replay_engine.types import PrefixRuns, Request, RequestBatch, RequestSource

__all__ = ["NEVER", "Calendar"]

NEVER = 1 << 62
"""Later than any event, in ns."""


class Calendar:
    """Events in time order. ``due_ns`` is the head's time, ``cancel_ns`` that of the next cancel among the requests that have
    arrived;
    nothing else in the engine knows about future time."""

    __slots__ = ("_block_size", "_cancels", "_next", "_pending", "cancel_ns", "due_ns")

    def __init__(self, source: RequestSource, block_size: int, *, caching: bool) -> None:
        self._block_size = block_size if caching else 0
        self._pending = self._requests(source)
        self._cancels: list[tuple[int, int]] = []
        self._next: Request | None = next(self._pending, None)
        self.due_ns = self.cancel_ns = 0
        self._set_due()

    def _set_due(self) -> None:
        due = self._next.arrival_ns if self._next is not None else NEVER
        self.cancel_ns = self._cancels[0][0] if self._cancels else NEVER
        self.due_ns = min(due, self.cancel_ns)

    @property
    def exhausted(self) -> bool:
        """Whether every request has arrived."""
        return self._next is None

    def pop_due(self, now: int) -> tuple[list[tuple[Request, list[int]]], list[int]]:
        """Arrivals (with their block keys) up to and including ``now``, in trace order, and the indices of requests cancelled
        by then."""
        arrived: list[tuple[Request, list[int]]] = []
        request = self._next
        size = self._block_size
        while request is not None and request.arrival_ns <= now:
            arrived.append((request, block_keys(request.prefix, request.prompt_tokens, size) if size else []))
            if request.cancel_ns is not None:
                heapq.heappush(self._cancels, (request.cancel_ns, request.index))
            request = next(self._pending, None)
        self._next = request
        cancelled = []
        while self._cancels and self._cancels[0][0] <= now:
            cancelled.append(heapq.heappop(self._cancels)[1])
        self._set_due()
        return arrived, cancelled

    @staticmethod
    def _requests(source: RequestSource) -> Iterator[Request]:
        for batch in source.batches():
            yield from _rows(batch)


def _rows(batch: RequestBatch) -> Iterator[Request]:
    index, arrival = batch.index.tolist(), batch.arrival_ns.tolist()
    prompt, output = batch.prompt_tokens.tolist(), batch.output_tokens.tolist()
    priority, limit = batch.priority.tolist(), batch.max_tokens.tolist()
    names = batch.request_id
    cancel, tenant, deadline, predicted = (
        column.tolist() if column is not None else None
        for column in (batch.cancel_ns, batch.tenant, batch.deadline_ns, batch.predicted_tokens)
    )
    prefixes = _prefixes(batch)
    for i, number in enumerate(index):
        yield Request(
            index=number,
            request_id=names[i] if names is not None else str(number),
            arrival_ns=arrival[i],
            prompt_tokens=prompt[i],
            output_tokens=output[i],
            max_tokens=limit[i] if limit[i] >= 0 else None,
            priority=priority[i],
            prefix=prefixes[i] if prefixes is not None else None,
            cancel_ns=cancel[i] if cancel is not None and cancel[i] >= 0 else None,
            tenant=tenant[i] if tenant is not None else -1,
            deadline_ns=deadline[i] if deadline is not None and deadline[i] >= 0 else None,
            predicted_tokens=predicted[i] if predicted is not None and predicted[i] >= 0 else None,
        )


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
