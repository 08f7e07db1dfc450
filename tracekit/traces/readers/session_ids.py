"""Block ids that mean something inside one session only: made different from those of every other session, kept as runs."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["SessionIds"]

LARGE = 1 << 40
"""From here on ids are hashes, and numbered anew."""
REFUSED = "not a list of block ids"


class SessionIds:
    """Gives every session its own range of ids, in which consecutive ids stay consecutive."""

    def __init__(self, start: int = 0) -> None:
        self._base = self._next = start
        self._hashes: dict[Any, int] = {}

    @property
    def end(self) -> int:
        """The first id that no session has yet."""
        return self._next

    def next_session(self) -> None:
        """The ids that follow belong to another session."""
        self._base = self._next
        self._hashes = {}

    def runs(self, ids: Any) -> list[list[int]] | str | None:
        """One request's ids as runs [position, first id, length]; a text, which nobody takes for runs, when they are no ids."""
        if ids is None or ids == []:
            return None
        if not isinstance(ids, list):
            return REFUSED
        numbers: npt.NDArray[np.int64] | None = None
        try:
            numbers = np.frombuffer(array("q", ids), np.int64)
        except (TypeError, OverflowError):
            if not set(map(type, ids)) <= {int, str}:
                return REFUSED
        if numbers is None or self._hashes or int(numbers.max()) >= LARGE:
            numbers, base = self._numbered(ids), 0
        elif int(numbers.min()) < 0:
            return REFUSED
        else:
            base = self._base
            self._next = max(self._next, base + int(numbers.max()) + 1)
        starts = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 2) != 1)
        firsts = numbers[starts] + base
        runs: list[list[int]] = np.stack([starts, firsts, np.diff(starts, append=len(numbers))], axis=1).tolist()
        return runs

    def _numbered(self, ids: list[Any]) -> npt.NDArray[np.int64]:
        hashes = self._hashes
        for each in ids:
            if each not in hashes:
                hashes[each] = self._next
                self._next += 1
        return np.array([hashes[each] for each in ids], np.int64)
