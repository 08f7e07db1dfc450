"""Seeded inputs for checks and benchmark: paged KV under a shuffled block table, NaN where nothing may be read or written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

__all__ = ["PADDING", "UNREAD_BLOCK", "AttentionProblem", "Heads", "attention_problem", "poisoned"]

# Stands in block tables where no kernel may look: as an address it is far outside of any pool.
UNREAD_BLOCK = 2**30
# What padding rows of results hold before a call, and must hold after it. NaN would not show a NaN written over it.
PADDING = 77.0


class Heads(NamedTuple):
    """Attention geometry: query heads, KV heads and the size of a head."""

    heads: int
    kv_heads: int
    head_dim: int


class AttentionProblem(NamedTuple):
    """Arguments of the attention ops (shapes as they document) and ``rows``, how many rows of ``out`` and ``q`` are real."""

    out: torch.Tensor
    q: torch.Tensor
    kv_cache: torch.Tensor
    block_table: torch.Tensor
    cu_query_lens: torch.Tensor
    kv_lens: torch.Tensor
    rows: int


def poisoned(*shape: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """A tensor full of NaN: whatever is read before it is written shows, and so does whatever is never written."""
    return torch.full(shape, float("nan"), dtype=dtype, device=device)


def attention_problem(
    entries: Sequence[tuple[int, int]],
    heads: Heads,
    *,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
    padding: int = 3,
    layers: int = 2,
    spare_blocks: int = 3,
) -> AttentionProblem:
    """One batch of (query_len, kv_len) entries, and behind it ``padding`` rows of NaN queries and as many empty sequences.

    The pool has ``layers`` layers, of which the last is the problem's; block ids are a random permutation, so that a kernel
    that ignores the block table fails. Slots past a sequence's KV, spare blocks, the other layers and ``out`` are NaN; its
    padding rows are PADDING.
    """
    made = torch.Generator().manual_seed(seed)
    cache, table = _filled_cache([kv_len for _, kv_len in entries], heads, block_size, spare_blocks, layers, made)
    table = torch.cat((table, torch.full((padding, table.shape[1]), UNREAD_BLOCK, dtype=torch.int32)))
    rows = sum(query_len for query_len, _ in entries)
    q = torch.full((rows + padding, heads.heads, heads.head_dim), float("nan"))
    q[:rows] = torch.randn(rows, heads.heads, heads.head_dim, generator=made)
    starts = torch.tensor([0, *(query_len for query_len, _ in entries), *[0] * padding]).cumsum(0)
    pool = cache.to(device, dtype)
    out = poisoned(*q.shape, dtype=dtype, device=device)
    out[rows:] = PADDING
    return AttentionProblem(
        out=out,
        q=q.to(device, dtype),
        kv_cache=pool[:, layers - 1],
        block_table=table.to(device),
        cu_query_lens=starts.to(device, torch.int32),
        kv_lens=torch.tensor([*(kv_len for _, kv_len in entries), *[0] * padding], dtype=torch.int32, device=device),
        rows=rows,
    )


def _filled_cache(
    kv_lens: list[int], heads: Heads, block_size: int, spare_blocks: int, layers: int, made: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """A float32 pool on the CPU whose last layer holds random KV of the given lengths, and the block table of that."""
    widths = [-(-kv_len // block_size) for kv_len in kv_lens]
    blocks = sum(widths) + spare_blocks
    ids = torch.randperm(blocks, generator=made)
    table = torch.full((len(kv_lens), max(widths) + 2), UNREAD_BLOCK, dtype=torch.int32)
    pool = torch.full((blocks, layers, 2, block_size, heads.kv_heads, heads.head_dim), float("nan"))
    first = 0
    for row, (width, kv_len) in enumerate(zip(widths, kv_lens, strict=True)):
        own = ids[first : first + width]
        table[row, :width] = own.to(torch.int32)
        kv = torch.full((width * block_size, 2, heads.kv_heads, heads.head_dim), float("nan"))
        kv[:kv_len] = torch.randn(kv_len, 2, heads.kv_heads, heads.head_dim, generator=made)
        pool[own, layers - 1] = kv.view(width, block_size, 2, heads.kv_heads, -1).transpose(1, 2)
        first += width
    return pool, table
