"""The Triton kernel of ``copy_blocks``: one program per pair and run of words."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from replay_kernels.launch import launches

__all__ = ["block_copy_kernel", "launch"]


@triton.jit(do_not_specialize_on_alignment=["pairs"])
def block_copy_kernel(src, dst, pairs, words, WIDTH: tl.constexpr):
    """Copies WIDTH 32-bit words of one block."""
    pair = tl.program_id(0)
    source, target = tl.load(pairs + 2 * pair).to(tl.int64), tl.load(pairs + 2 * pair + 1).to(tl.int64)
    if (source >= 0) & (target >= 0):
        word = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
        inside = word < words
        tl.store(dst + target * words + word, tl.load(src + source * words + word, mask=inside), mask=inside)


def launch(src: torch.Tensor, dst: torch.Tensor, pairs: torch.Tensor) -> None:
    """Launches the kernel (arguments as ``copy_blocks`` has them; both pools and the pairs dense)."""
    width = launches(src.device).elements
    from_words = src.view(src.shape[0], -1).view(torch.int32)
    to_words = dst.view(dst.shape[0], -1).view(torch.int32)
    words = from_words.shape[1]
    block_copy_kernel[(pairs.shape[0], triton.cdiv(words, width))](
        from_words, to_words, pairs, words, WIDTH=width, num_warps=min(8, max(1, width // 512))
    )
