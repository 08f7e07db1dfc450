"""The KV pool of the simulator with prefix caching, by runs of blocks: a cost of O(runs), whatever the lengths.

The whole trace is known, so a block key that occurs in one request only (and was never preempted) cannot be hit by anyone:
such blocks are counted, and a finished request leaves them in the LRU order as a number. The others are segments: consecutive
keys whose blocks are held by the same sequences, or were freed together. A key stands for its whole prefix, hence

* a lookup, and a registration, always begin where a segment begins: equal keys have equal predecessors, and a segment is cut, and
  is not lengthened or joined, where a sequence that holds another copy of its blocks will go on;
* what is cached is closed: where a key is missing, no later one of the same prompt is there.

vLLM's free list is always ``[blank blocks..., cached blocks in LRU order]``: un-hashed blocks go to the head, hashed ones to the
tail, and a hash is lost only by handing the block out. So an integer and an ordered dict stand for it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

from replay_engine.kv_counted import Grant
from replay_engine.kv_segments import Freed, Holding, Segment
from replay_engine.prefix import BlockKeys
from replay_engine.types import Sequence

__all__ = ["TracedPool"]

_PRIVATE = -(1 << 62)
"""The first key that no trace has."""


class TracedPool:
    """Counts, plus segments for shareable blocks. ``seq.keys`` is a ``Holding`` of its leading shareable blocks, or ``None``.

    ``lag`` is 1 under asynchronous scheduling: a block's last token is known one iteration later.
    """

    __slots__ = (
        "_copies", "_dead", "_fill", "_first", "_found", "_lag", "_lru", "_private", "_size", "blank", "changes", "evicted",
        "free",
    )  # fmt: skip

    def __init__(self, usable_blocks: int, block_size: int, lag: int) -> None:
        self._size = block_size
        self._lag = lag
        self.free = self.blank = usable_blocks
        self.evicted = 0
        self.changes = 0
        self._first: dict[int, Segment] = {}
        """The earliest copies of what is cached, by the first key of each segment."""
        self._copies: list[Segment] = []
        """Later copies, in the order in which they were registered."""
        self._lru: OrderedDict[Freed, None] = OrderedDict()
        self._dead = 0
        """What is left of the dead blocks at the head of the LRU order, already taken out of it."""
        self._fill: dict[int, Sequence] = {}
        """Members of the decode set that still have shareable blocks to complete."""
        self._found: list[tuple[Segment, int]] = []
        self._private = _PRIVATE

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
        found = self._found = []
        count = revived = 0
        own: Holding | None = seq.keys
        if own is None:
            return 0, 0
        limit = (seq.nt - 1) // self._size
        for start, end, shift in own.runs:
            if start >= limit:
                break
            key, last = start + shift, (end if end < limit else limit) + shift
            while key < last:
                segment = self._first.get(key)
                if segment is None:
                    return count, revived
                hi = segment.hi if segment.hi < last else last
                found.append((segment, hi))
                count += hi - key
                if not segment.refs:
                    revived += hi - key
                key = hi
        return count, revived

    def adopt(self, seq: Sequence) -> None:
        own: Holding | None = seq.keys
        seq.nblocks = seq.nreg = 0
        if own is None:
            return
        pieces, held = own.pieces, 0
        for segment, hi in self._found:
            if hi < segment.hi:
                self._cut(segment, hi)
            held += hi - segment.lo
            segment.refs += 1
            if segment.freed is not None:
                self._revive(segment)
            pieces.append((segment, hi))
        own.held = seq.nblocks = seq.nreg = held

    def _cut(self, segment: Segment, key: int) -> None:
        upper = segment.cut(key)
        if segment.copy:
            self._copies.insert(self._copies.index(segment) + 1, upper)
        else:
            self._first[key] = upper

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
                blocks -= self._forget(freed.parts, blocks)
            if not freed.parts:
                del self._lru[freed]
        self._dead -= blocks

    def _forget(self, parts: list[Segment], most: int) -> int:
        """At most so many blocks at the end of ``parts`` lose their content; the earliest later copies take their places."""
        segment = parts[-1]
        hi = segment.hi
        lo = segment.hi = max(hi - most, segment.lo)
        if lo == segment.lo:
            parts.pop()
            if segment.copy:
                self._copies.remove(segment)
            elif self._first.get(lo) is segment:
                del self._first[lo]
        if self._copies and not segment.copy:
            self._promote(lo, hi)
        return hi - lo

    def _promote(self, lo: int, hi: int) -> None:
        """The earliest copies of the keys from ``lo`` to ``hi`` are gone: the next ones become it, where there are some."""
        copies, gaps = self._copies, [(lo, hi)]
        while gaps:
            lo, hi = gaps.pop()
            at = next((at for at, copy in enumerate(copies) if copy.lo < hi and copy.hi > lo), None)
            if at is None:
                continue
            if copies[at].lo < lo:
                self._cut(copies[at], lo)
                at += 1
            if copies[at].hi > hi:
                self._cut(copies[at], hi)
            segment = copies.pop(at)
            segment.copy = False
            self._first[segment.lo] = segment
            self.changes += segment.hi - segment.lo
            gaps += [(low, high) for low, high in ((lo, segment.lo), (segment.hi, hi)) if low < high]

    def commit(self, seq: Sequence, tokens: int) -> None:
        full = tokens // self._size
        if full > seq.nreg:
            own: Holding | None = seq.keys
            if own is not None and own.held < own.length:
                self._register(own, full if full < own.length else own.length)
            seq.nreg = full

    def _register(self, own: Holding, stop: int) -> None:
        at = own.held
        self.changes += stop - at
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
            self._cut(segment, hi)
        copy = Segment(segment.lo, hi, 1, copy=True)
        self._copies.append(copy)
        own.pieces.append((copy, hi))

    def advance(self, due: dict[int, Sequence], filling: dict[int, Sequence], iteration: int, grants: Iterable[Grant]) -> None:
        taken = len(due)
        ready: list[tuple[int, Sequence, int]] = []
        for seq, tokens, blocks in grants:
            taken += blocks
            seq.nblocks += blocks
            ready.append((seq.ticket, seq, seq.comp + tokens))
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
            self._first[self._private] = own.make_private(self._private, counted)
            self._private += counted + 1
            counted = 0
        freed = Freed(counted)
        if own is not None:
            self.free -= own.held
            self.free += self._unref(own, freed)
        if freed.dead or freed.parts:
            self._lru[freed] = None

    def _unref(self, own: Holding, freed: Freed) -> int:
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

    def entries(self, running: Iterable[tuple[Sequence, int]]) -> int:
        counted = sum(registered - (seq.keys.held if seq.keys is not None else 0) for seq, registered in running)
        dead = self._dead + sum(freed.dead for freed in self._lru)
        return sum(segment.hi - segment.lo for segment in self._first.values()) + counted + dead


def _first(entry: tuple[int, Sequence, int]) -> int:
    return entry[0]
