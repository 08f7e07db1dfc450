"""One replica of a fleet: the engine that runs now, what the router knows of it, and its failures."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import Protocol

from replay_engine.arrivals import NEVER, Inbox
from replay_engine.fleet.routers import Candidate
from replay_engine.kv_counted import BlockPool
from replay_engine.replica import Replica, halt
from replay_engine.tables import OutcomeReason
from replay_engine.types import EventSink, Request, RequestState

__all__ = ["STOPPED", "Listener", "Member", "Own", "expected_tokens"]

Sent = tuple[Request, SequenceOf[int]]
"""A request and its block keys."""
Own = Callable[[int, EventSink], tuple[BlockPool | None, EventSink]]
"""The KV pool that the executor of a replica needs (``None``: the scheduler's choice), and where its rows go, given its number
and the sink."""
STOPPED = {"interrupted": OutcomeReason.interrupted, "failed": OutcomeReason.engine_failed}
"""What becomes of whoever has not ended when a whole replay is stopped, by how it ended."""


class Listener(Protocol):
    """Who is told that a request has ended: at ``at`` (ns), on ``replica``; ``completed``: with its last token."""

    def ended(self, replica: int, request: Request, at: int, *, completed: bool) -> None: ...


def expected_tokens(request: Request) -> int:
    """Prompt and output of a request as a router counts them: the output as predicted, where the trace says so, else as it
    will be."""
    predicted = request.predicted_tokens
    return request.prompt_tokens + (request.output_tokens if predicted is None else predicted)


class Member:
    """``make(inbox, client, before)`` makes an engine, in place of the one ``before`` that failed. ``up``: takes requests.

    ``candidate`` is what a router sees: requests sent and not answered by the moment it was asked for.
    """

    def __init__(self, number: int, make: Callable[[Inbox, Member, Replica | None], Replica], listener: Listener) -> None:
        self.number = number
        self.up = True
        self.candidate = Candidate(number)
        self._make = make
        self._listener = listener
        self.inbox = Inbox()
        self.engine = make(self.inbox, self, None)
        self._sent: dict[int, tuple[Request, SequenceOf[int], int]] = {}
        self._answers: list[tuple[int, int]] = []

    def send(self, at: int, request: Request, keys: SequenceOf[int]) -> None:
        """``request`` comes in at ``at`` (ns)."""
        tokens = self.weigh(request)
        self._sent[request.index] = (request, keys, tokens)
        self.candidate.requests += 1
        self.candidate.tokens += tokens
        self.engine.push(at, request, keys)

    def weigh(self, request: Request) -> int:
        """The tokens ``request`` counts for while it is not answered."""
        return expected_tokens(request)

    def ended(self, request: Request, at: int, *, completed: bool) -> None:
        """``request`` is answered at ``at``, which may still be to come."""
        heapq.heappush(self._answers, (at, self._sent.pop(request.index)[2]))
        self._listener.ended(self.number, request, at, completed=completed)

    def look(self, at: int) -> Candidate:
        """What this replica is like at ``at`` (ns), when all before is known."""
        if self.engine.next_ns < at:
            self.engine.advance(at)
        answers, candidate = self._answers, self.candidate
        while answers and answers[0][0] <= at:
            candidate.requests -= 1
            candidate.tokens -= heapq.heappop(answers)[1]
        return candidate

    @property
    def free_blocks(self) -> int:
        """KV blocks that hold nothing that runs."""
        return self.engine.scheduler.state.pool.free

    def fail(self, at: int) -> tuple[int, list[Sent]]:
        """The replica dies at ``at``, to which everything is known: what is under way still ends. Returns when that is, and the
        requests it had, in the order in which they had come to it."""
        self.up = False
        self.engine.advance(at)
        moment = halt(self.engine, at)
        spans, last = self.engine.recorder.spans, self.engine.scheduler.state.it
        for seq in self.engine.intake.live.values():
            spans.end_early(seq, max(moment, seq.phase_start_ns), last, None, OutcomeReason.none, 0)
        lost = [(request, keys) for request, keys, _ in self._sent.values()]
        self.engine.intake.live.clear()
        self.engine.next_ns = NEVER
        self._sent.clear()
        self._answers.clear()
        self.candidate, self.inbox = Candidate(self.number), Inbox()
        return moment, lost

    def back(self, at: int) -> None:
        """The replica is back at ``at`` (ns), with nothing in its cache; its iterations go on being counted."""
        self.up = True
        self.engine.now = max(self.engine.now, at)
        self.engine = self._make(self.inbox, self, self.engine)

    @property
    def idle(self) -> bool:
        """Whether nobody runs or waits here."""
        return not self.up or self.engine.idle

    def close(self, now: int) -> None:
        """No more requests will come after ``now``."""
        if self.up and not self.inbox.closed:
            if self.engine.next_ns < now:
                self.engine.advance(now)
            self.inbox.closed = True
            if self.inbox.exhausted:
                self.engine.scheduler.drained()

    def open(self) -> None:
        """There are more requests to come after all."""
        gate = self.engine.scheduler.state.gate
        self.inbox.closed = False
        if gate is not None:
            gate.drained = False

    def end_all(self, reason: OutcomeReason) -> None:
        """Whoever is here and has not ended fails."""
        engine, spans = self.engine, self.engine.recorder.spans
        engine.end_all(reason)
        while len(self.inbox):
            request = self.inbox.pop_arrival()
            spans.never_started(
                request.index, request.arrival_ns, request.prompt_tokens, RequestState.failed, reason, request.attempt
            )
