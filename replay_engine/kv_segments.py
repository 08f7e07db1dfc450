"""Blocks by the run: physical blocks with consecutive keys, who holds them, and in which order they are given up."""

from __future__ import annotations

from replay_engine.prefix import BlockKeys, KeyRun

__all__ = ["Freed", "Holding", "Segment"]


class Segment:
    """Blocks that hold the keys ``lo`` to ``hi`` (not included), all held by the same ``refs`` sequences.

    A segment that is cut keeps its lower part, and ``after`` is the upper one: its holders find the rest of their blocks there.
    ``copy``: another block had each of these keys first. ``freed`` is its place in the LRU order while nobody holds it.
    """

    __slots__ = ("after", "copy", "freed", "hi", "lo", "refs")

    def __init__(self, lo: int, hi: int, refs: int, *, copy: bool = False) -> None:
        self.lo = lo
        self.hi = hi
        self.refs = refs
        self.copy = copy
        self.after: Segment | None = None
        self.freed: Freed | None = None

    def cut(self, key: int) -> Segment:
        """Keep the blocks below ``key``. Returns the others."""
        upper = Segment(key, self.hi, self.refs, copy=self.copy)
        self.hi = key
        upper.after = self.after
        self.after = upper
        if self.freed is not None:
            upper.freed = self.freed
            parts = self.freed.parts
            parts.insert(parts.index(self) + 1, upper)
        return upper


class Freed:
    """What one sequence gave back to the cache, neighbours in the LRU order: first to go are ``dead`` blocks that nobody can hit,
    then ``parts``, the last one first and each from its end."""

    __slots__ = ("dead", "parts")

    def __init__(self, dead: int) -> None:
        self.dead = dead
        self.parts: list[Segment] = []


class Holding:
    """The shareable keys of a sequence, ``held`` of which are registered and held now.

    ``pieces`` are what it holds, in order: a segment, and the key up to which its blocks go (in those ``after`` it, where it was
    cut).
    """

    __slots__ = ("held", "length", "pieces", "run", "runs")

    def __init__(self, keys: BlockKeys) -> None:
        self.runs: tuple[KeyRun, ...] = keys.runs
        self.length = keys.length
        self.held = 0
        self.run = 0
        """Where in ``runs`` the next block to register is, or before it."""
        self.pieces: list[tuple[Segment, int]] = []

    def segments(self) -> list[Segment]:
        """Everything held, in order."""
        found = []
        for segment, hi in self.pieces:
            found.append(segment)
            while segment.hi < hi:
                assert segment.after is not None
                segment = segment.after
                found.append(segment)
        return found

    def go_on(self, key: int) -> Segment | None:
        """The segment with the last block held, if ``key`` is the next one and nobody else holds it."""
        if not self.pieces:
            return None
        segment, hi = self.pieces[-1]
        if hi != key:
            return None
        while segment.hi < hi:
            assert segment.after is not None
            segment = segment.after
        return segment if segment.refs == 1 else None

    def lengthen(self, segment: Segment, hi: int) -> None:
        """``segment``, the last one held, now goes up to ``hi``."""
        segment.hi = hi
        self.pieces[-1] = (self.pieces[-1][0], hi)

    def make_private(self, first: int, blocks: int) -> Segment:
        """``blocks`` that were only counted follow what is held, under keys from ``first`` on that are nobody else's."""
        held = self.held
        shared = tuple((start, min(end, held), shift) for start, end, shift in self.runs if start < held)
        self.runs = (*shared, (held, held + blocks, first - held))
        self.length = self.held = held + blocks
        segment = Segment(first, first + blocks, 1)
        self.pieces.append((segment, segment.hi))
        return segment

    def clear(self) -> None:
        """Nothing is held any more."""
        self.held = self.run = 0
        self.pieces = []
