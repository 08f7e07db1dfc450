"""The Triton kernel of ``paged_prefill_attention``: one program per tile of queries, KV head and sequence."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from replay_kernels.attention_tile import attend_range
from replay_kernels.launch import Tiles, launches, prefill_tiles

__all__ = ["LOG2_E", "launch", "prefill_kernel"]

LOG2_E = 1.4426950408889634


# The width of the table and where the index arrays lie change from batch to batch: neither may set off a compilation.
@triton.jit(do_not_specialize=["stride_table"], do_not_specialize_on_alignment=["table", "starts", "kv_lens"])
def prefill_kernel(
    out, q, cache, table, starts, kv_lens, scale, stride_out, stride_q, stride_block, stride_table,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A program's rows are queries x the query heads of its KV head. Late queries see most, so their programs start first."""
    QUERIES: tl.constexpr = ROWS // GROUP
    seq, kv_head = tl.program_id(2), tl.program_id(1)
    start = tl.load(starts + seq)
    query_len = tl.load(starts + seq + 1) - start
    first_query = (tl.num_programs(0) - 1 - tl.program_id(0)) * QUERIES
    if first_query < query_len:
        kv_len = tl.load(kv_lens + seq)
        row, dim = tl.arange(0, ROWS), tl.arange(0, HEAD_DIM)
        query = first_query + row // GROUP
        real = (row < QUERIES * GROUP) & (query < query_len)
        head = kv_head * GROUP + row % GROUP
        token = (start + query).to(tl.int64)
        queries = tl.load(q + (token * stride_q + head * HEAD_DIM)[:, None] + dim[None, :], mask=real[:, None], other=0.0)
        context = kv_len - query_len
        # Padding rows see what the last query sees: nothing of theirs is stored, and no row is left without a score.
        limit = tl.minimum(context + query + 1, kv_len)
        end = tl.minimum(context + first_query + QUERIES, kv_len)
        unmasked = (context + first_query + 1) // TILE * TILE
        acc, _, total = attend_range(
            queries, cache + kv_head * HEAD_DIM, table + seq.to(tl.int64) * stride_table, 0, unmasked, end, limit, scale,
            stride_block, ROWS, KV_HEADS, HEAD_DIM, BLOCK_SIZE, TILE, STAGES,
        )  # fmt: skip
        where = out + (token * stride_out + head * HEAD_DIM)[:, None] + dim[None, :]
        tl.store(where, (acc / total[:, None]).to(out.dtype.element_ty), mask=real[:, None])


def launch(
    out: torch.Tensor,
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    cu_query_lens: torch.Tensor,
    kv_lens: torch.Tensor,
    max_query_len: int,
    scale: float,
    tiles: Tiles | None = None,
) -> None:
    """Launches the kernel (arguments as ``paged_prefill_attention`` has them), with the table's tiles unless others are given."""
    _, _, block_size, kv_heads, head_dim = kv_cache.shape
    group = q.shape[1] // kv_heads
    if max_query_len == 0:
        return
    if tiles is None:
        tiles = prefill_tiles(launches(q.device), max_query_len * group, q.element_size(), head_dim)
    grid = (triton.cdiv(max_query_len, tiles.rows // group), kv_heads, kv_lens.shape[0])
    prefill_kernel[grid](
        out, q, kv_cache, block_table, cu_query_lens, kv_lens, scale * LOG2_E,
        out.stride(0), q.stride(0), kv_cache.stride(0), block_table.stride(0),
        GROUP=group, KV_HEADS=kv_heads, HEAD_DIM=head_dim, BLOCK_SIZE=block_size, ROWS=tiles.rows, TILE=tiles.tile,
        STAGES=tiles.stages, num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
