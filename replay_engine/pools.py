"""Which KV pool a configuration needs."""

from __future__ import annotations

from typing import Literal

from replay_engine.config import ConfigError, SchedulerConfig
from replay_engine.kv_contiguous import ContiguousPool
from replay_engine.kv_counted import BlockPool, CountedPool
from replay_engine.kv_identified import IdentifiedPool
from replay_engine.kv_traced import TracedPool
from replay_engine.rules import Rules

__all__ = ["PoolKind", "make_pool"]

PoolKind = Literal["auto", "counted", "identified", "traced"]
_VLLM = Rules()


def make_pool(config: SchedulerConfig, kind: PoolKind = "auto", rules: Rules = _VLLM) -> BlockPool:
    """The KV pool for ``config``. Without caching blocks are counted, unless real ids are asked for; ``auto`` traces with
    caching, and identifies blocks where only that is exact (before 0.24 free blocks were one list)."""
    caching = config.enable_prefix_caching
    split = config.engine_version != "0.20.0"
    if rules.batching.kv_allocation == "contiguous":
        if caching:
            raise ConfigError("batching.kv_allocation = contiguous: no blocks are shared; expected enable_prefix_caching = false")
        return ContiguousPool(config.usable_blocks)
    if kind == "auto":
        kind = "traced" if split else "identified"
    lag = int(config.async_scheduling)
    if not caching and kind != "identified":
        return CountedPool(config.usable_blocks)
    if kind == "traced" and split:
        return TracedPool(config.usable_blocks, config.block_size, lag)
    return IdentifiedPool(config.usable_blocks, config.block_size, lag, caching=caching, split_free_list=split)
