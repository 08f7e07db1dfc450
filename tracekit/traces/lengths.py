"""Requests of other lengths than in their trace, and what becomes of the prefixes that they share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from tracekit.traces.source import TraceSource

__all__ = ["cut_runs", "scale_lengths"]

Ints = npt.NDArray[np.int64]


def scale_lengths(source: TraceSource, prompts: float, outputs: float) -> None:
    """Prompts and outputs so many times as long, at least a token each. What was observed in the trace is not of these requests
    any more."""
    source.prompt_tokens = _scaled(source.prompt_tokens, prompts)
    source.output_tokens = _scaled(source.output_tokens, outputs)
    source.max_tokens = _known(source.max_tokens, outputs)
    source.predicted_tokens = _known(source.predicted_tokens, outputs)
    source.obs_queue_ns = source.obs_ttft_ns = source.obs_tpot_ns = source.obs_e2e_ns = None


def cut_runs(source: TraceSource) -> None:
    """Prefix runs end with their prompts."""
    if source.run_offsets is None:
        return
    blocks = -(-source.prompt_tokens // source.block_tokens)
    owner = np.repeat(np.arange(source.total), np.diff(source.run_offsets))
    length = np.clip(blocks[owner] - source.run_pos, 0, source.run_len)
    left = length > 0
    source.run_offsets = np.searchsorted(owner[left], np.arange(source.total + 1)).astype(np.int64)
    source.run_pos, source.run_first, source.run_len = source.run_pos[left], source.run_first[left], length[left]
    source.shared_blocks = np.minimum(source.shared_blocks, blocks)


def _scaled(tokens: Ints, factor: float) -> Ints:
    found: Ints = np.maximum(np.rint(tokens * factor), 1).astype(np.int64)
    return found


def _known(tokens: Ints | None, factor: float) -> Ints | None:
    """Unknown (-1) stays unknown."""
    return None if tokens is None else np.where(tokens < 0, tokens, _scaled(tokens, factor))
