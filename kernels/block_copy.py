"""Copies whole KV blocks, inside a pool or from one pool into another on the same device."""

from __future__ import annotations

import torch

from replay_kernels.dispatch import kernel, uses_triton

__all__ = ["copy_blocks", "copy_blocks_reference"]


def copy_blocks(src: torch.Tensor, dst: torch.Tensor, pairs: torch.Tensor) -> None:
    """Copies block ``pairs[i, 0]`` of ``src`` over block ``pairs[i, 1]`` of ``dst``, for all i at once.

    * ``src``, ``dst``: pools [num_blocks, ...] of one dtype, both dense, blocks of one shape whose bytes are a multiple of 16.
      They may be the same tensor if no block is both read and written.
    * ``pairs``: int64 or int32 [n, 2] on the device of the pools; a pair that holds -1 is padding and copies nothing.

    For small blocks and short lists: blocks of half a megabyte or more, and copies between host and device, are the copy engine's
    (``Tensor.copy_`` of each block), which takes no multiprocessor from the model.
    """
    if src.shape[1:] != dst.shape[1:] or src.dtype != dst.dtype:
        raise ValueError(f"copy_blocks: blocks of {tuple(src.shape[1:])} {src.dtype} into {tuple(dst.shape[1:])} {dst.dtype}")
    if pairs.shape[0] == 0:
        return
    if uses_triton(src):
        kernel("block_copy_kernel").launch(src, dst, pairs)
    else:
        copy_blocks_reference(src, dst, pairs)


def copy_blocks_reference(src: torch.Tensor, dst: torch.Tensor, pairs: torch.Tensor) -> None:
    """``copy_blocks`` in torch. Reads the pairs on the host."""
    real = pairs[(pairs >= 0).all(-1)].long()
    dst[real[:, 1]] = src[real[:, 0]]
