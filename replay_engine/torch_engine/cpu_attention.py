"""Attention on a CPU: what ``replay_kernels`` specifies for decodes and for prefill entries, in as few passes over the KV as it
takes.

The references beside the kernels are written to be read; a replay on a CPU runs these, which a test holds against them. Their
cost follows what a kernel's does (KV that is read, pairs of query and key), so that the simulator's form fits both.
"""

from __future__ import annotations

import torch
from torch.nn import functional

__all__ = ["CpuDecode", "CpuPrefill", "Scratch"]

Scratch = dict[int, torch.Tensor]
"""Buffers for keys (0) and values (1), kept from one iteration to the next."""


class CpuDecode:
    """One iteration's decodes over ``kv`` [num_blocks, layers, 2, block_size, kv_heads, head_dim], dense.

    ``block_table``, ``kv_lens``, padding and NaN past the end as in ``paged_decode_attention``. What is the same in all layers is
    worked out here, once.
    """

    def __init__(
        self, kv: torch.Tensor, block_table: torch.Tensor, kv_lens: torch.Tensor, scratch: Scratch | None = None
    ) -> None:
        _, layers, _, block_size, self._kv_heads, self._dim = kv.shape
        used = (torch.arange(block_table.shape[1]) * block_size)[None] < kv_lens[:, None]
        self._lines = kv.view(-1, block_size * self._kv_heads * self._dim)
        self._first = block_table[used].long() * (2 * layers)
        self._scratch = {} if scratch is None else scratch
        self._spans: list[tuple[int, int, int]] = []
        """Row, and from where to where its tokens lie among those gathered."""
        at = 0
        for row, length in enumerate(kv_lens.tolist()):
            if length:
                self._spans.append((row, at, at + length))
                at += -(-length // block_size) * block_size

    def attend(self, out: torch.Tensor, q: torch.Tensor, layer: int) -> None:
        """Attends one query per sequence, ``q`` [seqs, heads, head_dim], over ``layer``'s KV; rows of padding stay untouched.

        Keys and values of the whole batch are gathered block by block, each a contiguous copy, and each sequence attends over
        its own: padded to the longest, a batch with one long context would read many times what a kernel reads.
        """
        keys, values = (self._gathered(2 * layer + half, half) for half in (0, 1))
        queries = q.view(len(q), 1, self._kv_heads, -1, self._dim)
        target = out.view(queries.shape)
        for row, first, end in self._spans:
            target[row] = functional.scaled_dot_product_attention(
                queries[row], keys[None, :, first:end], values[None, :, first:end]
            )

    def _gathered(self, offset: int, half: int) -> torch.Tensor:
        taken = _taken(self._scratch, half, self._lines, self._first + offset)
        return taken.view(-1, self._kv_heads, self._dim).transpose(0, 1)


class CpuPrefill:
    """One iteration's prefill entries over ``kv``, as ``paged_prefill_attention`` has them.

    Lengths, blocks and masks are worked out here, once for all layers; an entry without context needs no mask.
    """

    def __init__(
        self, kv: torch.Tensor, block_table: torch.Tensor, cu_query_lens: torch.Tensor, kv_lens: torch.Tensor,
        scratch: Scratch | None = None,
    ) -> None:  # fmt: skip
        _, layers, _, block_size, self._kv_heads, self._dim = kv.shape
        self._lines = kv.view(-1, block_size * self._kv_heads * self._dim)
        self._scratch: Scratch = {} if scratch is None else scratch
        self._entries: list[tuple[int, int, int, torch.Tensor, torch.Tensor | None]] = []
        starts = cu_query_lens.tolist()
        for row, kv_len in enumerate(kv_lens.tolist()):
            first, end = starts[row], starts[row + 1]
            if first == end:
                continue
            lines = block_table[row, : -(-kv_len // block_size)].long() * (2 * layers)
            mask = None
            if kv_len > end - first:
                mask = torch.arange(kv_len) <= torch.arange(kv_len - (end - first), kv_len)[:, None]
            self._entries.append((first, end, kv_len, lines, mask))

    def attend(self, out: torch.Tensor, q: torch.Tensor, layer: int) -> None:
        """Attends ``q`` [tokens, heads, head_dim] over ``layer``'s KV; rows beyond the entries' stay untouched."""
        for first, end, kv_len, lines, mask in self._entries:
            keys, values = (
                _taken(self._scratch, half, self._lines, lines + (2 * layer + half)).view(-1, self._kv_heads, self._dim)[:kv_len]
                for half in (0, 1)
            )
            seen = functional.scaled_dot_product_attention(
                q[first:end].transpose(0, 1)[None], keys.transpose(0, 1)[None], values.transpose(0, 1)[None], attn_mask=mask,
                is_causal=mask is None, enable_gqa=True,
            )  # fmt: skip
            out[first:end] = seen[0].transpose(0, 1)


def _taken(scratch: Scratch, half: int, lines: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """``lines[wanted]`` in a buffer that is kept: megabytes that are new each time cost more in page faults than in copying."""
    count, size = len(wanted), lines.shape[1]
    buffer = scratch.get(half)
    if buffer is None or len(buffer) < count * size or buffer.dtype != lines.dtype:
        buffer = scratch[half] = torch.empty(count * size * 5 // 4, dtype=lines.dtype)
    taken = buffer[: count * size].view(count, size)
    torch.index_select(lines, 0, wanted, out=taken)
    return taken
