"""KV memory: the device's pool of blocks, and the host's for what is swapped out.

One physical block is contiguous across all layers, [layers, 2, block_size, kv_heads, head_dim], so that a block moves in one
copy of megabytes. Block 0 is nobody's: padding reads it and nothing writes it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from replay_engine.torch_engine.clocks import CopyClock
from replay_engine.torch_engine.shapes import ModelShape

__all__ = ["HostPool", "KvPool", "block_bytes"]


def block_bytes(shape: ModelShape, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one KV block over all layers."""
    return block_size * shape.kv_bytes_per_token(dtype.itemsize)


class KvPool:
    """``kv``: [num_blocks, layers, 2, block_size, kv_heads, head_dim] on ``device``, NaN where nothing valid lies."""

    def __init__(
        self, shape: ModelShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        size = (num_blocks, shape.layers, 2, block_size, shape.kv_heads, shape.head_dim)
        self.kv = torch.full(size, float("nan"), dtype=dtype, device=device)
        self.block_bytes = block_bytes(shape, block_size, dtype)
        self.device = device

    def poison(self, blocks: torch.Tensor) -> None:
        """NaN over ``blocks`` (int64 [n] on the pool's device): whoever reads them before they are written shows it."""
        self.kv[blocks] = float("nan")

    def poison_all(self) -> None:
        """NaN everywhere."""
        self.kv.fill_(float("nan"))


class HostPool:
    """Host blocks (pinned beside a GPU), and the copies to and from them, each direction on a stream of its own.

    ``out`` and ``back`` enqueue copies and return a clock that knows later how long they took. Copies out end before the
    compute stream goes on, because the blocks they leave may be written by the next forward pass; what comes back is waited for
    with ``CopyClock.hold`` by whoever reads it.
    """

    def __init__(self, pool: KvPool, blocks: int) -> None:
        self._pool = pool
        cuda = pool.device.type == "cuda"
        self.memory = torch.empty((blocks, *pool.kv.shape[1:]), dtype=pool.kv.dtype, pin_memory=cuda)
        self._free: list[int] = []
        self.empty()
        self._streams = (torch.cuda.Stream(pool.device), torch.cuda.Stream(pool.device)) if cuda else (None, None)

    def empty(self) -> None:
        """Every place is free."""
        self._free = list(range(len(self.memory) - 1, -1, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    def out(self, blocks: Sequence[int]) -> tuple[list[int], CopyClock]:
        """Copies device ``blocks`` to the host: where they lie there, and the clock. The caller keeps count of the room."""
        places = [self._free.pop() for _ in blocks]
        clock = CopyClock(self._streams[0], len(places) * self._pool.block_bytes)
        if self._streams[0] is not None:
            self._streams[0].wait_stream(self._streams[1])
        with clock:
            for place, block in zip(places, blocks, strict=True):
                self.memory[place].copy_(self._pool.kv[block], non_blocking=True)
        clock.hold()
        return places, clock

    def back(self, places: Sequence[int], blocks: Sequence[int]) -> CopyClock:
        """Copies host ``places`` into device ``blocks`` and gives the places up."""
        clock = CopyClock(self._streams[1], len(places) * self._pool.block_bytes)
        with clock:
            for place, block in zip(places, blocks, strict=True):
                self._pool.kv[block].copy_(self.memory[place], non_blocking=True)
        self.drop(places)
        return clock

    def drop(self, places: Sequence[int]) -> None:
        """Gives up ``places`` without bringing them back."""
        self._free += places
