"""Decode attention on a CPU: what ``replay_kernels.paged_decode_attention`` specifies, in as few passes over the KV as it takes.

The reference beside the kernel is written to be read; a replay on a CPU runs this one, which a test holds against it.
"""

from __future__ import annotations

import torch
from torch.nn import functional

__all__ = ["CpuDecode"]


class CpuDecode:
    """One iteration's decodes over ``kv`` [num_blocks, layers, 2, block_size, kv_heads, head_dim], dense.

    ``block_table``, ``kv_lens``, padding and NaN past the end as in ``paged_decode_attention``. What is the same in all layers is
    worked out here, once. ``scratch`` keeps the buffers for the next iteration: megabytes that are new each time cost
    more in page faults than in copying.
    """

    def __init__(
        self, kv: torch.Tensor, block_table: torch.Tensor, kv_lens: torch.Tensor, scratch: dict[int, torch.Tensor] | None = None
    ) -> None:
        _, layers, _, block_size, self._kv_heads, self._dim = kv.shape
        self._seqs, width = block_table.shape
        self._tokens = width * block_size
        past = torch.arange(self._tokens) >= kv_lens[:, None]
        blocks = block_table.long().masked_fill_(past[:, ::block_size], 0)  # past the last block a table holds anything
        self._lines = kv.view(-1, block_size * self._kv_heads * self._dim)
        self._first = blocks.view(-1) * (2 * layers)
        self._unread = past.view(-1).nonzero().view(-1)
        self._mask = past.logical_not()[:, None, None, :] if len(self._unread) else None
        self._scratch = {} if scratch is None else scratch
        real = kv_lens > 0
        self._padding = None if bool(real.all()) else real[:, None, None]

    def attend(self, out: torch.Tensor, q: torch.Tensor, layer: int) -> None:
        """Attends one query per sequence, ``q`` [seqs, heads, head_dim], over ``layer``'s KV; rows of padding stay untouched.

        Keys and values of the whole batch are gathered block by block, each a contiguous copy, padded to the longest.
        """
        heads = q.shape[1]
        keys, values = (self._gathered(2 * layer + half, half) for half in (0, 1))
        queries = q.reshape(self._seqs, self._kv_heads, heads // self._kv_heads, self._dim)
        seen = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=self._mask).reshape(out.shape)
        out.copy_(seen if self._padding is None else torch.where(self._padding, seen, out))

    def _gathered(self, offset: int, half: int) -> torch.Tensor:
        count, size = len(self._first), self._lines.shape[1]
        buffer = self._scratch.get(half)
        if buffer is None or len(buffer) < count * size:
            buffer = self._scratch[half] = torch.empty(count * size * 5 // 4, dtype=self._lines.dtype)
        taken = buffer[: count * size].view(count, size)
        torch.index_select(self._lines, 0, self._first + offset, out=taken)
        taken = taken.view(self._seqs * self._tokens, -1)
        taken.index_fill_(0, self._unread, 0.0)  # may be NaN, and 0 x NaN is NaN
        return taken.view(self._seqs, self._tokens, self._kv_heads, self._dim).transpose(1, 2)
