"""The tiles of paged attention, shared by the prefill and the decode kernel: KV through the block table, online softmax."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["attend_range", "attend_tile"]


@triton.jit
def attend_tile(
    acc, top, total, q, cache, table, first, end, limit, scale, stride_block,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Folds KV positions ``first`` to ``first + TILE`` into the running ``acc`` [rows, HEAD_DIM], ``top`` and ``total`` [rows],
    float32.

    ``cache`` points at the keys of one KV head in block 0, ``table`` at the sequence's row of the block table. MASKED: a row sees
    positions below its ``limit`` only, and none from ``end`` on is read; otherwise the whole tile is read and seen. ``scale`` has
    the factor log2(e) in it: powers of two are what the hardware has.
    """
    position = first + tl.arange(0, TILE)
    dim = tl.arange(0, HEAD_DIM)
    inside = position < end
    if MASKED:
        block = tl.load(table + position // BLOCK_SIZE, mask=inside, other=0)
    else:
        block = tl.load(table + position // BLOCK_SIZE)
    # A pool of gigabytes has more than 2^31 elements.
    slot = block.to(tl.int64) * stride_block + (position % BLOCK_SIZE) * (KV_HEADS * HEAD_DIM)
    keys = cache + slot[:, None] + dim[None, :]
    values = keys + BLOCK_SIZE * KV_HEADS * HEAD_DIM
    if MASKED:
        # Free slots may hold NaN: they must not be loaded, for 0 x NaN is NaN.
        k = tl.load(keys, mask=inside[:, None], other=0.0)
        v = tl.load(values, mask=inside[:, None], other=0.0)
    else:
        k = tl.load(keys)
        v = tl.load(values)
    scores = tl.dot(q, tl.trans(k), input_precision="tf32x3") * scale
    if MASKED:
        scores = tl.where(position[None, :] < limit[:, None], scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    shrink = tl.exp2(top - new_top)
    weights = tl.exp2(scores - new_top[:, None])
    total = total * shrink + tl.sum(weights, 1)
    acc = tl.dot(weights.to(v.dtype), v, acc=acc * shrink[:, None], input_precision="tf32x3")
    return acc, new_top, total


@triton.jit
def attend_range(
    q, cache, table, begin, unmasked, end, limit, scale, stride_block,
    ROWS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
    TAIL_STAGES: tl.constexpr,
):  # fmt: skip
    """Attends ``q`` [ROWS, HEAD_DIM] over the positions from ``begin`` to ``end``: whole tiles that every row sees up to
    ``unmasked``.

    Returns the weighted values [ROWS, HEAD_DIM], not yet divided by the total, the highest score (base 2) and the total of each
    row.
    """
    acc = tl.zeros((ROWS, HEAD_DIM), tl.float32)
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    for first in tl.range(begin, unmasked, TILE):
        acc, top, total = attend_tile(
            acc, top, total, q, cache, table, first, end, limit, scale, stride_block,
            KV_HEADS, HEAD_DIM, BLOCK_SIZE, TILE, MASKED=False,
        )  # fmt: skip
    for first in tl.range(unmasked, end, TILE, num_stages=TAIL_STAGES):
        acc, top, total = attend_tile(
            acc, top, total, q, cache, table, first, end, limit, scale, stride_block,
            KV_HEADS, HEAD_DIM, BLOCK_SIZE, TILE, MASKED=True,
        )  # fmt: skip
    return acc, top, total
