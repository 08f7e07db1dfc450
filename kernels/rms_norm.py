"""RMSNorm over the hidden size, with the residual addition before it fused in."""

from __future__ import annotations

import torch

from replay_kernels.dispatch import kernel, uses_triton

__all__ = ["rms_norm", "rms_norm_reference"]


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None = None, *, eps: float, out: torch.Tensor | None = None
) -> torch.Tensor:
    """``x / rms(x) * weight`` along the last dimension; with ``residual``, first ``residual += x``, then the norm of that sum.

    * ``x``, ``residual``, ``out``: [rows, hidden], one dtype, rows dense; ``out`` is made unless given, and may be ``x``.
    * ``weight``: [hidden], any of the three float types. ``eps`` is added to the mean square.

    The sum is rounded to the dtype of ``residual`` before it is normed, as two ops in a row would do. The norm is float32
    throughout and rounded once, at the end.
    """
    if out is None:
        out = torch.empty_like(x)
    if uses_triton(x):
        kernel("rms_norm_kernel").launch(out, x, weight, residual, eps)
        return out
    return rms_norm_reference(out, x, weight, residual, eps)


def rms_norm_reference(
    out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """``rms_norm`` in torch."""
    total = x if residual is None else residual.copy_(x.float() + residual.float())
    wide = total.float()
    return out.copy_(wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float())
