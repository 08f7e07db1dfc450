"""Decode iterations in buckets of fixed size: CUDA graphs on a GPU, the same padded pass run eagerly elsewhere.

Launch grids and split counts are frozen at capture, so they depend on the bucket alone; how long the sequences are is read on
the device. All graphs are captured before the clock starts, largest first, into one memory pool.
"""

from __future__ import annotations

from bisect import bisect_left

import torch

from replay_engine.torch_engine.iteration import IterationPass

__all__ = ["DecodeBuckets"]


class DecodeBuckets:
    """Decode passes by bucket over ``packed``, the device's packed buffer, which never moves.

    On CUDA ``capture`` records one graph a bucket; where there is no CUDA the buckets only pad.
    """

    def __init__(self, run: IterationPass, packed: torch.Tensor, sizes: list[int], blocks: int) -> None:
        self._pass = run
        self._packed = packed
        self._sizes = sizes
        self._blocks = blocks
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}

    @property
    def captured(self) -> int:
        """Number of graphs."""
        return len(self._graphs)

    def fit(self, decodes: int) -> int | None:
        """The bucket for so many decodes; ``None``: more than the largest."""
        at = bisect_left(self._sizes, decodes)
        return self._sizes[at] if at < len(self._sizes) else None

    def capture(self) -> None:
        """Record all graphs. The packed buffer is left holding nothing but padding."""
        self._graphs.clear()
        if self._packed.device.type != "cuda":
            return
        pool = torch.cuda.graph_pool_handle()
        stream = torch.cuda.current_stream(self._packed.device)
        for bucket in reversed(self._sizes):
            self._packed[: 4 * bucket] = 0
            self._packed[2 * bucket : 3 * bucket] = -1
            for _ in range(2):  # kernels are compiled and libraries set up outside the capture
                self._pass.decode(self._packed, bucket, self._blocks)
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                tokens = self._pass.decode(self._packed, bucket, self._blocks)
            self._graphs[bucket] = graph, tokens
        stream.synchronize()

    def run(self, bucket: int) -> torch.Tensor:
        """The tokens of the decodes that lie packed for ``bucket``: int64 [bucket]; valid until the bucket's next run."""
        found = self._graphs.get(bucket)
        if found is None:
            return self._pass.decode(self._packed, bucket, self._blocks)
        found[0].replay()
        return found[1]
