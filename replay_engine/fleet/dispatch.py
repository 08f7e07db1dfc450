"""Routing carried out: a router asks, a replica gets the request, and what was seen is a row of ``routing``."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as SequenceOf

from replay_engine.fleet.member import Member, Sent
from replay_engine.fleet.routers import Candidate, Router
from replay_engine.recorder import Recorder
from replay_engine.rows import RowBuffer
from replay_engine.tables import Decision, OutcomeReason, Verdict

__all__ = ["Dispatch"]


class Dispatch:
    """Sends requests to ``members`` as ``router`` says. ``front`` gets what happens before, ``rows`` (if not ``None``) one row
    per replica looked at, where members are numbered from ``first`` on. While no member is up, requests wait."""

    def __init__(
        self, members: SequenceOf[Member], router: Router, front: Recorder, rows: RowBuffer | None, first: int = 0
    ) -> None:
        self._first = first
        self.members = {member.number: member for member in members}
        self.up = sorted(self.members)
        self.waiting: deque[tuple[int, Sent, int]] = deque()
        """Requests that no replica is up for: since when, and which replica failed them (-1: none)."""
        self._router = router
        self._front = front
        self._rows = rows
        self._now = 0
        self._looked: list[Candidate] = []

    def send(self, at: int, sent: Sent, since: int, lost: int = -1) -> None:
        """``sent`` goes to a replica at ``at`` (ns), or waits for one, as it does since ``since``; ``lost``: who failed it."""
        request, keys = sent
        if not self.up:
            self.waiting.append((since, sent, lost))
            return
        self._now = at
        self._looked.clear()
        number = self._router.pick(request, keys, self.up, self._look)
        if self._rows is not None:
            self._log(self._rows, sent, number)
        if since < at:
            self._front.spans.dispatched(request.index, since, at)
        if lost >= 0:
            verdict = Verdict(Decision.route, OutcomeReason.replica_failed, lost, self._first + number)
            self._front.decision(at, request.index, verdict)
        self.members[number].send(at, request, keys)

    def fails(self, number: int, at: int) -> tuple[int, list[Sent]]:
        """Replica ``number`` dies at ``at`` (``Member.fail``)."""
        self.up.remove(number)
        self._router.forget(number)
        return self.members[number].fail(at)

    def back(self, number: int, at: int) -> None:
        """Replica ``number`` is back; whoever has waited for one is sent."""
        self.members[number].back(at)
        self.up = sorted([*self.up, number])
        waiting, self.waiting = self.waiting, deque()
        for since, sent, lost in waiting:
            self.send(at, sent, since, lost)

    def forget(self, index: int) -> None:
        """Request ``index`` waits for a replica no more."""
        self.waiting = deque(entry for entry in self.waiting if entry[1][0].index != index)

    def _look(self, number: int) -> Candidate:
        candidate = self.members[number].look(self._now)
        self._looked.append(candidate)
        return candidate

    def _log(self, rows: RowBuffer, sent: Sent, chosen: int) -> None:
        request = sent[0]
        if all(candidate.replica != chosen for candidate in self._looked):
            self._look(chosen)
        for each in self._looked:
            number = each.replica
            rows.add(
                self._now, each.tokens, request.index, each.requests, self.members[number].free_blocks, each.hit_blocks,
                request.attempt, self._first + number, number == chosen,
            )  # fmt: skip
