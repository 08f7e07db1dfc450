"""The host side of swapping: a pool of blocks, and a link whose transfers queue in each direction."""

from __future__ import annotations

from replay_engine.rules import Link

__all__ = ["HostPool"]


class HostPool:
    """``free`` host blocks; a block's copy takes ``block_bytes`` over the link, a transfer its latency besides."""

    __slots__ = ("_block_ns", "_in_free_ns", "_latency_ns", "free", "total")

    def __init__(self, blocks: int, link: Link, block_bytes: int) -> None:
        self.free = self.total = blocks
        self._block_ns = block_bytes / link.gb_per_s
        self._latency_ns = round(link.latency_s * 1e9)
        self._in_free_ns = 0

    def copy_ns(self, blocks: int) -> int:
        """Time a transfer of ``blocks`` takes on an idle link."""
        return self._latency_ns + round(blocks * self._block_ns)

    def put(self, blocks: int) -> int | None:
        """Move ``blocks`` out: the copy's time, or ``None`` when the pool has no room."""
        if blocks > self.free:
            return None
        self.free -= blocks
        return self.copy_ns(blocks)

    def fetch(self, blocks: int, now: int) -> tuple[int, int]:
        """Bring ``blocks`` back from ``now`` on: when they are there (after the transfers before it), and the copy's own time."""
        cost = self.copy_ns(blocks)
        start = max(now, self._in_free_ns)
        self._in_free_ns = start + cost
        self.free += blocks
        return start + cost, cost

    def drop(self, blocks: int) -> None:
        """Give up ``blocks`` without bringing them back."""
        self.free += blocks
