"""KV blocks as the plain walk sees them: real ids, one ordered free list, one map of cached contents."""

from __future__ import annotations

from collections import deque

__all__ = ["BlockPool", "ContentKeys"]


class ContentKeys:
    """Names every distinct (prefix, block content) by a number, so that equal numbers mean equal chained content."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._names: dict[tuple[int, tuple[int, ...]], int] = {}

    def extend(self, keys: list[int], tokens: list[int]) -> None:
        """Append to ``keys`` one key for every block of ``tokens`` that is full and has none yet."""
        size = self.block_size
        while (len(keys) + 1) * size <= len(tokens):
            start = len(keys) * size
            parent = keys[-1] if keys else -1
            content = (parent, tuple(tokens[start : start + size]))
            keys.append(self._names.setdefault(content, len(self._names)))


class BlockPool:
    """Block 0 is the null block; ids 1.. are handed out from the head of the free list.

    ``split_free_list``: blocks without cached content go to the head when freed, the others to the tail (from 0.24 on);
    before, all go to the tail.
    """

    def __init__(self, blocks: int, *, caching: bool, split_free_list: bool) -> None:
        self.caching = caching
        self.split_free_list = split_free_list
        self.free: deque[int] = deque(range(1, blocks))
        self.references = [0] * blocks
        self.key_of: list[int | None] = [None] * blocks
        self.cached: dict[int, dict[int, None]] = {}
        self.evicted = 0

    def longest_hit(self, keys: list[int], limit: int) -> list[int]:
        """Blocks that hold the leading ``keys``, at most ``limit``; the earliest registered copy of each."""
        hit: list[int] = []
        if self.caching:
            for key in keys[:limit]:
                copies = self.cached.get(key)
                if not copies:
                    break
                hit.append(next(iter(copies)))
        return hit

    def unreferenced(self, blocks: list[int]) -> int:
        """How many of ``blocks`` stand in the free list."""
        return sum(self.references[block] == 0 for block in blocks)

    def adopt(self, blocks: list[int]) -> None:
        """One more sequence holds these cached blocks."""
        for block in blocks:
            if self.references[block] == 0:
                self.free.remove(block)
            self.references[block] += 1

    def take(self, count: int) -> list[int]:
        """``count`` blocks from the head of the free list; what they had cached is evicted."""
        taken = [self.free.popleft() for _ in range(count)]
        for block in taken:
            self.references[block] = 1
            self._evict(block)
        return taken

    def register(self, block: int, key: int) -> None:
        """``block`` holds the content ``key`` from now on."""
        self.key_of[block] = key
        self.cached.setdefault(key, {})[block] = None

    def release(self, blocks: list[int]) -> None:
        """One sequence gives back its ``blocks`` (first to last): freed last block first."""
        head: list[int] = []
        tail: list[int] = []
        for block in reversed(blocks):
            self.references[block] -= 1
            if self.references[block] == 0:
                blank = self.key_of[block] is None
                (head if blank and self.split_free_list else tail).append(block)
        self.free.extendleft(reversed(head))
        self.free.extend(tail)

    def _evict(self, block: int) -> None:
        key = self.key_of[block]
        if key is None:
            return
        self.key_of[block] = None
        del self.cached[key][block]
        if not self.cached[key]:
            del self.cached[key]
        self.evicted += 1
