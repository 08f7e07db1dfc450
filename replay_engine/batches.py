"""Static and dynamic batching: when a batch is formed, who is in it, and whose place is held until it ends."""

from __future__ import annotations

from replay_engine.rules import Batching
from replay_engine.types import Sequence

__all__ = ["BatchGate"]

_NEVER = 1 << 62


class BatchGate:
    """Admission is shut while a batch runs, and until the next one is ready: ``size`` requests wait, or (dynamic) the oldest
    has waited for
    the window, or no more arrivals will come. ``to_admit`` members of the open batch are still to be admitted."""

    __slots__ = ("_size", "_window_ns", "drained", "early", "holding", "to_admit", "whole")

    def __init__(self, batching: Batching) -> None:
        self._size = batching.size
        self._window_ns = round(batching.window_s * 1e9) if batching.mode == "dynamic" else _NEVER
        self.whole = batching.answers == "batch"
        self.to_admit = 0
        self.drained = False
        """No more arrivals will come: what waits is the last batch."""
        self.early: list[Sequence] = []
        """Ended ones that had to give up their place before the batch ended; they are answered with it."""
        self.holding: list[Sequence] = []
        """Ended sequences of the running batch, their seat and blocks held."""

    def open_ns(self, waiting: int, oldest_ns: int) -> int:
        """When the next batch is ready, for ``waiting`` requests of which the oldest came at ``oldest_ns``."""
        if not waiting:
            return _NEVER
        if waiting >= self._size or self.drained:
            return 0
        return oldest_ns + self._window_ns

    def form(self, waiting: int) -> None:
        """A batch of what waits is formed."""
        self.to_admit = min(self._size, waiting)

    def over(self, running: int) -> bool:
        """Whether the batch has ended: of its ``running`` seats only held places are left, and somebody is to be answered."""
        return len(self.holding) == running and bool(self.holding or self.early)

    def take(self) -> list[Sequence]:
        """The batch has ended: everybody whose place was held."""
        held, self.holding = self.holding, []
        return held

    def answered_with(self) -> list[Sequence]:
        """Who gave up its place early in the batch that has ended."""
        early, self.early = self.early, []
        return early
