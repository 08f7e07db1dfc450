"""The standing set of decoding sequences where the longest of them costs extra: who that is, at a cost of O(changes).

While everybody decodes by one token, a member's ``origin`` is fixed, and the longest context is that of the least origin. Origins
change only where somebody joins or leaves: they are counted, and lie in a heap from which those that nobody has any more are
taken when they come up (lazy deletion). What the longest is above the mean does not change at all between two changes.
"""

from __future__ import annotations

from bisect import bisect_right
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from replay_engine.decode_set import DecodeSet
from replay_engine.shares import FairShares
from replay_engine.tables import LONG_ITERATIONS, LONGEST
from replay_engine.types import EventSink, Sequence

__all__ = ["FollowedSet", "LongestLog", "LongestSink"]


class FollowedSet(DecodeSet):
    """A ``DecodeSet`` that knows its longest context.

    Whoever joins in an iteration decodes from the next one on, and whoever retires in it still decodes: the first of either
    notes what the iteration's longest is, which is asked for later.
    """

    __slots__ = ("_heap", "_holders", "_longest", "_noted", "_origins")

    def __init__(self, block_size: int, shares: FairShares | None = None) -> None:
        super().__init__(block_size, shares)
        self._heap: list[int] = []
        self._holders: dict[int, int] = {}
        """Members by origin; an origin is in the heap at least as long as somebody has it."""
        self._origins = 0
        """The sum of all members' origins."""
        self._noted = -1
        self._longest = 0
        """As of iteration ``_noted``."""

    def join(self, seq: Sequence, iteration: int) -> None:
        self._note(iteration)
        super().join(seq, iteration)
        origin = seq.origin
        self._origins += origin
        holders = self._holders.get(origin)
        if holders is None:
            self._holders[origin] = 1
            heappush(self._heap, origin)
        else:
            self._holders[origin] = holders + 1

    def leave(self, seq: Sequence, comp: int, served: int) -> None:
        self._drop(seq.origin)
        super().leave(seq, comp, served)

    def retire(self, iteration: int) -> list[Sequence]:
        self._note(iteration)
        gone = super().retire(iteration)
        for seq in gone:
            self._drop(seq.origin)
        return gone

    def beside(self, comp: int, iteration: int) -> None:
        """A decode that is no member has ``comp`` computed tokens in ``iteration``: it may be the longest."""
        self._note(iteration)
        if comp > self._longest:
            self._longest = comp

    def longest(self, iteration: int) -> int:
        """Tokens of the longest context that decodes in ``iteration``, which is the last one decided, or the next; 0: nobody."""
        if self._noted == iteration:
            return self._longest
        return iteration - self._least() if self.count else 0

    def spread(self) -> int:
        """What the members' contexts are below the longest one, in all: ``longest x count - kv``."""
        return self._origins - self.count * self._least() if self.count else 0

    def _note(self, iteration: int) -> None:
        if self._noted != iteration:
            self._longest = iteration - self._least() if self.count else 0
            self._noted = iteration

    def _drop(self, origin: int) -> None:
        """Somebody with ``origin`` is no member any more. The heap learns of it when it comes up."""
        self._origins -= origin
        self._holders[origin] -= 1

    def _least(self) -> int:
        heap, holders = self._heap, self._holders
        while not holders[heap[0]]:
            del holders[heappop(heap)]
        return heap[0]


class LongestLog:
    """The longest context by iteration, kept as its changes: ``iteration - longest`` stays what it is while members do.

    ``kept``: whether rows of iterations are wanted at all.
    """

    def __init__(self, *, kept: bool) -> None:
        self._kept = kept
        self._from: list[int] = []
        self._origin: list[int] = []

    def note(self, iteration: int, longest: int) -> None:
        """``longest`` tokens in ``iteration``, and one more in each that follows until the next note. A second note of the same
        iteration stands in place of the first."""
        if not self._kept:
            return
        origin = iteration - longest
        if self._from and self._from[-1] == iteration:
            self._origin[-1] = origin
        elif not self._origin or self._origin[-1] != origin:
            self._from.append(iteration)
            self._origin.append(origin)

    def widened(self, rows: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
        """``iterations`` rows, in order, with the longest context; notes that no later row needs are given up."""
        wide = np.empty(len(rows), LONG_ITERATIONS)
        for name in rows.dtype.names or ():
            wide[name] = rows[name]
        wide[LONGEST[0]] = 0
        busy = rows["decode_seqs"] > 0
        if busy.any():
            numbers = rows["iteration"][busy]
            place = np.searchsorted(np.array(self._from), numbers, side="right") - 1
            wide[LONGEST[0]][busy] = numbers - np.array(self._origin)[place]
            past = max(bisect_right(self._from, int(numbers[-1])) - 1, 0)
            del self._from[:past], self._origin[:past]
        return wide


class LongestSink:
    """Passes rows on to ``sink``, ``iterations`` with the longest context of their decodes out of ``log``."""

    def __init__(self, sink: EventSink, log: LongestLog) -> None:
        self._sink = sink
        self._log = log

    def append(self, table: str, rows: npt.NDArray[np.void]) -> None:
        self._sink.append(table, self._log.widened(rows) if table == "iterations" else rows)
