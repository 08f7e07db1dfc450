"""What happens to q, k and v between projection and attention, in one pass: QK-norm, rotary embedding, KV into its slots."""

from __future__ import annotations

import torch

from replay_kernels.dispatch import kernel, uses_triton

__all__ = ["qk_norm_rope_kv_write", "qk_norm_rope_kv_write_reference", "rope_table"]


def rope_table(inv_freq: torch.Tensor, positions: int, scaling: float = 1.0) -> torch.Tensor:
    """Cosines and sines of the first ``positions`` positions, float32 [positions, 2 x len(inv_freq)], cosines first.

    ``inv_freq`` [head_dim / 2] has radians per position; ``scaling`` multiplies the table (1 unless a model scales attention
    there).
    """
    angles = torch.outer(torch.arange(positions, dtype=torch.float32, device=inv_freq.device), inv_freq.float())
    return torch.cat((angles.cos(), angles.sin()), dim=-1) * scaling


def qk_norm_rope_kv_write(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    cos_sin: torch.Tensor,
    kv_cache: torch.Tensor,
    *,
    q_weight: torch.Tensor | None = None,
    k_weight: torch.Tensor | None = None,
    eps: float = 1e-6,
) -> None:
    """Norms and rotates ``q`` in place; norms and rotates ``k`` and writes it, and ``v``, into the cache. ``k`` and ``v`` are
    only read.

    * ``q``: [tokens, heads, head_dim]; ``k``, ``v``: [tokens, kv_heads, head_dim]: any token stride (views of one packed
      projection), last two dimensions dense.
    * ``positions``: int32 or int64 [tokens], below ``cos_sin.shape[0]``. ``cos_sin``: float32 [positions, head_dim] of
      ``rope_table``. Element ``i`` of the first half of a head turns with element ``i`` of the second half.
    * ``slots``: int32 or int64 [tokens], ``block id * block_size + offset``; -1 writes no KV (padding, or KV that is there
      already). Slots other than -1 are distinct.
    * ``kv_cache``: one layer, as in ``paged_prefill_attention``; same dtype as ``k``.
    * ``q_weight``, ``k_weight``: [head_dim], RMSNorm per head before the rotation (Qwen3), both or neither. ``eps`` is the
      norm's.

    All of it in float32, rounded once at the end.
    """
    if (q_weight is None) != (k_weight is None):
        raise ValueError("q_weight and k_weight: give both or neither")
    if uses_triton(q):
        kernel("rope_kv_write_kernel").launch(q, k, v, positions, slots, cos_sin, kv_cache, q_weight, k_weight, eps)
    else:
        qk_norm_rope_kv_write_reference(q, k, v, positions, slots, cos_sin, kv_cache, q_weight, k_weight, eps)


def qk_norm_rope_kv_write_reference(
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
    """``qk_norm_rope_kv_write`` in torch."""
    cos, sin = cos_sin[positions.long()].unsqueeze(1).chunk(2, dim=-1)
    q.copy_(_turned(_normed(q, q_weight, eps), cos, sin))
    keys = _turned(_normed(k, k_weight, eps), cos, sin).to(kv_cache.dtype)
    written = slots.long()
    if bool((written < 0).any()):
        kept = written >= 0
        written, keys, v = written[kept], keys[kept], v[kept]
    block_size = kv_cache.shape[2]
    block, offset = written // block_size, written % block_size
    kv_cache[block, 0, offset] = keys
    kv_cache[block, 1, offset] = v


def _normed(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    wide = x.float()
    if weight is None:
        return wide
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
