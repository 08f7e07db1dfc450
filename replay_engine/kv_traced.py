"""The KV pool of the simulator with prefix caching, by runs of blocks: a cost of O(runs), whatever the lengths.

The whole trace is known, so a block key that occurs in one request only (and was never preempted) cannot be hit by anyone:
such blocks are counted, and a finished request leaves them in the LRU order as a number. The others are runs (``kv_runs``).

vLLM's free list is always ``[blank blocks..., cached blocks in LRU order]``: un-hashed blocks go to the head, hashed ones to the
tail, and a hash is lost only by handing the block out. So an integer and an ordered dict stand for it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

from replay_engine.kv_counted import Grant
from replay_engine.kv_runs import CachedRuns
from replay_engine.kv_segments import Freed, Holding, Segment
from replay_engine.prefix import BlockKeys
from replay_engine.types import Sequence

__all__ = ["TracedPool"]


class TracedPool:
    """Counts, plus segments for shareable blocks. ``seq.keys`` is a ``Holding`` of its leading shareable blocks, or ``None``.

    ``lag`` is 1 under asynchronous scheduling: a block's last token is known one iteration later.
    """

    __slots__ = ("_dead", "_fill", "_found", "_lag", "_lru", "_runs", "_size", "blank", "changes", "evicted", "free")

    def __init__(self, usable_blocks: int, block_size: int, lag: int) -> None:
        self._size = block_size
        self._lag = lag
        self.free = self.blank = usable_blocks
        self.evicted = 0
        self.changes = 0
        self._runs = CachedRuns()
        self._lru: OrderedDict[Freed, None] = OrderedDict()
        self._dead = 0
        """What is left of the dead blocks at the head of the LRU order, already taken out of it."""
        self._fill: dict[int, Sequence] = {}
        """Members of the decode set that still have shareable blocks to complete."""
        self._found: list[tuple[Segment, int]] = []

    @property
    def largest(self) -> int:
        """Paged blocks are all of one extent."""
        return self.free

    @property
    def filling(self) -> bool:
        """Whether a decoding sequence still has shareable blocks to complete."""
        return bool(self._fill)

    def bind(self, seq: Sequence, keys: SequenceOf[int]) -> None:
        seq.keys = Holding(BlockKeys.of(keys)) if keys else None

    def hits(self, seq: Sequence) -> tuple[int, int]:
        own: Holding | None = seq.keys
        if own is None:
            self._found = []
            return 0, 0
        self._found, count, revived = self._runs.find(own, (seq.nt - 1) // self._size)
        return count, revived

    def adopt(self, seq: Sequence) -> None:
        own: Holding | None = seq.keys
        seq.nblocks = seq.nreg = 0
        if own is None:
            return
        pieces, held = own.pieces, 0
        for segment, hi in self._found:
            if hi < segment.hi:
                self._runs.cut(segment, hi)
            held += hi - segment.lo
            segment.refs += 1
            if segment.freed is not None:
                self._revive(segment)
            pieces.append((segment, hi))
        own.held = seq.nblocks = seq.nreg = held

    def _revive(self, segment: Segment) -> None:
        freed = segment.freed
        assert freed is not None
        segment.freed = segment.after = None
        freed.parts.remove(segment)
        if not freed.parts and not freed.dead:
            del self._lru[freed]
        self.free -= segment.hi - segment.lo

    def grow(self, seq: Sequence, blocks: int) -> None:
        self.take(blocks)

    def take(self, blocks: int) -> None:
        """Hand out ``blocks`` blocks: blank ones, then the least recently used cached ones."""
        self.free -= blocks
        if blocks <= self.blank:
            self.blank -= blocks
            return
        blocks -= self.blank
        self.blank = 0
        self.evicted += blocks
        while blocks > self._dead:
            blocks -= self._dead
            self._dead = 0
            freed = next(iter(self._lru))
            if freed.dead:
                self._dead, freed.dead = freed.dead, 0
            else:
                gone, promoted = self._runs.forget(freed.parts, blocks)
                blocks -= gone
                self.changes += promoted
            if not freed.parts:
                del self._lru[freed]
        self._dead -= blocks

    def commit(self, seq: Sequence, tokens: int) -> None:
        full = tokens // self._size
        if full > seq.nreg:
            own: Holding | None = seq.keys
            if own is not None and own.held < own.length:
                stop = full if full < own.length else own.length
                self.changes += stop - own.held
                self._runs.register(own, stop)
            seq.nreg = full

    def advance(self, due: dict[int, Sequence], filling: dict[int, Sequence], iteration: int, grants: Iterable[Grant]) -> None:
        taken, size = len(due), self._size
        ready: list[tuple[int, Sequence, int]] = []
        for seq, tokens, blocks in grants:
            taken += blocks
            seq.nblocks += blocks
            if seq.keys is not None:
                ready.append((seq.ticket, seq, seq.comp + tokens))
            elif (full := (seq.comp + tokens) // size) > seq.nreg:  # nobody shares its blocks: they are only counted
                seq.nreg = full
        if taken:
            self.take(taken)
        if self._fill:
            for ticket in self._fill.keys() & filling.keys():
                seq = filling[ticket]
                ready.append((ticket, seq, iteration - self._lag - seq.origin))
            ready.sort(key=_first)
        for _, seq, tokens in ready:
            self.commit(seq, tokens)

    def joined(self, seq: Sequence) -> None:
        own: Holding | None = seq.keys
        if own is not None and own.held < own.length:
            self._fill[seq.ticket] = seq

    def left(self, seq: Sequence) -> None:
        self._fill.pop(seq.ticket, None)

    def release(self, seq: Sequence, held: int, registered: int, *, resumes: bool) -> None:
        self.blank += held - registered
        self.free += held
        seq.nblocks = seq.nreg = 0
        own: Holding | None = seq.keys
        counted = registered if own is None else registered - own.held
        if counted and resumes:  # it can hit its own blocks when it comes back
            own = seq.keys = Holding(BlockKeys()) if own is None else own
            self._runs.make_private(own, counted)
            counted = 0
        freed = Freed(counted)
        if own is not None:
            self.free -= own.held
            self.free += self._runs.unref(own, freed)
        if freed.dead or freed.parts:
            self._lru[freed] = None

    def entries(self, running: Iterable[tuple[Sequence, int]]) -> int:
        counted = sum(registered - (seq.keys.held if seq.keys is not None else 0) for seq, registered in running)
        dead = self._dead + sum(freed.dead for freed in self._lru)
        return self._runs.entries() + counted + dead


def _first(entry: tuple[int, Sequence, int]) -> int:
    return entry[0]
