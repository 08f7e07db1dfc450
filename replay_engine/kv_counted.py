"""The KV pool without prefix caching: blocks are only counted."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from typing import Protocol

from replay_engine.types import Sequence

__all__ = ["BlockPool", "CountedPool", "Grant"]

Grant = tuple[Sequence, int, int]
"""An explicit sequence, the tokens it computes in this iteration, and the blocks it takes for them."""


class BlockPool(Protocol):
    """KV blocks as the scheduler sees them. Three pools, one interface, the same decisions.

    ``free`` blocks can be handed out; ``blank`` of them hold nothing that the prefix cache could give
    (the rest is cached and unreferenced). ``evicted`` counts cached blocks that lost their content.
    ``changes`` counts what may raise the in-use hits of a waiting sequence: registrations and promotions of duplicates.
    """

    free: int
    evicted: int
    changes: int

    @property
    def blank(self) -> int: ...

    @property
    def largest(self) -> int:
        """Blocks of the longest free extent: all free ones, where KV is paged."""
        ...

    def bind(self, seq: Sequence, keys: SequenceOf[int]) -> None:
        """Give a new sequence its block keys: equal keys mean equal content after an equal prefix."""
        ...

    def hits(self, seq: Sequence) -> tuple[int, int]:
        """Longest cached prefix in blocks, and how many of them nobody references. Changes nothing."""
        ...

    def adopt(self, seq: Sequence) -> None:
        """Reference the blocks that the last ``hits`` of this very sequence found."""
        ...

    def grow(self, seq: Sequence, blocks: int) -> None:
        """Take ``blocks`` fresh blocks; the caller has checked ``free``."""
        ...

    def commit(self, seq: Sequence, tokens: int) -> None:
        """Register the blocks of ``seq`` that are full after ``tokens`` known tokens."""
        ...

    def advance(self, due: dict[int, Sequence], filling: dict[int, Sequence], iteration: int, grants: Iterable[Grant]) -> None:
        """The running loop's block work in one go: ``due`` decodes take a block, ``filling`` ones complete one,
        ``grants`` do both; as if each had been treated in ticket order."""
        ...

    def joined(self, seq: Sequence) -> None:
        """``seq`` became a member of the decode set."""
        ...

    def left(self, seq: Sequence) -> None:
        """``seq`` left the decode set."""
        ...

    def release(self, seq: Sequence, held: int, registered: int, *, resumes: bool) -> None:
        """Free the ``held`` blocks, ``registered`` of which are cached, last block first."""
        ...

    def entries(self, running: Iterable[tuple[Sequence, int]]) -> int:
        """Distinct block contents that can be hit now; ``running`` pairs sequences with their registered blocks."""
        ...


class CountedPool:
    """Caching off: one integer."""

    __slots__ = ("blank", "changes", "evicted", "free")

    filling = False

    @property
    def largest(self) -> int:
        return self.free

    def __init__(self, usable_blocks: int) -> None:
        self.free = self.blank = usable_blocks
        self.evicted = 0
        self.changes = 0

    def bind(self, seq: Sequence, keys: SequenceOf[int]) -> None:
        pass

    def hits(self, seq: Sequence) -> tuple[int, int]:
        return 0, 0

    def adopt(self, seq: Sequence) -> None:
        pass

    def grow(self, seq: Sequence, blocks: int) -> None:
        self.take(blocks)

    def take(self, blocks: int) -> None:
        """Hand out ``blocks`` blocks."""
        self.free -= blocks
        self.blank = self.free

    def commit(self, seq: Sequence, tokens: int) -> None:
        pass

    def advance(self, due: dict[int, Sequence], filling: dict[int, Sequence], iteration: int, grants: Iterable[Grant]) -> None:
        taken = len(due)
        for seq, _, blocks in grants:
            taken += blocks
            seq.nblocks += blocks
        self.free -= taken
        self.blank = self.free

    def joined(self, seq: Sequence) -> None:
        pass

    def left(self, seq: Sequence) -> None:
        pass

    def release(self, seq: Sequence, held: int, registered: int, *, resumes: bool) -> None:
        self.free += held
        self.blank = self.free
        seq.nblocks = 0

    def entries(self, running: Iterable[tuple[Sequence, int]]) -> int:
        return 0


