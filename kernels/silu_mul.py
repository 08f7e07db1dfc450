"""The gated activation of the MLP: ``silu(gate) * up`` of a concatenated projection."""

from __future__ import annotations

import torch
from torch.nn.functional import silu

from replay_kernels.dispatch import kernel, uses_triton

__all__ = ["silu_mul", "silu_mul_reference"]


def silu_mul(gate_up: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """``silu(gate) * up``: ``gate_up`` is [rows, 2 x size], gate first, rows dense; ``out`` [rows, size] is made unless given.

    Computed in float32 and rounded once.
    """
    if out is None:
        out = gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)
    if uses_triton(gate_up):
        kernel("silu_mul_kernel").launch(out, gate_up)
        return out
    return silu_mul_reference(out, gate_up)


def silu_mul_reference(out: torch.Tensor, gate_up: torch.Tensor) -> torch.Tensor:
    """``silu_mul`` in torch."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return out.copy_(silu(gate) * up)
