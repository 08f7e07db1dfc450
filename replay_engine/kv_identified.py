"""The KV pool with real block ids, handed out and evicted in exactly vLLM's order: for the torch engine and for proofs.

vLLM's free list is ``[blank blocks..., cached blocks in LRU order]``, so a stack and an ordered dict stand for it. Before 0.24 a
freed block went to the tail whether hashed or not: then everything lives in the ordered dict.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

from replay_engine.kv_counted import Grant
from replay_engine.types import Sequence

__all__ = ["IdentifiedPool"]


class IdentifiedPool:
    """Blocks ``1..usable_blocks``; ``seq.blocks`` is the block table. ``keys`` beyond those bound are private to a sequence."""

    __slots__ = (
        "_blank", "_caching", "_dups", "_first", "_found", "_key_of", "_lag", "_lru", "_private", "_shared", "_size", "_split",
        "_stack", "changes", "evicted", "free",
    )  # fmt: skip

    def __init__(self, usable_blocks: int, block_size: int, lag: int, *, caching: bool, split_free_list: bool = True) -> None:
        self._size = block_size
        self._lag = lag
        self._caching = caching
        self._split = split_free_list
        ids = range(1, usable_blocks + 1)
        self._stack: list[int] = list(reversed(ids)) if split_free_list else []
        self._lru: OrderedDict[int, None] = OrderedDict() if split_free_list else OrderedDict.fromkeys(ids)
        self.free = usable_blocks
        self.evicted = 0
        self.changes = 0
        self._key_of: dict[int, int] = {}
        self._first: dict[int, int] = {}
        """key -> the earliest registered block that holds it."""
        self._dups: dict[int, list[int]] = {}
        self._shared: dict[int, int] = {}
        """References of a block beyond the first."""
        self._found: list[int] = []
        self._private = 0
        self._blank = usable_blocks
        """Free blocks without a key, where they are not kept apart."""

    @property
    def blank(self) -> int:
        """Free blocks that hold nothing the cache could give."""
        return len(self._stack) if self._split else self._blank

    @property
    def largest(self) -> int:
        """Paged blocks are all of one extent."""
        return self.free

    def free_list(self) -> list[int]:
        """Free blocks, the next to be handed out first."""
        return self._stack[::-1] + list(self._lru)

    def bind(self, seq: Sequence, keys: SequenceOf[int]) -> None:
        seq.keys = list(keys)
        seq.blocks = []

    def hits(self, seq: Sequence) -> tuple[int, int]:
        found: list[int] = []
        if self._caching:
            for key in seq.keys[: (seq.nt - 1) // self._size]:
                block = self._first.get(key)
                if block is None:
                    break
                found.append(block)
        self._found = found
        return len(found), sum(1 for block in found if block in self._lru)

    def adopt(self, seq: Sequence) -> None:
        for block in self._found:
            if block in self._lru:
                del self._lru[block]
                self.free -= 1
            else:
                self._shared[block] = self._shared.get(block, 0) + 1
        seq.blocks = list(self._found)
        seq.nblocks = seq.nreg = len(seq.blocks)

    def grow(self, seq: Sequence, blocks: int) -> None:
        self.free -= blocks
        for _ in range(blocks):
            if self._stack:
                block = self._stack.pop()
            else:
                block, _none = self._lru.popitem(last=False)
                if block in self._key_of:
                    self._forget(block)
                else:
                    self._blank -= 1
            seq.blocks.append(block)

    def _forget(self, block: int) -> None:
        self.evicted += 1
        key = self._key_of.pop(block)
        waiting = self._dups.get(key)
        if self._first[key] != block:
            assert waiting is not None
            waiting.remove(block)
        elif waiting is None:
            del self._first[key]
            return
        else:
            self._first[key] = waiting.pop(0)
            self.changes += 1
        if not waiting:
            del self._dups[key]

    def commit(self, seq: Sequence, tokens: int) -> None:
        full = tokens // self._size
        if full <= seq.nreg or not self._caching:
            return
        keys = seq.keys
        while len(keys) < full:
            self._private -= 1
            keys.append(self._private)
        for position in range(seq.nreg, full):
            block, key = seq.blocks[position], keys[position]
            self._key_of[block] = key
            if key in self._first:
                self._dups.setdefault(key, []).append(block)
            else:
                self._first[key] = block
            self.changes += 1
        seq.nreg = full

    def advance(self, due: dict[int, Sequence], filling: dict[int, Sequence], iteration: int, grants: Iterable[Grant]) -> None:
        takes = [(ticket, seq, 1) for ticket, seq in due.items()]
        ready = [(ticket, seq, iteration - self._lag - seq.origin) for ticket, seq in filling.items()] if self._caching else []
        for seq, tokens, blocks in grants:
            takes.append((seq.ticket, seq, blocks))
            ready.append((seq.ticket, seq, seq.comp + tokens))
            seq.nblocks += blocks
        takes.sort(key=_ticket)
        for _, seq, blocks in takes:
            self.grow(seq, blocks)
        ready.sort(key=_ticket)
        for _, seq, tokens in ready:
            self.commit(seq, tokens)

    def joined(self, seq: Sequence) -> None:
        pass

    def left(self, seq: Sequence) -> None:
        pass

    def release(self, seq: Sequence, held: int, registered: int, *, resumes: bool) -> None:
        blank: list[int] = []
        hashed: list[int] = []
        for block in reversed(seq.blocks):
            extra = self._shared.get(block)
            if extra is not None:
                if extra == 1:
                    del self._shared[block]
                else:
                    self._shared[block] = extra - 1
            elif block in self._key_of:
                hashed.append(block)
            elif not self._split:
                self._blank += 1
                hashed.append(block)
            else:
                blank.append(block)
        self._stack.extend(reversed(blank))
        self._lru.update(dict.fromkeys(hashed))
        self.free += len(blank) + len(hashed)
        seq.blocks = []
        seq.nblocks = seq.nreg = 0

    def entries(self, running: Iterable[tuple[Sequence, int]]) -> int:
        return len(self._first)


def _ticket(entry: tuple[int, Sequence, int]) -> int:
    return entry[0]
