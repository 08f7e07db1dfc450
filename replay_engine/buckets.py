"""Sizes that decode iterations are padded to: CUDA graphs are captured for these, and an iteration takes the next larger one."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import numpy.typing as npt

__all__ = ["BUCKETS", "bucket_sizes", "padding", "padding_of"]

BUCKETS = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
"""vLLM's capture sizes: 1, 2, 4, then every 8 to 256 and every 16 to 512. What is larger runs without a graph, and unpadded."""


def bucket_sizes(largest: int) -> list[int]:
    """``BUCKETS`` up to what holds ``largest`` decodes."""
    return list(BUCKETS[: bisect_left(BUCKETS, largest) + 1])


def padding() -> list[int]:
    """Rows that are added to so many decodes, by their number, 0 to the largest bucket."""
    return [0, *(BUCKETS[bisect_left(BUCKETS, seqs)] - seqs for seqs in range(1, BUCKETS[-1] + 1))]


def padding_of(prefill_tokens: npt.NDArray[np.generic], decode_seqs: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
    """The same for iterations, column by column: only those without prefill tokens are padded."""
    added = np.array([*padding(), 0], np.float64)
    seqs = np.asarray(decode_seqs, np.int64)
    return np.where(np.asarray(prefill_tokens) > 0, 0.0, added[np.minimum(seqs, BUCKETS[-1] + 1)])
