"""Everything that is compiled, chosen or captured happens here, before the clock starts; what happens later is counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from replay_engine.config import SchedulerConfig
from replay_engine.torch_engine.batch import Layout
from replay_engine.torch_engine.graphs import DecodeBuckets
from replay_engine.torch_engine.iteration import IterationPass

if TYPE_CHECKING:
    from replay_engine.torch_engine.engine import Extent
    from replay_engine.torch_engine.executor import TorchExecutor

__all__ = ["warm_up", "watch_compilations"]


def warm_up(run: IterationPass, buckets: DecodeBuckets | None, config: SchedulerConfig, extent: Extent) -> None:
    """Run every kind of iteration once over padding: prefill entries of several lengths, decodes, both; then capture graphs.

    No KV is written and no row but the padding's is touched, so that what follows does not depend on it.
    """
    longest = max(1, min(config.token_budget, extent.sequence))
    lengths = sorted({min(longest, n) for n in (1, 16, 64, 256, 2048, longest)}) if run.model.device.type == "cuda" else [1]
    with torch.inference_mode():
        for query_len in lengths:
            for decodes in (0, 1):
                _one(run, query_len, decodes)
        _one(run, 0, 1)
        if buckets is not None:
            buckets.capture()
    if run.model.device.type == "cuda":
        torch.cuda.synchronize(run.model.device)


def _one(run: IterationPass, query_len: int, decodes: int) -> None:
    """One iteration of padding: positions -1 write no KV; an entry's queries attend over block 0, which holds nothing."""
    device = run.model.device
    tokens = decodes + query_len
    head = np.zeros((4, tokens), np.int32)
    head[2] = -1
    if not query_len:
        for blocks in sorted({1, run.tables.sizes.blocks}):  # long KV is attended in splits, which are other kernels
            run.decode(torch.from_numpy(head.ravel()).to(device), decodes, blocks)
        return
    layout = Layout(decodes=decodes, tokens=tokens, entries=1, samples=1, decode_blocks=1, max_query_len=query_len)
    layout.prefill_blocks = min(-(-query_len // run.pool.kv.shape[3]), run.tables.sizes.blocks)
    tail = [0, query_len, 0, query_len, tokens - 1, 0, 0]
    packed = np.concatenate((head.ravel(), np.array(tail, np.int32)))
    run.mixed(torch.from_numpy(packed).to(device), layout)


def watch_compilations(executor: TorchExecutor) -> None:
    """From here on, a Triton kernel that is compiled counts in ``executor.late``. Without CUDA nothing is compiled."""
    if not torch.cuda.is_available():
        return
    from triton import knobs

    before = knobs.compilation.listener

    def compiled(*args: Any, **named: Any) -> None:
        executor.late += 1
        if before is not None:
            before(*args, **named)

    knobs.compilation.listener = compiled
