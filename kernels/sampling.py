"""Sampling by the Gumbel-max trick: one pass over the logits, no softmax, random numbers that depend on their key alone.

The noise of a row is a function of (seed, position, token id): the same in any batch, on any device, in any order, which is
what makes a replay's tokens independent of how its requests were scheduled.
"""

from __future__ import annotations

import torch

from replay_kernels.dispatch import kernel, uses_triton

__all__ = ["gumbel_argmax", "gumbel_argmax_reference", "gumbel_noise", "row_keys"]

# Odd multipliers of 32-bit mixing: the golden ratio, then the pair that a search over such functions found least biased.
GOLDEN, MIX_A, MIX_B = 0x9E3779B9, 0x7FEB352D, 0x846CA68B
MASK = 0xFFFFFFFF


def gumbel_argmax(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    seed: torch.Tensor,
    position: torch.Tensor,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The sampled token of each row: ``argmax(logits / temperature + Gumbel(seed, position))``; temperature 0: the argmax.

    * ``logits``: [rows, vocab], any of the three float types, rows dense. -inf is never sampled while a finite one is there.
    * ``temperature``: float32 [rows], >= 0. ``seed``: int64 [rows]. ``position``: int64 or int32 [rows], the position of the
      sampled token.
    * ``out``: int64 [rows], made unless given. Equal scores: the smallest token id.

    A NaN among the logits is the caller's to find: the token is then unspecified, but within the vocabulary.
    """
    if out is None:
        out = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    if uses_triton(logits):
        kernel("sampling_kernel").launch(out, logits, temperature, seed, position)
        return out
    return gumbel_argmax_reference(out, logits, temperature, seed, position)


def gumbel_argmax_reference(
    out: torch.Tensor, logits: torch.Tensor, temperature: torch.Tensor, seed: torch.Tensor, position: torch.Tensor
) -> torch.Tensor:
    """``gumbel_argmax`` in torch. Reads on the host whether any row samples at all."""
    scores = logits.float()
    sampled = temperature > 0
    if bool(sampled.any()):
        warm = torch.where(sampled, temperature, 1.0)[:, None]
        noisy = scores / warm + gumbel_noise(seed, position, logits.shape[1])
        scores = torch.where(sampled[:, None], noisy, scores)
    return out.copy_(scores.argmax(-1))


def gumbel_noise(seed: torch.Tensor, position: torch.Tensor, vocab: int) -> torch.Tensor:
    """Standard Gumbel noise, float32 [rows, vocab], of the keys (seed, position): 23 random bits each, between -2.8 and 16.7."""
    first, second = row_keys(seed, position)
    token = torch.arange(vocab, dtype=torch.int64, device=seed.device)
    bits = (token * GOLDEN + first[:, None]) & MASK
    bits = bits ^ (bits >> 16) ^ second[:, None]
    bits = _finish(bits)
    uniform = ((bits >> 9).to(torch.float32) + 0.5) * 2.0**-23
    return -torch.log(-torch.log(uniform))


def row_keys(seed: torch.Tensor, position: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two 32-bit keys of each row (int64 tensors), mixed from all 64 bits of ``seed`` and the low 32 of ``position``."""
    low, high = seed.long() & MASK, (seed.long() >> 32) & MASK
    first = _mixed(_mixed(_mixed(low) ^ high) ^ (position.long() & MASK))
    return first, _mixed(first ^ GOLDEN)


def _mixed(bits: torch.Tensor) -> torch.Tensor:
    bits = (bits + GOLDEN) & MASK
    return _finish(bits ^ (bits >> 16))


def _finish(bits: torch.Tensor) -> torch.Tensor:
    # 64-bit products wrap, and their low 32 bits are those of the 32-bit product.
    bits = (bits * MIX_A) & MASK
    bits = ((bits ^ (bits >> 15)) * MIX_B) & MASK
    return bits ^ (bits >> 16)
