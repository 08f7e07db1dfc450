"""Triton kernels of the engine, each beside its torch reference, which is its specification. Import name: ``replay_kernels``.

An op is one function. On CUDA tensors it launches its Triton kernel; elsewhere it runs the reference (``dispatch``). Needs
torch, and triton only where a kernel is launched; no package of ours.
"""

from __future__ import annotations

from replay_kernels.block_copy import copy_blocks
from replay_kernels.decode_attention import MAX_SPLITS, DecodeScratch, decode_scratch, paged_decode_attention
from replay_kernels.dispatch import BACKENDS, backend, use_backend
from replay_kernels.launch import num_splits
from replay_kernels.prefill_attention import paged_prefill_attention
from replay_kernels.rms_norm import rms_norm
from replay_kernels.rope_kv_write import qk_norm_rope_kv_write, rope_table
from replay_kernels.sampling import gumbel_argmax
from replay_kernels.silu_mul import silu_mul

__all__ = [
    "paged_prefill_attention",
    "paged_decode_attention",
    "DecodeScratch",
    "decode_scratch",
    "num_splits",
    "MAX_SPLITS",
    "qk_norm_rope_kv_write",
    "rope_table",
    "rms_norm",
    "silu_mul",
    "gumbel_argmax",
    "copy_blocks",
    "backend",
    "use_backend",
    "BACKENDS",
]
