"""The KV pool of the simulator with prefix caching: only blocks that can ever be hit have handles.

The whole trace is known, so a block key that occurs in one request only (and was never preempted) cannot be hit by anyone:
such blocks are counted, and a finished request leaves them in the LRU order as one dead run with a length.
vLLM's free list is always ``[blank blocks..., cached blocks in LRU order]``: un-hashed blocks go to the head, hashed ones to the
tail, and a hash is lost only by handing the block out. So an integer and an ordered dict stand for it.

A handle is the block key itself while it is the only copy ever made of its content; later copies are ``Copy`` objects.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice

from replay_engine.kv_counted import Grant
from replay_engine.types import Sequence

__all__ = ["TracedPool"]


class Copy:
    """A further block of a content that has (or had) another one."""

    __slots__ = ("key", "refs")

    def __init__(self, key: int) -> None:
        self.key = key
        self.refs = 1


class DeadRun:
    """Cached blocks nobody can hit, neighbours in the LRU order."""

    __slots__ = ("length",)

    def __init__(self, length: int) -> None:
        self.length = length


Handle = int | Copy


class TracedPool:
    """Counts, plus handles for shareable blocks. ``seq.keys`` holds the keys of its leading shareable blocks only.

    ``lag`` is 1 under asynchronous scheduling: a block's last token is known one iteration later.
    """

    __slots__ = ("_cached", "_copies", "_dead", "_dups", "_fill", "_found", "_lag", "_lru", "_private", "_size", "blank", "changes", "evicted", "free")

    def __init__(self, usable_blocks: int, block_size: int, lag: int) -> None:
        self._size = block_size
        self._lag = lag
        self.free = self.blank = usable_blocks
        self.evicted = 0
        self.changes = 0
        self._cached: dict[int, int | Copy] = {}
        """key -> references of the earliest copy, or that copy where the first one is gone."""
        self._dups: dict[int, list[Copy]] = {}
        self._copies = 0
        """Copy objects alive; while 0 the bulk paths hold."""
        self._lru: OrderedDict[Handle | DeadRun, None] = OrderedDict()
        self._dead = 0
        """What is left of the dead run at the head of the LRU order, already taken out of it."""
        self._fill: dict[int, Sequence] = {}
        """Members of the decode set that still have shareable blocks to complete."""
        self._found: list[Handle] = []
        self._private = 0

    @property
    def filling(self) -> bool:
        """Whether a decoding sequence still has shareable blocks to complete."""
        return bool(self._fill)

    @property
    def largest(self) -> int:
        """Paged blocks are all of one extent."""
        return self.free

    def bind(self, seq: Sequence, keys: list[int]) -> None:
        seq.keys = keys
        seq.blocks = []

    def hits(self, seq: Sequence) -> tuple[int, int]:
        keys = seq.keys
        if not keys:
            self._found = []
            return 0, 0
        refs = list(map(self._cached.get, islice(keys, (seq.nt - 1) // self._size)))
        if None in refs:
            del refs[refs.index(None) :]
        count = len(refs)
        if self._copies:
            self._found = [ref if type(ref) is Copy else keys[i] for i, ref in enumerate(refs)]
            return count, sum(1 for ref in refs if (ref.refs if type(ref) is Copy else ref) == 0)
        self._found = keys[:count]
        return count, refs.count(0)

    def adopt(self, seq: Sequence) -> None:
        found = self._found
        cached, lru = self._cached, self._lru
        for handle in found:
            if type(handle) is int:
                refs = cached[handle]
                cached[handle] = refs + 1  # type: ignore[operator]  # the handle is the key, so this is a count
                if refs:
                    continue
            else:
                handle.refs += 1  # type: ignore[union-attr]
                if handle.refs > 1:  # type: ignore[union-attr]
                    continue
            del lru[handle]
            self.free -= 1
        seq.blocks = found
        seq.nblocks = seq.nreg = len(found)

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
            handle, _ = self._lru.popitem(last=False)
            if type(handle) is DeadRun:
                self._dead = handle.length
            else:
                self._forget(handle)  # type: ignore[arg-type]
                blocks -= 1
        self._dead -= blocks

    def _forget(self, handle: Handle) -> None:
        """The block behind ``handle`` loses its content; the earliest later copy takes its place."""
        key = handle if type(handle) is int else handle.key  # type: ignore[union-attr]
        if type(handle) is Copy:
            self._copies -= 1
            if self._cached[key] is not handle:
                later = self._dups[key]
                later.remove(handle)
                if not later:
                    del self._dups[key]
                return
        waiting = self._dups.get(key)
        if waiting is None:
            del self._cached[key]
            return
        self._cached[key] = waiting.pop(0)
        if not waiting:
            del self._dups[key]
        self.changes += 1

    def commit(self, seq: Sequence, tokens: int) -> None:
        full = tokens // self._size
        if full > seq.nreg:
            self._register(seq, full)
            seq.nreg = full

    def _register(self, seq: Sequence, full: int) -> None:
        blocks = seq.blocks
        new = seq.keys[len(blocks) : full]
        if not new:
            return
        self.changes += len(new)
        cached = self._cached
        if cached.keys().isdisjoint(new):
            cached.update(dict.fromkeys(new, 1))
            blocks += new
            return
        for key in new:
            if key in cached:
                copy = Copy(key)
                self._copies += 1
                self._dups.setdefault(key, []).append(copy)
                blocks.append(copy)
            else:
                cached[key] = 1
                blocks.append(key)

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
        if len(seq.blocks) < len(seq.keys):
            self._fill[seq.ticket] = seq

    def left(self, seq: Sequence) -> None:
        self._fill.pop(seq.ticket, None)

    def release(self, seq: Sequence, held: int, registered: int, *, resumes: bool) -> None:
        self.blank += held - registered
        self.free += held - registered
        if resumes:
            self._make_private(seq, registered)
        blocks = seq.blocks
        counted = registered - len(blocks)
        if counted:
            self._lru[DeadRun(counted)] = None
            self.free += counted
        if blocks:
            self._unref(blocks)
        seq.blocks = []
        seq.nblocks = seq.nreg = 0

    def _make_private(self, seq: Sequence, registered: int) -> None:
        """A preempted sequence can hit its own blocks when it resumes: its counted ones get keys and handles."""
        have = len(seq.blocks)
        if registered > have:
            first = self._private - (registered - have)
            new = list(range(self._private - 1, first - 1, -1))
            self._private = first
            seq.keys = seq.keys[:have] + new
            self._cached.update(dict.fromkeys(new, 1))
            seq.blocks = seq.blocks + new

    def _unref(self, blocks: list[Handle]) -> None:
        cached, lru = self._cached, self._lru
        freed = 0
        for handle in reversed(blocks):
            if type(handle) is int:
                refs = cached[handle] - 1  # type: ignore[operator]  # the handle is the key, so this is a count
                cached[handle] = refs
            else:
                refs = handle.refs = handle.refs - 1  # type: ignore[union-attr]
            if not refs:
                lru[handle] = None
                freed += 1
        self.free += freed

    def entries(self, running: Iterable[tuple[Sequence, int]]) -> int:
        counted = sum(registered - len(seq.blocks) for seq, registered in running)
        return len(self._cached) + counted + self._dead + sum(run.length for run in self._lru if type(run) is DeadRun)


def _first(entry: tuple[int, Sequence, int]) -> int:
    return entry[0]
