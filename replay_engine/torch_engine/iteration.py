"""The device's side of an iteration: from a packed buffer to sampled tokens, without a value ever read on the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from replay_engine.torch_engine.batch import Layout, TableSizes
from replay_engine.torch_engine.kv_pool import KvPool
from replay_engine.torch_engine.model import DecoderModel, ForwardBatch
from replay_kernels import DecodeScratch, decode_scratch, gumbel_argmax, num_splits

__all__ = ["NOT_FINITE", "DeviceTables", "IterationPass", "Sampling"]

NOT_FINITE = -1
"""What stands for a token where the hidden state is not finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """``temperature`` 0: the most likely token. Else seeded noise that depends on ``seed``, request and position alone."""

    temperature: float = 0.0
    seed: int = 0


class DeviceTables:
    """Per row: ``blocks`` int32 [rows, blocks], the block table, and ``sampled`` int64 [rows, tokens]. Row 0 is for padding."""

    def __init__(self, sizes: TableSizes, device: torch.device) -> None:
        self.sizes = sizes
        self.blocks = torch.zeros((sizes.rows, sizes.blocks), dtype=torch.int32, device=device)
        self.sampled = torch.zeros((sizes.rows, sizes.tokens), dtype=torch.int64, device=device)

    def grow(self, sizes: TableSizes) -> None:
        """More rows, those there are kept."""
        more = sizes.rows - self.sizes.rows
        self.blocks = torch.cat((self.blocks, self.blocks.new_zeros(more, sizes.blocks)))
        self.sampled = torch.cat((self.sampled, self.sampled.new_zeros(more, sizes.tokens)))
        self.sizes = sizes


class IterationPass:
    """Runs packed iterations, none with more than ``decodes`` decoding rows (scratch of split attention is made for them)."""

    def __init__(self, model: DecoderModel, pool: KvPool, tables: DeviceTables, sampling: Sampling, decodes: int) -> None:
        self.model = model
        self.pool = pool
        self.tables = tables
        self._block_size = pool.kv.shape[3]
        self._kv = pool.kv
        shape = model.shape
        cuda = model.device.type == "cuda"
        self._scratch: DecodeScratch | None = decode_scratch(decodes, shape.heads, shape.head_dim, model.device) if cuda else None
        self._processors = torch.cuda.get_device_properties(model.device).multi_processor_count if cuda else 1
        self._temperature = torch.full((1,), sampling.temperature, dtype=torch.float32, device=model.device)
        self._seed = torch.tensor(sampling.seed << 32, dtype=torch.int64, device=model.device)

    def update(self, packed: torch.Tensor, layout: Layout) -> None:
        """Void blocks are poisoned and the block tables brought up to date. Sizes vary: never part of a graph."""
        end = layout.size
        if layout.void:
            self.pool.poison(packed[end - layout.void : end].long())
        if layout.updates:
            start = end - layout.void - 2 * layout.updates
            cells = packed[start : start + layout.updates].long()
            self.tables.blocks.view(-1)[cells] = packed[start + layout.updates : end - layout.void]

    def decode(self, packed: torch.Tensor, bucket: int, blocks: int) -> torch.Tensor:
        """An iteration of ``bucket`` decodes, padding included, none with more than ``blocks`` KV blocks. Tokens: int64 [bucket].

        Everything is at a fixed place of ``packed``, so that this is what a CUDA graph captures.
        """
        codes, rows, positions, keys = packed[: 4 * bucket].view(4, bucket)
        batch = self._batch(codes, rows, positions, bucket, blocks)
        return self._sample(self.model.forward(batch, self._kv), keys, positions, -codes)

    def mixed(self, packed: torch.Tensor, layout: Layout) -> torch.Tensor:
        """An iteration with prefill entries, after ``layout.decodes`` decodes. Tokens: int64 [samples]."""
        tokens, count, samples = layout.tokens, layout.entries, layout.samples
        codes, rows, positions, _ = packed[: 4 * tokens].view(4, tokens)
        at = 4 * tokens
        starts, entry_rows, lens = packed[at : at + 3 * count + 1].split((count + 1, count, count))
        at += 3 * count + 1
        wanted, targets, keys = packed[at : at + 3 * samples].view(3, samples)
        batch = self._batch(codes, rows, positions, layout.decodes, layout.decode_blocks)
        batch.prefill_table = self.tables.blocks[:, : layout.prefill_blocks].index_select(0, entry_rows)
        batch.cu_query_lens, batch.prefill_lens, batch.max_query_len = starts, lens, layout.max_query_len
        batch.sample_rows = wanted.long()
        hidden = self.model.forward(batch, self._kv)
        return self._sample(hidden, keys, positions[batch.sample_rows], targets)

    def _batch(
        self, codes: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor, decodes: int, blocks: int
    ) -> ForwardBatch:
        size, tables = self._block_size, self.tables
        known = codes >= 0
        ids = torch.where(known, codes, tables.sampled.view(-1)[(-1 - codes).clamp_(min=0)])
        real = positions >= 0
        where = positions.clamp(min=0)
        block = tables.blocks.view(-1)[rows.long() * tables.sizes.blocks + where // size].long()
        slots = torch.where(real, block * size + where % size, -1)
        batch = ForwardBatch(ids=ids, positions=where, slots=slots, decodes=decodes)
        if decodes:
            batch.decode_table = tables.blocks[:, :blocks].index_select(0, rows[:decodes])
            batch.decode_lens = positions[:decodes] + 1
            batch.num_splits = num_splits(decodes, self.model.shape.kv_heads, blocks * size, self._processors)
            batch.scratch = self._scratch
        return batch

    def _sample(
        self, hidden: torch.Tensor, keys: torch.Tensor, positions: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        """Samples, and puts each token where the next iteration finds it."""
        temperature = self._temperature.expand(len(hidden)).contiguous()
        tokens = gumbel_argmax(self.model.logits(hidden), temperature, self._seed ^ keys.long(), positions + 1)
        self.tables.sampled.view(-1)[targets.long()] = tokens
        return torch.where(hidden.float().sum(-1).isfinite(), tokens, NOT_FINITE)
