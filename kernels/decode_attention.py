"""Attention of decoding sequences over paged KV: one query each, the KV cut into splits that are merged afterwards."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

from replay_kernels.dispatch import kernel, uses_triton

__all__ = ["MAX_SPLITS", "DecodeScratch", "decode_scratch", "paged_decode_attention", "paged_decode_attention_reference"]

MAX_SPLITS = 16


class DecodeScratch(NamedTuple):
    """Partial results of the KV splits, float32: values [splits, seqs, heads, head_dim], log-sum-exp [splits, seqs, heads]."""

    partial: torch.Tensor
    lse: torch.Tensor


def decode_scratch(seqs: int, heads: int, head_dim: int, device: torch.device | str, splits: int = MAX_SPLITS) -> DecodeScratch:
    """Scratch for up to ``seqs`` sequences and ``splits`` KV splits; made once, shared by all layers, which run in turn."""
    partial = torch.empty(splits, seqs, heads, head_dim, dtype=torch.float32, device=device)
    return DecodeScratch(partial, torch.empty(splits, seqs, heads, dtype=torch.float32, device=device))


def paged_decode_attention(
    out: torch.Tensor,
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    kv_lens: torch.Tensor,
    scratch: DecodeScratch | None = None,
    *,
    num_splits: int = 1,
    scale: float | None = None,
) -> torch.Tensor:
    """Attends one query per sequence over all of its KV; writes ``out`` and returns it.

    * ``out``, ``q``: [seqs, heads, head_dim]; ``kv_cache``, ``block_table`` and ``scale`` as in ``paged_prefill_attention``.
    * ``kv_lens``: int32 [seqs], KV with this iteration's token, which is already in the cache. 0 marks a padding row: its
      ``out`` stays untouched and its row of ``block_table`` unread.
    * ``num_splits``: parts one sequence's KV is cut into, 1 to ``MAX_SPLITS``, fixed at launch (a CUDA graph freezes it; the
      lengths are read on the device). More than 1 needs ``scratch`` of at least that many splits and rows. Each value gives the
      same sums in a different order, so results differ by rounding only. ``num_splits`` proposes one; no
      value but the change from 1 to more compiles anything.

    ValueError: ``num_splits`` out of range, or no or too small a scratch. The reference has no splits and does not read
    ``num_splits``.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if not 1 <= num_splits <= MAX_SPLITS:
        raise ValueError(f"num_splits={num_splits}: expected 1 to {MAX_SPLITS}")
    if not uses_triton(q):
        return paged_decode_attention_reference(out, q, kv_cache, block_table, kv_lens, scale)
    if num_splits > 1 and not _fits(scratch, num_splits, q):
        raise ValueError(f"num_splits={num_splits} over {q.shape[0]} sequences needs a scratch of that size (decode_scratch)")
    kernel("decode_attention_kernel").launch(out, q, kv_cache, block_table, kv_lens, scratch, num_splits, scale)
    return out


def _fits(scratch: DecodeScratch | None, num_splits: int, q: torch.Tensor) -> bool:
    if scratch is None:
        return False
    splits, seqs, *vectors = scratch.partial.shape
    return splits >= num_splits and seqs >= q.shape[0] and vectors == list(q.shape[1:])


def paged_decode_attention_reference(
    out: torch.Tensor,
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    kv_lens: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """``paged_decode_attention`` in torch, the batch padded to its longest KV, in float32. Reads that length on the host."""
    _, _, block_size, kv_heads, dim = kv_cache.shape
    seqs, heads, _ = q.shape
    longest = int(kv_lens.max()) if seqs else 0
    if longest == 0:
        return out
    width = -(-longest // block_size)
    position = torch.arange(width * block_size, device=q.device)
    past = position >= kv_lens[:, None]
    # Past its last block a sequence's row holds anything; block 0 is as good as another, for what is read there is masked.
    blocks = block_table[:, :width].long().masked_fill(past[:, ::block_size], 0)
    kv = kv_cache[blocks].float()
    # Free slots hold NaN, and 0 x NaN is NaN: a masked score is not enough.
    kv = kv.masked_fill_(past.view(seqs, width, 1, block_size, 1, 1), 0.0)
    keys, values = kv.permute(2, 0, 4, 1, 3, 5).reshape(2, seqs, kv_heads, -1, dim)
    queries = q.float().reshape(seqs, kv_heads, heads // kv_heads, dim)
    seen = scaled_dot_product_attention(queries, keys, values, attn_mask=~past[:, None, None, :], scale=scale)
    real = (kv_lens > 0)[:, None, None]
    return out.copy_(torch.where(real, seen.reshape(seqs, heads, dim).to(out.dtype), out))
