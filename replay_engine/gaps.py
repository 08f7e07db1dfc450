"""The longest gap between two tokens of every sequence, and its stalled time, without a row or a touch per token.

While a sequence decodes, its gaps are the durations of the iterations. A query is always "the longest iteration since I
joined", so a
stack of falling maxima answers it; it grows only where the running set changes.
"""

from __future__ import annotations

from bisect import bisect_left

__all__ = ["GapClock"]


class GapClock:
    """Durations of past iterations, folded into segments at every change of the decode set."""

    __slots__ = ("_maxima", "_serial", "_serials", "since", "stalled", "threshold")

    def __init__(self, threshold_ns: int | None) -> None:
        self.threshold = threshold_ns
        self.stalled = 0
        """Sum over all iterations so far of the time beyond the threshold."""
        self.since = -1
        """The longest iteration of the running segment, -1: none has run."""
        self._serial = 0
        self._serials: list[int] = []
        self._maxima: list[int] = []

    def tick(self, duration: int) -> None:
        """An iteration has run."""
        if duration > self.since:
            self.since = duration
        if self.threshold is not None and duration > self.threshold:
            self.stalled += duration - self.threshold

    def pass_over(self, longest: int, stalled: int) -> None:
        """A stretch of iterations has run: the longest of them, and the time of all beyond the threshold."""
        if longest > self.since:
            self.since = longest
        self.stalled += stalled

    def fold(self) -> int:
        """Close the running segment. Returns the mark from which a sequence that joins now counts."""
        longest = self.since
        if longest >= 0:
            self.since = -1
            maxima, serials = self._maxima, self._serials
            while maxima and maxima[-1] <= longest:
                maxima.pop()
                serials.pop()
            maxima.append(longest)
            serials.append(self._serial)
            self._serial += 1
        return self._serial

    def longest_since(self, mark: int) -> int:
        """Longest iteration since ``mark``; -1 if none has run."""
        at = bisect_left(self._serials, mark)
        if at == len(self._maxima):
            return self.since
        longest = self._maxima[at]
        return longest if longest > self.since else self.since

    def excess(self, gap: int) -> int:
        """Time of one gap beyond the threshold."""
        return gap - self.threshold if self.threshold is not None and gap > self.threshold else 0
