"""The client's own limit: so many requests in flight, the others wait at the client in the order in which they were meant."""

from __future__ import annotations

from collections import OrderedDict

from replay_engine.rules import Client
from replay_engine.types import Request

__all__ = ["HeldBack"]


class HeldBack:
    """``meant``: the clock of a held request runs from the moment it was meant to be sent, else from its release."""

    __slots__ = ("_in_flight", "_limit", "_waiting", "meant")

    def __init__(self, limit: int, client: Client) -> None:
        self._limit = limit
        self._in_flight = 0
        self._waiting: OrderedDict[int, Request] = OrderedDict()
        self.meant = client.arrival == "meant"

    @property
    def limit(self) -> int:
        return self._limit

    def sends(self, request: Request) -> bool:
        """Whether ``request`` is sent at once; otherwise it is held."""
        if self._in_flight < self._limit:
            self._in_flight += 1
            return True
        self._waiting[request.index] = request
        return False

    def answered(self) -> Request | None:
        """A request in flight has ended. The held one that is sent now, if any."""
        if self._waiting:
            return self._waiting.popitem(last=False)[1]
        self._in_flight -= 1
        return None

    def drop(self, index: int) -> Request | None:
        """Held request ``index`` is given up; ``None`` if it is not held."""
        return self._waiting.pop(index, None)

    def drain(self) -> list[Request]:
        """All that are held, given up."""
        waiting = list(self._waiting.values())
        self._waiting.clear()
        return waiting

    def __len__(self) -> int:
        return len(self._waiting)
