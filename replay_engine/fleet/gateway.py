"""What stands in front of the replicas: arrivals, sessions whose turns wait for each other, and the client's own limit."""

from __future__ import annotations

from replay_engine.arrivals import Calendar, EventKind
from replay_engine.config import SchedulerConfig
from replay_engine.held_back import HeldBack
from replay_engine.recorder import Recorder
from replay_engine.rules import Rules
from replay_engine.tables import Decision, OutcomeReason, Verdict
from replay_engine.types import Request, RequestSource, RequestState

__all__ = ["Gateway"]

_ENDS = {
    EventKind.cancel: (RequestState.cancelled, OutcomeReason.client_cancelled),
    EventKind.queue_timeout: (RequestState.timed_out, OutcomeReason.queue_timeout),
    EventKind.timeout: (RequestState.timed_out, OutcomeReason.timeout),
}


class Gateway:
    """``due(now)`` gives the requests to be routed at ``now``; ``ended`` takes their ends, which release others.

    ``recorder`` gets what happens in front of the replicas. ``depends``: whether the end of a request may bring another one, so
    that ends have to be told in the order of time.
    """

    def __init__(self, source: RequestSource, config: SchedulerConfig, rules: Rules, recorder: Recorder) -> None:
        self.calendar = Calendar(source, config.block_size, caching=config.enable_prefix_caching)
        self._recorder = recorder
        client, door = rules.client, rules.front_door
        self._held = None if client.max_in_flight is None else HeldBack(client.max_in_flight, client)
        waits = ((EventKind.queue_timeout, door.queue_timeout_s), (EventKind.timeout, door.timeout_s))
        self._patience = [(kind, round(seconds * 1e9)) for kind, seconds in waits if seconds is not None]

    @property
    def depends(self) -> bool:
        return self._held is not None or self.calendar.has_followers

    @property
    def exhausted(self) -> bool:
        """Whether nothing is known to come: requests may still be released."""
        return self.calendar.exhausted and not self._held

    def due(self, now: int) -> list[Request]:
        """Requests that are sent at ``now``, to which every end is known."""
        calendar, sent = self.calendar, []
        while calendar.next_ns <= now:
            if calendar.arrival_ns < calendar.event_ns:
                request, held = calendar.pop_arrival(), self._held
                if held is None or held.sends(request):
                    sent.append(request)
                elif held.meant:
                    self._watch(request)
                continue
            at, kind, index = calendar.pop_event()
            if kind != EventKind.slot:
                self._give_up(at, kind, index)
            else:
                sent += self._slot_frees(at)
        return sent

    def ended(self, request: Request, at: int, *, completed: bool) -> None:
        """``request`` has left its replica, which is known from ``at`` (ns) on."""
        if self._held is not None:
            self.calendar.add(at, EventKind.slot, request.index)
        if not self.calendar.has_followers:
            return
        if completed:
            self.calendar.release(request.index, at)
        else:
            self._unreleased(self.calendar.abandon(request.index), at)

    def lost(self, request: Request, at: int, reason: OutcomeReason, *, waited_since: int = -1) -> None:
        """``request`` fails at ``at`` in front of the replicas, where it has waited since ``waited_since``."""
        spans = self._recorder.spans
        if waited_since >= 0:
            spans.dispatched(request.index, waited_since, at)
        spans.never_started(
            request.index, request.arrival_ns, request.prompt_tokens, RequestState.failed, reason, request.attempt
        )
        self._unreleased(self.calendar.abandon(request.index), at)

    def end_all(self, now: int, reason: OutcomeReason) -> None:
        """The replay stops at ``now``: nobody is sent or released any more."""
        for request in self._held.drain() if self._held is not None else ():
            self.lost(request, max(now, request.arrival_ns), reason, waited_since=request.arrival_ns)
        self._unreleased(self.calendar.abandon_all(), now)

    def _watch(self, request: Request) -> None:
        calendar, arrival = self.calendar, request.arrival_ns
        if request.cancel_ns is not None:
            calendar.add(max(request.cancel_ns, arrival), EventKind.cancel, request.index)
        for kind, patience in self._patience:
            calendar.add(arrival + patience, kind, request.index)

    def _slot_frees(self, at: int) -> list[Request]:
        """The next request that is held, if one is, has a slot from ``at`` on."""
        held = self._held
        request = held.answered() if held is not None else None
        if held is None or request is None:
            return []
        waited = at - request.arrival_ns
        self._recorder.decision(at, request.index, Verdict(Decision.hold, OutcomeReason.client_slot, waited, held.limit))
        if request.arrival_order is None:
            request.arrival_order = at
        if held.meant:
            self._recorder.spans.dispatched(request.index, request.arrival_ns, at)
        else:
            request.arrival_ns = at
            request.cancel_ns = None if request.cancel_ns is None else request.cancel_ns + waited
            request.deadline_ns = None if request.deadline_ns is None else request.deadline_ns + waited
        return [request]

    def _give_up(self, at: int, kind: EventKind, index: int) -> None:
        """Somebody gives up on request ``index`` at ``at``, if it is still held."""
        request = self._held.drop(index) if self._held is not None else None
        if request is None:
            return
        state, reason = _ENDS[kind]
        waited = at - request.arrival_ns
        if kind != EventKind.cancel:
            self._recorder.decision(at, index, Verdict(Decision.give_up, reason, waited, waited))
        self._recorder.spans.dispatched(index, request.arrival_ns, at)
        self._recorder.spans.never_started(index, request.arrival_ns, request.prompt_tokens, state, reason)
        self._unreleased(self.calendar.abandon(index), at)

    def _unreleased(self, requests: list[Request], at: int) -> None:
        for request in requests:
            self._recorder.spans.never_started(
                request.index, at, request.prompt_tokens, RequestState.unreleased, OutcomeReason.parent_unfinished
            )
