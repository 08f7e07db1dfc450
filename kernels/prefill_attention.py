"""Attention of prefill entries over paged KV: causal, grouped-query, with the context earlier iterations left there."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from replay_kernels.dispatch import kernel, uses_triton

__all__ = ["paged_prefill_attention", "paged_prefill_attention_reference"]


def paged_prefill_attention(
    out: torch.Tensor,
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    cu_query_lens: torch.Tensor,
    kv_lens: torch.Tensor,
    *,
    max_query_len: int,
    scale: float | None = None,
) -> torch.Tensor:
    """Attends ``q`` over the KV of its own sequences; writes ``out`` and returns it.

    * ``out``, ``q``: [tokens, heads, head_dim], one dtype (float32, float16, bfloat16); any token stride, last two dimensions
      dense.
    * ``kv_cache``: one layer of the pool, [num_blocks, 2, block_size, kv_heads, head_dim], keys at 0 and values at 1, same
      dtype; any stride between blocks, the rest dense (``pool[:, layer]`` of a pool [num_blocks, layers, 2, block_size,
      kv_heads, head_dim]).
    * ``block_table``: int32 [seqs, max_blocks]; entries past a sequence's last block are not read.
    * ``cu_query_lens``: int32 [seqs + 1], the first row of ``q`` of each sequence; rows from ``cu_query_lens[-1]`` on are
      padding and stay untouched. A sequence may have no query.
    * ``kv_lens``: int32 [seqs], KV of each sequence *after* this iteration's tokens, which are already in the cache: query
      ``i`` of ``n`` stands at position ``kv_len - n + i`` and sees the positions up to its own. ``kv_len >= n``.
    * ``max_query_len``: at least the longest query (host side: it sizes the launch, so that no device value is waited for).
    * ``scale``: factor of the scores, ``head_dim ** -0.5`` unless given.

    ``heads`` is a multiple of ``kv_heads``; head ``h`` reads KV head ``h // (heads // kv_heads)``. head_dim is 16, 32, 64, 128 or
    256 and block_size a power of two >= 8 (Triton only). Scores, softmax and sums are float32. What lies in the cache past
    ``kv_len`` may be NaN.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if uses_triton(q):
        kernel("prefill_attention_kernel").launch(out, q, kv_cache, block_table, cu_query_lens, kv_lens, max_query_len, scale)
        return out
    return paged_prefill_attention_reference(out, q, kv_cache, block_table, cu_query_lens, kv_lens, scale)


def paged_prefill_attention_reference(
    out: torch.Tensor,
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    cu_query_lens: torch.Tensor,
    kv_lens: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """``paged_prefill_attention`` in torch, one sequence after the other, in float32. Reads the lengths on the host."""
    _, _, block_size, kv_heads, dim = kv_cache.shape
    group = q.shape[1] // kv_heads
    starts = cu_query_lens.tolist()
    for row, kv_len in enumerate(kv_lens.tolist()):
        first, end = starts[row], starts[row + 1]
        query_len = end - first
        if query_len == 0:
            continue
        blocks = block_table[row, : -(-kv_len // block_size)].long()
        kv = kv_cache[blocks].transpose(0, 1).reshape(2, -1, kv_heads, dim)[:, :kv_len].float().transpose(1, 2)
        queries = q[first:end].float().reshape(query_len, kv_heads, group, dim).permute(1, 0, 2, 3).reshape(kv_heads, -1, dim)
        last_seen = torch.arange(kv_len - query_len, kv_len, device=q.device).repeat_interleave(group)
        mask = torch.arange(kv_len, device=q.device) <= last_seen[:, None]
        seen = scaled_dot_product_attention(queries[None], kv[0][None], kv[1][None], attn_mask=mask, scale=scale)
        seen = seen.reshape(kv_heads, query_len, group, dim).permute(1, 0, 2, 3)
        out[first:end] = seen.reshape(query_len, -1, dim).to(out.dtype)
    return out
