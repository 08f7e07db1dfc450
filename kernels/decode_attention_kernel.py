"""The Triton kernels of ``paged_decode_attention``: one program per sequence, KV head and KV split, then the merge of splits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from replay_kernels.attention_tile import attend_range
from replay_kernels.decode_attention import MAX_SPLITS, DecodeScratch
from replay_kernels.launch import Tiles, decode_tiles, launches
from replay_kernels.prefill_attention_kernel import LOG2_E

__all__ = ["decode_kernel", "launch", "merge_kernel"]


# Neither the width of the table, nor where the lengths lie, nor the number of splits may set off a compilation in mid-run.
@triton.jit(do_not_specialize=["stride_table", "splits"], do_not_specialize_on_alignment=["table", "kv_lens"])
def decode_kernel(
    out, lse, q, cache, table, kv_lens, scale, splits, stride_out, stride_split, stride_q, stride_block, stride_table,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Split ``s`` takes the ``s``-th run of whole tiles. ``out`` is the result if there is one, else (SPLIT) the scratch.

    Lengths are read here, so the grid fits every batch of its size: what a captured graph needs. A split without KV only says
    so, by a log-sum-exp (base 2) of -inf.
    """
    kv_head, seq, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    kv_len = tl.load(kv_lens + seq)
    if kv_len > 0:
        share = tl.cdiv(tl.cdiv(kv_len, TILE), splits) * TILE
        begin = split * share
        end = tl.minimum(begin + share, kv_len)
        head = kv_head * GROUP + tl.arange(0, ROWS)
        real = (tl.arange(0, ROWS) < GROUP)[:, None]
        vectors = (head * HEAD_DIM)[:, None] + tl.arange(0, HEAD_DIM)[None, :]
        if begin < end:
            queries = tl.load(q + seq.to(tl.int64) * stride_q + vectors, mask=real, other=0.0)
            acc, top, total = attend_range(
                queries, cache + kv_head * HEAD_DIM, table + seq.to(tl.int64) * stride_table,
                begin, begin + (end - begin) // TILE * TILE, end, tl.full((ROWS,), 0, tl.int32) + end, scale,
                stride_block, ROWS, KV_HEADS, HEAD_DIM, BLOCK_SIZE, TILE, 1,
            )  # fmt: skip
            where = out + seq.to(tl.int64) * stride_out + split.to(tl.int64) * stride_split + vectors
            tl.store(where, (acc / total[:, None]).to(out.dtype.element_ty), mask=real)
            summed = top + tl.log2(total)
        else:
            summed = tl.full((ROWS,), float("-inf"), tl.float32)
        if SPLIT:
            place = split * (stride_split // HEAD_DIM) + seq * (stride_out // HEAD_DIM) + head
            tl.store(lse + place, summed, mask=tl.arange(0, ROWS) < GROUP)


@triton.jit(do_not_specialize=["splits"], do_not_specialize_on_alignment=["kv_lens"])
def merge_kernel(
    out, partial, lse, kv_lens, splits, stride_out, stride_split,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Weighs the splits of one sequence and head, at most WIDTH, by their log-sum-exp; those without KV are not read."""
    head, seq = tl.program_id(0), tl.program_id(1)
    if tl.load(kv_lens + seq) > 0:
        split, dim = tl.arange(0, WIDTH), tl.arange(0, HEAD_DIM)
        row = seq * HEADS + head
        each = tl.load(lse + split * (stride_split // HEAD_DIM) + row, mask=split < splits, other=float("-inf"))
        weight = tl.exp2(each - tl.max(each, 0))
        where = partial + (split.to(tl.int64) * stride_split + row * HEAD_DIM)[:, None] + dim[None, :]
        values = tl.load(where, mask=(each > float("-inf"))[:, None], other=0.0)
        merged = tl.sum(values * weight[:, None], 0) / tl.sum(weight, 0)
        tl.store(out + seq.to(tl.int64) * stride_out + head * HEAD_DIM + dim, merged.to(out.dtype.element_ty))


def launch(
    out: torch.Tensor,
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    kv_lens: torch.Tensor,
    scratch: DecodeScratch | None,
    num_splits: int,
    scale: float,
    tiles: Tiles | None = None,
) -> None:
    """Launches the kernels (arguments as ``paged_decode_attention`` has them), with the table's tiles unless others are given."""
    _, _, block_size, kv_heads, head_dim = kv_cache.shape
    seqs, heads, _ = q.shape
    if seqs == 0:
        return
    group = heads // kv_heads
    if tiles is None:
        tiles = decode_tiles(launches(q.device), group, q.element_size(), head_dim)
    split = num_splits > 1 and scratch is not None
    partial, lse = scratch if split and scratch is not None else (out, out)
    decode_kernel[(kv_heads, seqs, num_splits)](
        partial, lse, q, kv_cache, block_table, kv_lens, scale * LOG2_E, num_splits,
        heads * head_dim if split else out.stride(0), partial.stride(0) if split else 0,
        q.stride(0), kv_cache.stride(0), block_table.stride(0),
        GROUP=group, KV_HEADS=kv_heads, HEAD_DIM=head_dim, BLOCK_SIZE=block_size, ROWS=tiles.rows, TILE=tiles.tile,
        SPLIT=split, num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    if split:
        merge_kernel[(heads, seqs)](
            out, partial, lse, kv_lens, num_splits, out.stride(0), partial.stride(0),
            HEADS=heads, HEAD_DIM=head_dim, WIDTH=MAX_SPLITS, num_warps=1,
        )  # fmt: skip
