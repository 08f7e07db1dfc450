"""What the prefix cache of the simulator holds: segments of consecutive keys, found and registered in time of their number.

A key stands for its whole prefix, hence

* a lookup, and a registration, always begin where a segment begins: equal keys have equal predecessors, and a segment is cut, and
  is not lengthened or joined, where a sequence that holds another copy of its blocks will go on;
* what is cached is closed: where a key is missing, no later one of the same prompt is there.
"""

from __future__ import annotations

from replay_engine.kv_segments import Freed, Holding, Segment

__all__ = ["CachedRuns"]

_PRIVATE = -(1 << 62)
"""The first key that no trace has."""


class CachedRuns:
    """Segments of cached blocks: the earliest copy of each content, and the later ones."""

    __slots__ = ("_copies", "_first", "_private")

    def __init__(self) -> None:
        self._first: dict[int, Segment] = {}
        """The earliest copies of what is cached, by the first key of each segment."""
        self._copies: list[Segment] = []
        """Later copies, in the order in which they were registered."""
        self._private = _PRIVATE

    def entries(self) -> int:
        """Distinct contents."""
        return sum(segment.hi - segment.lo for segment in self._first.values())

    def find(self, own: Holding, limit: int) -> tuple[list[tuple[Segment, int]], int, int]:
        """The longest cached prefix of ``own`` among its first ``limit`` blocks, in pieces; its length, and how much of it nobody
        holds."""
        found: list[tuple[Segment, int]] = []
        count = revived = 0
        for start, end, shift in own.runs:
            if start >= limit:
                break
            key, last = start + shift, (end if end < limit else limit) + shift
            while key < last:
                segment = self._first.get(key)
                if segment is None:
                    return found, count, revived
                hi = segment.hi if segment.hi < last else last
                found.append((segment, hi))
                count += hi - key
                if not segment.refs:
                    revived += hi - key
                key = hi
        return found, count, revived

    def cut(self, segment: Segment, key: int) -> None:
        """``segment`` ends at ``key``, where another one begins."""
        upper = segment.cut(key)
        if segment.copy:
            self._copies.insert(self._copies.index(segment) + 1, upper)
        else:
            self._first[key] = upper

    def forget(self, parts: list[Segment], most: int) -> tuple[int, int]:
        """At most so many blocks at the end of ``parts`` lose their content; later copies take their places. Returns how many do,
        and how many copies that is."""
        segment = parts[-1]
        hi = segment.hi
        lo = segment.hi = max(hi - most, segment.lo)
        if lo == segment.lo:
            parts.pop()
            if segment.copy:
                self._copies.remove(segment)
            elif self._first.get(lo) is segment:
                del self._first[lo]
        return hi - lo, self._promote(lo, hi) if self._copies and not segment.copy else 0

    def _promote(self, lo: int, hi: int) -> int:
        """The earliest copies of the keys from ``lo`` to ``hi`` are gone: the next ones become it, where there are some."""
        copies, gaps, promoted = self._copies, [(lo, hi)], 0
        while gaps:
            lo, hi = gaps.pop()
            at = next((at for at, copy in enumerate(copies) if copy.lo < hi and copy.hi > lo), None)
            if at is None:
                continue
            if copies[at].lo < lo:
                self.cut(copies[at], lo)
                at += 1
            if copies[at].hi > hi:
                self.cut(copies[at], hi)
            segment = copies.pop(at)
            segment.copy = False
            self._first[segment.lo] = segment
            promoted += segment.hi - segment.lo
            gaps += [(low, high) for low, high in ((lo, segment.lo), (segment.hi, hi)) if low < high]
        return promoted

    def register(self, own: Holding, stop: int) -> None:
        """The blocks of ``own`` up to position ``stop`` are full."""
        at = own.held
        own.held = stop
        while at < stop:
            _, end, shift = own.runs[own.run]
            if end <= at:
                own.run += 1
                continue
            key, last = at + shift, (end if end < stop else stop) + shift
            while key < last:
                segment = self._first.get(key)
                key = last if segment is None else min(segment.hi, last)
                if segment is None:
                    self._register_first(own, at + shift, last)
                else:
                    self._register_copy(own, segment, key)
                at = key - shift

    def _register_first(self, own: Holding, lo: int, hi: int) -> None:
        segment = None if self._copies else own.go_on(lo)
        if segment is not None:
            own.lengthen(segment, hi)
        else:
            segment = self._first[lo] = Segment(lo, hi, 1)
            own.pieces.append((segment, hi))

    def _register_copy(self, own: Holding, segment: Segment, hi: int) -> None:
        """The keys of ``segment`` up to ``hi``, which is where ``own`` will go on."""
        if hi < segment.hi:
            self.cut(segment, hi)
        copy = Segment(segment.lo, hi, 1, copy=True)
        self._copies.append(copy)
        own.pieces.append((copy, hi))

    def make_private(self, own: Holding, blocks: int) -> None:
        """``blocks`` of ``own`` that were only counted are cached under keys of its own."""
        self._first[self._private] = own.make_private(self._private, blocks)
        self._private += blocks + 1

    def unref(self, own: Holding, freed: Freed) -> int:
        """Nobody may be left who holds what ``own`` does: such blocks go to ``freed``. Returns their number."""
        parts, blocks = freed.parts, 0
        for segment in own.segments():
            segment.refs -= 1
            if segment.refs:
                continue
            segment.after = None
            blocks += segment.hi - segment.lo
            below = parts[-1] if parts else None
            if below is not None and below.hi == segment.lo and not self._copies:
                below.hi = segment.hi
                if self._first.get(segment.lo) is segment:
                    del self._first[segment.lo]
            else:
                segment.freed = freed
                parts.append(segment)
        own.clear()
        return blocks
