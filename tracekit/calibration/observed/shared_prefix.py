"""A trace whose prompts are known to begin alike, although it has no block hashes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.errors import UsageError

if TYPE_CHECKING:
    from tracekit.traces.source import TraceSource

__all__ = ["begin_alike"]


def begin_alike(source: TraceSource, tokens: int, block_size: int) -> None:
    """Say of ``source`` that all its prompts begin with the same ``tokens`` tokens; whole blocks of them can be shared."""
    if source.run_offsets is not None:
        raise UsageError("--set trace.shared_prefix: the trace says itself which blocks are shared; expected it left out")
    blocks = np.minimum(tokens, source.prompt_tokens) // block_size
    has = blocks > 0
    source.block_tokens = block_size
    source.run_offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(has.astype(np.int64))))
    runs = int(source.run_offsets[-1])
    source.run_pos = np.zeros(runs, np.int64)
    source.run_first = np.ones(runs, np.int64)
    source.run_len = blocks[has].astype(np.int64)
    source.shared_blocks = blocks.astype(np.int64)
