"""KV in one piece per sequence, its maximum length reserved up front: what paging replaced, for comparison."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

from replay_engine.kv_counted import Grant
from replay_engine.types import Sequence

__all__ = ["ContiguousPool"]


class ContiguousPool:
    """First fit over free extents. ``free`` counts free blocks, ``largest`` the longest run of them: the difference is
    fragmentation."""

    __slots__ = ("_extents", "blank", "changes", "evicted", "free")

    filling = False

    def __init__(self, usable_blocks: int) -> None:
        self.free = self.blank = usable_blocks
        self.evicted = 0
        self.changes = 0
        self._extents: list[tuple[int, int]] = [(0, usable_blocks)]
        """Free (start, length), by start, never adjacent."""

    @property
    def largest(self) -> int:
        """Blocks of the longest free extent."""
        return max((length for _, length in self._extents), default=0)

    def bind(self, seq: Sequence, keys: SequenceOf[int]) -> None:
        pass

    def hits(self, seq: Sequence) -> tuple[int, int]:
        return 0, 0

    def adopt(self, seq: Sequence) -> None:
        pass

    def grow(self, seq: Sequence, blocks: int) -> None:
        at = next(i for i, (_, length) in enumerate(self._extents) if length >= blocks)
        start, length = self._extents.pop(at)
        if length > blocks:
            self._extents.insert(at, (start + blocks, length - blocks))
        seq.blocks = (start, blocks)
        self.free -= blocks
        self.blank = self.free

    def commit(self, seq: Sequence, tokens: int) -> None:
        pass

    def advance(self, due: dict[int, Sequence], filling: dict[int, Sequence], iteration: int, grants: Iterable[Grant]) -> None:
        pass

    def joined(self, seq: Sequence) -> None:
        pass

    def left(self, seq: Sequence) -> None:
        pass

    def release(self, seq: Sequence, held: int, registered: int, *, resumes: bool) -> None:
        start, length = seq.blocks
        self.free += length
        self.blank = self.free
        at = bisect_left(self._extents, (start, 0))
        if at < len(self._extents) and self._extents[at][0] == start + length:
            length += self._extents.pop(at)[1]
        if at and sum(self._extents[at - 1]) == start:
            before = self._extents.pop(at - 1)
            start, length = before[0], before[1] + length
        insort(self._extents, (start, length))
        seq.blocks = None
        seq.nblocks = seq.nreg = 0

    def entries(self, running: Iterable[tuple[Sequence, int]]) -> int:
        return 0
