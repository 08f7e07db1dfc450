"""Launch configurations: one table per class of device, read by the launches, the compile tests and the benchmark alike."""

from __future__ import annotations

__all__ = ["num_splits"]


def num_splits(seqs: int, kv_heads: int, max_kv_len: int, multiprocessors: int = 132) -> int:
    """KV splits for a decode launch: enough programs to fill the device about twice, none with under 256 tokens.

    A power of two from 1 to 16. For a CUDA graph, ``seqs`` is the bucket's size and ``max_kv_len`` the longest KV it may meet.
    """
    programs, splits = max(1, seqs * kv_heads), 1
    while splits < 16 and programs * splits < 2 * multiprocessors and max_kv_len >= 512 * splits:
        splits *= 2
    return splits
