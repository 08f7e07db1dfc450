"""The Triton kernel of ``rms_norm``: one program per row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

__all__ = ["launch", "rms_norm_kernel"]


@triton.jit
def rms_norm_kernel(
    out,
    x,
    weight,
    residual,
    eps,
    stride_out,
    stride_x,
    stride_residual,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    ADDS: tl.constexpr,
):
    """WIDTH is HIDDEN rounded up to a power of two. ADDS: the residual is added first and updated in place."""
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    inside = column < HIDDEN
    wide = tl.load(x + row * stride_x + column, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        where = residual + row * stride_residual + column
        rounded = (wide + tl.load(where, mask=inside, other=0.0).to(tl.float32)).to(residual.dtype.element_ty)
        tl.store(where, rounded, mask=inside)
        wide = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / HIDDEN + eps)
    normed = wide * scale * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * stride_out + column, normed.to(out.dtype.element_ty), mask=inside)


def launch(out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None, eps: float) -> None:
    """Launches the kernel (arguments as ``rms_norm`` has them)."""
    rows, hidden = x.shape
    if rows == 0:
        return
    width = triton.next_power_of_2(hidden)
    added = x if residual is None else residual
    rms_norm_kernel[(rows,)](
        out, x, weight, added, eps, out.stride(0), x.stride(0), added.stride(0),
        HIDDEN=hidden, WIDTH=width, ADDS=residual is not None, num_warps=min(8, max(1, width // 512)),
    )  # fmt: skip
