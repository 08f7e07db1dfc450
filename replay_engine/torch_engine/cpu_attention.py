"""Attention on a CPU: what ``replay_kernels`` specifies for decodes and for prefill entries, in as few passes over the KV as it
takes.

The references beside the kernels are written to be read; a replay on a CPU runs these, which a test holds against them. Their
cost follows what a kernel's does (KV that is read, pairs of query and key), so that the simulator's form fits both.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

__all__ = ["CpuDecode", "CpuPrefill", "Scratch"]

Scratch = dict[int, torch.Tensor]
"""Buffers for keys (0) and values (1), kept from one iteration to the next."""


CALL = 128
"""Tokens of padding that take about as long as attending over another group of sequences."""


class CpuDecode:
    """One iteration's decodes over ``kv`` [num_blocks, layers, 2, block_size, kv_heads, head_dim], dense.

    ``block_table``, ``kv_lens``, padding and NaN past the end as in ``paged_decode_attention``. What is the same in all layers is
    worked out here, once: sequences of about the same length are attended over together, padded to the longest of them. All
    padded to the longest, a batch with one long context would read many times what a kernel reads.
    """

    def __init__(
        self, kv: torch.Tensor, block_table: torch.Tensor, kv_lens: torch.Tensor, scratch: Scratch | None = None
    ) -> None:
        _, layers, _, block_size, self._kv_heads, self._dim = kv.shape
        self._lines = kv.view(-1, block_size * self._kv_heads * self._dim)
        self._scratch = {} if scratch is None else scratch
        self._groups: list[tuple[torch.Tensor | None, int, int, int, torch.Tensor | None]] = []
        """Rows (``None``: all of them), from where to where their tokens lie among those gathered, tokens each, the mask."""
        lengths = kv_lens.tolist()
        taken, unread, at = [], [], 0
        for rows in _alike(lengths):
            width = -(-max(lengths[row] for row in rows) // block_size)
            some = None if len(rows) == len(lengths) else torch.tensor(rows)
            table, own = (block_table, kv_lens) if some is None else (block_table[some], kv_lens[some])
            past = torch.arange(width * block_size) >= own[:, None]
            # past the last block a table holds anything
            taken.append(table[:, :width].long().masked_fill_(past[:, ::block_size], 0).view(-1))
            empty = past.view(-1).nonzero().view(-1)
            unread.append(empty + at)
            mask = past.logical_not()[:, None, None, :] if len(empty) else None
            end = at + past.numel()
            self._groups.append((some, at, end, width * block_size, mask))
            at = end
        self._first = torch.cat(taken) * (2 * layers) if taken else torch.zeros(0, dtype=torch.long)
        self._unread = torch.cat(unread) if unread else self._first

    def attend(self, out: torch.Tensor, q: torch.Tensor, layer: int) -> None:
        """Attends one query per sequence, ``q`` [seqs, heads, head_dim], over ``layer``'s KV; rows of padding stay untouched.

        Keys and values of the whole batch are gathered block by block, each a contiguous copy.
        """
        keys, values = (self._gathered(2 * layer + half, half) for half in (0, 1))
        queries = q.view(len(q), self._kv_heads, -1, self._dim)
        target = out.view(queries.shape)
        for rows, first, end, tokens, mask in self._groups:
            of_these = (-1, tokens, self._kv_heads, self._dim)
            seen = functional.scaled_dot_product_attention(
                queries if rows is None else queries[rows], keys[first:end].view(of_these).transpose(1, 2),
                values[first:end].view(of_these).transpose(1, 2), attn_mask=mask,
            )  # fmt: skip
            if rows is None:
                target.copy_(seen)
            else:
                target[rows] = seen

    def _gathered(self, offset: int, half: int) -> torch.Tensor:
        taken = _taken(self._scratch, half, self._lines, self._first + offset).view(-1, self._kv_heads, self._dim)
        taken.index_fill_(0, self._unread, 0.0)  # may be NaN, and 0 x NaN is NaN
        return taken


def _alike(lengths: Sequence[int]) -> list[list[int]]:
    """Rows that have tokens in groups, the longest first; a group ends where its padding would cost more than another group."""
    groups: list[list[int]] = []
    longest = padding = 0
    for row in sorted((row for row, length in enumerate(lengths) if length), key=lambda row: -lengths[row]):
        padding += longest - lengths[row]
        if not groups or padding > CALL:
            groups.append([])
            longest, padding = lengths[row], 0
        groups[-1].append(row)
    return [sorted(rows) for rows in groups]


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
