"""The Triton kernel of ``qk_norm_rope_kv_write``: one program per token and run of heads, q first, then k with v."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from replay_kernels.launch import launches

__all__ = ["launch", "rope_kv_write_kernel"]


@triton.jit
def _turned(where, inside, cos, sin, weight, eps, HALF: tl.constexpr, NORMED: tl.constexpr):
    """The two halves of each head vector at ``where`` [heads, HALF], normed if NORMED and rotated, float32."""
    first = tl.load(where, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(where + HALF, mask=inside, other=0.0).to(tl.float32)
    if NORMED:
        dim = tl.arange(0, HALF)
        scale = tl.rsqrt((tl.sum(first * first, 1) + tl.sum(second * second, 1)) / (2 * HALF) + eps)[:, None]
        first = first * scale * tl.load(weight + dim).to(tl.float32)[None, :]
        second = second * scale * tl.load(weight + HALF + dim).to(tl.float32)[None, :]
    return first * cos - second * sin, second * cos + first * sin


@triton.jit(do_not_specialize_on_alignment=["positions", "slots"])
def rope_kv_write_kernel(
    q, k, v, positions, slots, cos_sin, cache, q_weight, k_weight, eps, stride_q, stride_k, stride_v, stride_block,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    WIDTH: tl.constexpr, NORMED: tl.constexpr,
):  # fmt: skip
    """WIDTH head vectors per program: the first ``cdiv(HEADS, WIDTH)`` programs of a token take its q, the others its k and v."""
    HALF: tl.constexpr = HEAD_DIM // 2
    Q_RUNS: tl.constexpr = (HEADS + WIDTH - 1) // WIDTH
    token, run = tl.program_id(0).to(tl.int64), tl.program_id(1)
    dim = tl.arange(0, HALF)
    angles = cos_sin + tl.load(positions + token).to(tl.int64) * HEAD_DIM + dim
    cos, sin = tl.load(angles)[None, :], tl.load(angles + HALF)[None, :]
    if run < Q_RUNS:
        head = run * WIDTH + tl.arange(0, WIDTH)
        inside = (head < HEADS)[:, None]
        where = q + token * stride_q + (head * HEAD_DIM)[:, None] + dim[None, :]
        first, second = _turned(where, inside, cos, sin, q_weight, eps, HALF, NORMED)
        tl.store(where, first.to(q.dtype.element_ty), mask=inside)
        tl.store(where + HALF, second.to(q.dtype.element_ty), mask=inside)
    else:
        slot = tl.load(slots + token).to(tl.int64)
        if slot >= 0:
            head = (run - Q_RUNS) * WIDTH + tl.arange(0, WIDTH)
            inside = (head < KV_HEADS)[:, None]
            offset = (head * HEAD_DIM)[:, None] + dim[None, :]
            first, second = _turned(k + token * stride_k + offset, inside, cos, sin, k_weight, eps, HALF, NORMED)
            keys = cache + slot // BLOCK_SIZE * stride_block + slot % BLOCK_SIZE * (KV_HEADS * HEAD_DIM) + offset
            values = keys + BLOCK_SIZE * KV_HEADS * HEAD_DIM
            tl.store(keys, first.to(cache.dtype.element_ty), mask=inside)
            tl.store(keys + HALF, second.to(cache.dtype.element_ty), mask=inside)
            source = v + token * stride_v + offset
            tl.store(values, tl.load(source, mask=inside), mask=inside)
            tl.store(values + HALF, tl.load(source + HALF, mask=inside), mask=inside)


def launch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    cos_sin: torch.Tensor,
    kv_cache: torch.Tensor,
    q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None,
    eps: float,
) -> None:
    """Launches the kernel (arguments as ``qk_norm_rope_kv_write`` has them)."""
    tokens, heads, head_dim = q.shape
    kv_heads = k.shape[1]
    if tokens == 0:
        return
    width = launches(q.device).heads
    normed = q_weight is not None and k_weight is not None
    rope_kv_write_kernel[(tokens, triton.cdiv(heads, width) + triton.cdiv(kv_heads, width))](
        q, k, v, positions, slots, cos_sin, kv_cache, q_weight if normed else cos_sin, k_weight if normed else cos_sin, eps,
        q.stride(0), k.stride(0), v.stride(0), kv_cache.stride(0),
        HEADS=heads, KV_HEADS=kv_heads, HEAD_DIM=head_dim, BLOCK_SIZE=kv_cache.shape[2], WIDTH=width, NORMED=normed,
        num_warps=min(4, max(1, width * head_dim // 512)),
    )  # fmt: skip
