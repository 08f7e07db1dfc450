"""KV from one engine's pool into another's: real copies on the device that both share, and how long each took."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import torch

from replay_engine.failure import EngineFailure
from replay_engine.torch_engine.clocks import CopyClock
from replay_engine.torch_engine.engine import Engine
from replay_engine.torch_engine.kv_pool import KvPool
from replay_engine.types import Sequence
from replay_kernels import copy_blocks

__all__ = ["TorchConnector"]

COPY_ENGINE_BYTES = 1 << 19
"""Blocks of this size or more are copied one by one by the copy engine; smaller ones all at once by a kernel."""


class TorchConnector:
    """A ``KvConnector`` over ``engines`` that share a device, the first ``prefill`` of which hand over.

    A copy begins when all that has been enqueued before is done, so that it shares the device with nothing, and the host waits
    for its end: the engine clock needs to know when a transfer ends as it begins.
    """

    def __init__(self, engines: SequenceOf[Engine], prefill: int) -> None:
        self._engines = engines
        device = engines[0].kv.device
        cuda = device.type == "cuda"
        self._streams = [torch.cuda.Stream(device) if cuda else None for _ in range(prefill)]
        for engine in engines[:prefill]:
            engine.executor.given = {}
        for stream in self._streams:  # what has to be compiled is, before the clock starts
            for target in engines[prefill:]:
                copy_kv(engines[0].kv, target.kv, [(-1, -1)], stream)

    def move(self, source: int, past: Sequence, target: int, seq: Sequence, blocks: int) -> int:
        """See ``KvConnector``. ``EngineFailure``: the device could not copy."""
        first, until = seq.fetch_hit, seq.fetch_hit + blocks
        pairs = list(zip(past.blocks[first:until], seq.blocks[first:until], strict=True))
        if len(pairs) != blocks:
            raise AssertionError(f"request {seq.index}: {len(pairs)} of {blocks} blocks are there")
        try:
            return copy_kv(self._engines[source].kv, self._engines[target].kv, pairs, self._streams[source]) if pairs else 0
        except (RuntimeError, MemoryError) as error:
            raise EngineFailure(past.admit_iteration, f"KV of request {seq.index} could not be copied: {error}") from None

    def sampled(self, source: int, seq: Sequence) -> int:
        given = self._engines[source].executor.given
        assert given is not None
        return given.pop(seq.index)

    def tell(self, target: int, request: int, token: int) -> None:
        self._engines[target].executor.told(request, token)


def copy_kv(source: KvPool, target: KvPool, pairs: SequenceOf[tuple[int, int]], stream: torch.cuda.Stream | None) -> int:
    """Copies blocks of ``source`` over blocks of ``target`` as ``pairs`` say (-1, -1: nothing). Returns how long it took, ns."""
    clock = CopyClock(stream, len(pairs) * source.block_bytes)
    with torch.inference_mode(), clock:
        if source.block_bytes < COPY_ENGINE_BYTES:
            copy_blocks(source.kv, target.kv, torch.tensor(pairs, dtype=torch.int64, device=source.device))
        else:
            for block, place in pairs:
                if block >= 0:
                    target.kv[place].copy_(source.kv[block], non_blocking=True)
    clock.hold()
    return clock.wait()
