"""Everything between the calendar and the scheduler: requests come through client and front door, and some leave early."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Protocol

from replay_engine.arrivals import Calendar, EventKind
from replay_engine.front_door import ADMIT, DoorFacts, FrontDoor
from replay_engine.handover import FETCH, Desk
from replay_engine.held_back import HeldBack
from replay_engine.queue_view import QueueView
from replay_engine.recorder import Recorder
from replay_engine.rules import Rules
from replay_engine.scheduler import Scheduler
from replay_engine.tables import Decision, OutcomeReason, Verdict
from replay_engine.types import Phase, Request, RequestState, SeqState, Sequence

__all__ = ["Client", "Intake"]

_WAIT, _DECODE, _DRAIN, _HELD = (int(s) for s in (SeqState.WAIT, SeqState.DECODE, SeqState.DRAIN, SeqState.HELD))
_ENDS = {
    EventKind.cancel: (RequestState.cancelled, OutcomeReason.client_cancelled),
    EventKind.queue_timeout: (RequestState.timed_out, OutcomeReason.queue_timeout),
    EventKind.timeout: (RequestState.timed_out, OutcomeReason.timeout),
}


class Client(Protocol):
    """Whoever sends the requests of an engine that does not draw them from a source."""

    def ended(self, request: Request, at: int, *, completed: bool) -> None:
        """``request`` has left the engine, which knows of it at ``at`` (ns): never before the plan it makes next."""
        ...


class Intake:
    """Carries out what is due. ``live`` are the requests in the engine.

    A request that has waited in vain ends at the very moment of its cancel or timeout, one that is being computed at the next
    iteration boundary; a last token after the timeout finds nobody. ``client`` is told of every end, if there is one.
    """

    __slots__ = (
        "_calendar", "_client", "_desk", "_front_door", "_held", "_lag", "_now", "_queue_timeout_ns", "_recorder", "_scheduler",
        "_timeout_ns", "_view", "live",
    )  # fmt: skip

    def __init__(
        self, calendar: Calendar, scheduler: Scheduler, recorder: Recorder, rules: Rules, facts: DoorFacts,
        client: Client | None = None, desk: Desk | None = None,
    ) -> None:  # fmt: skip
        config = scheduler.config
        self._client, self._desk = client, desk
        self._calendar, self._scheduler, self._recorder = calendar, scheduler, recorder
        self._lag = int(config.async_scheduling)
        self._view = QueueView(scheduler, config, rules)
        self._front_door = FrontDoor(config, rules, facts, self._view)
        self._held = HeldBack(rules.client.max_in_flight, rules.client) if rules.client.max_in_flight is not None else None
        self._queue_timeout_ns, self._timeout_ns = _ns(rules.front_door.queue_timeout_s), _ns(rules.front_door.timeout_s)
        self.live: dict[int, Sequence] = {}
        self._now = 0

    def deliver(self, now: int) -> bool:
        """Everything that is due at ``now`` (ns) and known, in time order. Whether somebody left the engine."""
        calendar, left, self._now = self._calendar, False, now
        while calendar.due_ns <= now and calendar.due_ns < calendar.horizon_ns:
            if calendar.arrival_ns < calendar.event_ns:
                at, request = calendar.arrival_ns, calendar.pop_arrival()
                held = self._held
                if held is None or held.sends(request):
                    self._watch(request)
                    self._enter(request, at)
                elif held.meant:
                    self._watch(request)
            else:
                at, kind, index = calendar.pop_event()
                if kind == EventKind.slot:
                    self._slot_frees(at)
                elif kind >= EventKind.fetched:
                    _kv_moved(self._scheduler, self._recorder, at, kind, index, self.live.get(index))
                else:
                    left = self._leave(at, kind, index, now) or left
        if calendar.exhausted and not self._held:
            self._scheduler.drained()
        return left

    def retire(self, finished: SequenceOf[Sequence]) -> None:
        """``finished`` have got their last token."""
        client, live, door = self._client, self.live, self._front_door
        plain, follows = not self._calendar.has_followers and self._held is None and client is None, door.follows
        for seq in finished:
            live.pop(seq.index, None)
            request, at = seq.request, seq.last_token_ns
            if seq.state == _HELD and self._desk is not None:
                self._desk.computed(seq, at)
                continue
            if plain and at <= request.expires_ns:
                if follows:
                    door.ended(request, at, seq.output_limit)
                continue
            if at > request.expires_ns:
                at = request.expires_ns
                self._give_up(request, at, EventKind.timeout)
                self._abandon(request.index, at)
            elif self._calendar.has_followers:
                self._calendar.release(request.index, at)
                gate = self._scheduler.state.gate
                if gate is not None and not self._calendar.exhausted:
                    gate.drained = False
            self._ended(request, at, seq.output_limit)
            if client is not None:
                client.ended(request, seq.last_token_ns, completed=seq.last_token_ns <= request.expires_ns)

    def end_all(self, now: int, reason: OutcomeReason) -> None:
        """The replay stops at ``now``: whoever came and has not ended fails, and who waits for a completion is not released."""
        for seq in list(self.live.values()):
            self._end(seq, now, RequestState.failed, reason, _outputs(self._scheduler, seq))
        self.live.clear()
        for request in self._held.drain() if self._held is not None else ():
            self._never_sent(request, max(now, request.arrival_ns), RequestState.failed, reason)
        self._unreleased(self._calendar.abandon_all(), now)

    def _watch(self, request: Request) -> None:
        """What will happen to a request whose clock has started, if nothing happens before."""
        calendar, arrival, index = self._calendar, request.arrival_ns, request.index
        if request.cancel_ns is not None:
            calendar.add(max(request.cancel_ns, arrival), EventKind.cancel, index)
        if self._queue_timeout_ns is not None:
            calendar.add(arrival + self._queue_timeout_ns, EventKind.queue_timeout, index)
        if self._timeout_ns is not None:
            request.expires_ns = arrival + self._timeout_ns
            calendar.add(request.expires_ns, EventKind.timeout, index)

    def _enter(self, request: Request, at: int) -> None:
        """``request`` comes to the front door at ``at``."""
        door = self._front_door
        verdict = door.decide(request, at)
        if door.active or verdict is not ADMIT:
            self._recorder.decision(at, request.index, verdict)
        if verdict is not ADMIT and verdict.decision == Decision.reject:
            self._turned_away(request, at, verdict)
            return
        seq = self.live[request.index] = self._scheduler.add(request, self._calendar.keys(request))
        seq.phase_start_ns = at
        if self._desk is not None and seq.handover == FETCH:
            self._desk.entered(seq, at)
        self._view.came(seq)

    def _turned_away(self, request: Request, at: int, verdict: Verdict) -> None:
        self._recorder.spans.never_started(
            request.index, request.arrival_ns, request.prompt_tokens, RequestState.rejected, verdict.reason, request.attempt
        )
        self._abandon(request.index, at)
        if self._held is not None:
            self._calendar.add(at, EventKind.slot, request.index)
        if self._client is not None:
            self._client.ended(request, self._now, completed=False)

    def _slot_frees(self, at: int) -> None:
        held = self._held
        request = held.answered() if held is not None else None
        if held is None or request is None:
            return
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
            self._watch(request)
        self._enter(request, at)

    def _leave(self, at: int, kind: EventKind, index: int, now: int) -> bool:
        """Somebody gives up on request ``index`` at ``at``, if it has not ended, nor (in a queue timeout) been admitted: whether
        it left the engine."""
        state, reason = _ENDS[kind]
        held = self._held.drop(index) if self._held is not None else None
        if held is not None:
            self._give_up(held, at, kind)
            self._never_sent(held, at, state, reason)
            return False
        seq = self.live.get(index)
        waits = seq is not None and seq.state == _WAIT and seq.cached_tokens < 0
        if seq is None or (kind == EventKind.queue_timeout and not waits):
            return False
        outputs = _outputs(self._scheduler, seq)
        if not self._scheduler.abort(seq):
            return False
        del self.live[index]
        self._view.left()
        self._give_up(seq.request, at, kind)
        self._end(seq, at if waits else now, state, reason, outputs)
        self._ended(seq.request, at, -1)
        self._abandon(index, at)
        if self._client is not None:
            self._client.ended(seq.request, now, completed=False)
        return True

    def _abandon(self, index: int, at: int) -> None:
        """Request ``index`` ended at ``at`` without completing: what waits for it will never be sent."""
        if self._calendar.has_followers:
            self._unreleased(self._calendar.abandon(index), at)

    def _unreleased(self, requests: list[Request], at: int) -> None:
        for request in requests:
            self._recorder.spans.never_started(
                request.index, at, request.prompt_tokens, RequestState.unreleased, OutcomeReason.parent_unfinished
            )

    def _give_up(self, request: Request, at: int, kind: EventKind) -> None:
        if kind != EventKind.cancel:
            allowed, waited = self._timeout_ns if kind == EventKind.timeout else self._queue_timeout_ns, at - request.arrival_ns
            verdict = Verdict(Decision.give_up, _ENDS[kind][1], waited, waited if allowed is None else allowed)
            self._recorder.decision(at, request.index, verdict)

    def _never_sent(self, request: Request, at: int, state: RequestState, reason: OutcomeReason) -> None:
        spans = self._recorder.spans
        spans.dispatched(request.index, request.arrival_ns, at)
        spans.never_started(request.index, request.arrival_ns, request.prompt_tokens, state, reason)
        self._abandon(request.index, at)

    def _ended(self, request: Request, at: int, tokens: int) -> None:
        """A request that was let in has ended: client and front door learn of it when the clock gets there."""
        if self._held is not None:
            self._calendar.add(at, EventKind.slot, request.index)
        if self._front_door.follows:
            self._front_door.ended(request, at, tokens)

    def _end(self, seq: Sequence, now: int, state: RequestState, reason: OutcomeReason, outputs: int) -> None:
        at = max(now, seq.phase_start_ns)
        self._recorder.spans.end_early(seq, at, self._scheduler.state.it - self._lag, state, reason, outputs)


def _outputs(scheduler: Scheduler, seq: Sequence) -> int:
    """Output tokens ``seq`` has produced so far; under asynchronous scheduling its next one is on its way."""
    if seq.first_token_ns < 0:
        return 0
    computed = max(scheduler.computed(seq), seq.lost_high)
    under_way = scheduler.state.lag if seq.state in (_DECODE, _DRAIN) else 0
    return min(max(computed - seq.prompt_tokens + 1 - under_way, 1), seq.output_limit)


def _kv_moved(
    scheduler: Scheduler, recorder: Recorder, at: int, kind: EventKind, index: int, waits: Sequence | None
) -> None:  # fmt: skip
    """KV has come for request ``index`` at ``at``, or will not, or has gone from here. ``waits``: who it is for."""
    handover = scheduler.state.handover
    assert handover is not None
    if kind == EventKind.released and index in handover.held:
        scheduler.release_transferred(handover.held[index])
    elif kind == EventKind.fetched and index in handover.fetching:
        seq = handover.fetching[index]
        recorder.spans.between(seq, Phase.decode_queue, at)
        scheduler.fetched(seq)
    elif kind == EventKind.missed and waits is not None and waits.handover == FETCH:
        recorder.spans.between(waits, Phase.preempted, at)
        scheduler.fetch_failed(waits, again=False)


def _ns(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e9)
