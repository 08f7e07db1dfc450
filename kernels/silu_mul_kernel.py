"""The Triton kernel of ``silu_mul``: one program per row and run of columns."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from replay_kernels.launch import launches

__all__ = ["launch", "silu_mul_kernel"]


@triton.jit
def silu_mul_kernel(out, gate_up, stride_out, stride_gate_up, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """WIDTH columns of one row; SIZE is the whole row of ``out``."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < SIZE
    where = gate_up + row * stride_gate_up + column
    gate = tl.load(where, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(where + SIZE, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * stride_out + column, (gate / (1.0 + tl.exp(-gate)) * up).to(out.dtype.element_ty), mask=inside)


def launch(out: torch.Tensor, gate_up: torch.Tensor) -> None:
    """Launches the kernel (arguments as ``silu_mul`` has them)."""
    rows, size = out.shape
    if rows == 0:
        return
    width = min(launches(out.device).elements // 2, triton.next_power_of_2(size))
    silu_mul_kernel[(rows, triton.cdiv(size, width))](
        out, gate_up, out.stride(0), gate_up.stride(0), SIZE=size, WIDTH=width, num_warps=min(8, max(1, width // 256))
    )
