"""One pool of engines that do the same: who is up, what each was sent and has not answered, and the router that chooses."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from replay_engine.arrivals import NEVER
from replay_engine.fleet.routers import Candidate, Router
from replay_engine.replica import Replica
from replay_engine.types import Request

__all__ = ["Pool"]


class Pool:
    """Engines ``first``, ``first + 1``, ... of the replay. Routers count from 0 within their pool."""

    __slots__ = ("_candidates", "_router", "_sent", "engines", "first", "up")

    def __init__(self, first: int, engines: SequenceOf[Replica], router: Router) -> None:
        self.first = first
        self.engines = list(engines)
        self.up = list(range(len(self.engines)))
        self._router = router
        self._candidates = [Candidate(replica) for replica in self.up]
        self._sent: dict[int, tuple[int, int]] = {}

    def pick(self, request: Request, keys: SequenceOf[int], tokens: int) -> int:
        """The engine (its place in the pool) that ``request`` is sent to; it counts ``tokens`` there until ``answered``."""
        chosen = self._router.pick(request, keys, self.up, self._candidates.__getitem__)
        candidate = self._candidates[chosen]
        candidate.requests += 1
        candidate.tokens += tokens
        self._sent[request.index] = (chosen, tokens)
        return chosen

    def answered(self, index: int) -> None:
        """Request ``index`` is no load here any more."""
        place, tokens = self._sent.pop(index, (-1, 0))
        if place >= 0:
            self._candidates[place].requests -= 1
            self._candidates[place].tokens -= tokens

    @property
    def next_ns(self) -> int:
        """When the first of them makes its next plan (ns)."""
        return min((engine.next_ns for engine in self.engines), default=NEVER)

    def down(self, place: int) -> None:
        """An engine is lost, with all it had cached."""
        self.up.remove(place)
        self._router.forget(place)

    def back(self, place: int) -> None:
        """An engine is there again."""
        self.up = sorted([*self.up, place])
