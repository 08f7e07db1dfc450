"""The forward pass of a dense decoder (Llama 3, Qwen2/2.5, Qwen3) over paged KV.

One packed batch: first the decoding rows, one token each, then the tokens of the prefill entries, one after the other. Every op
between the matrix products is one of ``replay_kernels``: a Triton kernel on CUDA, its torch reference elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from replay_engine.torch_engine.cpu_attention import CpuDecode, CpuPrefill, Scratch
from replay_engine.torch_engine.shapes import ModelShape
from replay_engine.torch_engine.weights import Weights
from replay_kernels import (
    DecodeScratch,
    backend,
    paged_decode_attention,
    paged_prefill_attention,
    qk_norm_rope_kv_write,
    rms_norm,
    rope_table,
    silu_mul,
)

__all__ = ["DecoderModel", "ForwardBatch"]

_OnCpu = tuple[CpuDecode | None, CpuPrefill | None]


@dataclass(slots=True, kw_only=True)
class ForwardBatch:
    """What one forward pass computes; all tensors on the model's device.

    ``ids``, ``positions``, ``slots``: int64 [tokens]; a slot is ``block * block_size + offset``, -1 writes no KV (padding).
    The first ``decodes`` rows decode: ``decode_table`` int32 [decodes, blocks], ``decode_lens`` int32 [decodes], KV with this
    token, 0 for padding. The rest are the queries of the prefill entries: ``cu_query_lens`` int32 [entries + 1],
    ``prefill_table`` int32 [entries, blocks], ``prefill_lens`` int32 [entries], KV with these tokens; ``max_query_len`` on the
    host.
    ``sample_rows``: int64 [samples], the rows whose next token is wanted; ``None``: every row.
    ``num_splits``, ``scratch``: how decode attention is cut up (``replay_kernels.paged_decode_attention``).
    """

    ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    decodes: int
    decode_table: torch.Tensor | None = None
    decode_lens: torch.Tensor | None = None
    prefill_table: torch.Tensor | None = None
    cu_query_lens: torch.Tensor | None = None
    prefill_lens: torch.Tensor | None = None
    max_query_len: int = 0
    sample_rows: torch.Tensor | None = None
    num_splits: int = 1
    scratch: DecodeScratch | None = None


class DecoderModel:
    """A model on one device. ``kv`` handed to ``forward`` is [num_blocks, layers, 2, block_size, kv_heads, head_dim].

    ``positions`` bounds the sequences it can compute (rows of the rotary table).
    """

    def __init__(self, shape: ModelShape, weights: Weights, positions: int) -> None:
        self.shape = shape
        self.weights = weights
        device = weights.embedding.device
        frequencies = torch.tensor(shape.inverse_frequencies(), dtype=torch.float64).float()
        self.cos_sin = rope_table(frequencies.to(device), positions)
        self.device = device
        self._scratch: Scratch = {}
        self.dtype = weights.embedding.dtype

    def forward(self, batch: ForwardBatch, kv: torch.Tensor) -> torch.Tensor:
        """Final hidden states of the rows to sample, normed: [samples, hidden]. Writes the KV of all rows but padding."""
        eps = self.shape.eps
        on_cpu = self._on_cpu(batch, kv) if self.device.type == "cpu" and backend() == "auto" else (None, None)
        x = self.weights.embedding[batch.ids]
        residual: torch.Tensor | None = None
        for index, layer in enumerate(self.weights.layers):
            if residual is None:
                residual = x
                normed = rms_norm(x, layer.input_norm, eps=eps)
            else:
                normed = rms_norm(x, layer.input_norm, residual, eps=eps)
            x = self._attend(index, normed, batch, kv, on_cpu)
            normed = rms_norm(x, layer.post_norm, residual, eps=eps)
            x = functional.linear(silu_mul(functional.linear(normed, layer.gate_up)), layer.down)
        assert residual is not None
        if batch.sample_rows is not None:
            x, residual = x[batch.sample_rows], residual[batch.sample_rows]
        return rms_norm(x, self.weights.norm, residual, eps=eps)

    def _on_cpu(self, batch: ForwardBatch, kv: torch.Tensor) -> _OnCpu:
        decode = prefill = None
        if batch.decode_table is not None and batch.decode_lens is not None:
            decode = CpuDecode(kv, batch.decode_table, batch.decode_lens, self._scratch)
        if batch.prefill_table is not None and batch.cu_query_lens is not None and batch.prefill_lens is not None:
            prefill = CpuPrefill(kv, batch.prefill_table, batch.cu_query_lens, batch.prefill_lens, self._scratch)
        return decode, prefill

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[samples, vocab], in the model's dtype."""
        return functional.linear(hidden, self.weights.head)

    def _attend(
        self, index: int, normed: torch.Tensor, batch: ForwardBatch, kv: torch.Tensor, on_cpu: _OnCpu
    ) -> torch.Tensor:
        """Attention of all rows in layer ``index``; their own keys and values are written first, so that entries of one pass see
        each other's."""
        shape, layer, cache = self.shape, self.weights.layers[index], kv[:, index]
        packed = functional.linear(normed, layer.qkv, layer.qkv_bias).view(len(normed), -1, shape.head_dim)
        q, k, v = packed.split((shape.heads, shape.kv_heads, shape.kv_heads), dim=1)
        qk_norm_rope_kv_write(
            q, k, v, batch.positions, batch.slots, self.cos_sin, cache,
            q_weight=layer.q_norm, k_weight=layer.k_norm, eps=shape.eps,
        )  # fmt: skip
        seen = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        n = batch.decodes
        decode, prefill = on_cpu
        if decode is not None:
            decode.attend(seen[:n], q[:n], index)
        elif n:
            assert batch.decode_table is not None and batch.decode_lens is not None
            paged_decode_attention(
                seen[:n], q[:n], cache, batch.decode_table, batch.decode_lens, batch.scratch, num_splits=batch.num_splits
            )
        if prefill is not None:
            prefill.attend(seen[n:], q[n:], index)
        elif batch.prefill_table is not None:
            assert batch.cu_query_lens is not None and batch.prefill_lens is not None
            paged_prefill_attention(
                seen[n:], q[n:], cache, batch.prefill_table, batch.cu_query_lens, batch.prefill_lens,
                max_query_len=batch.max_query_len,
            )  # fmt: skip
        return functional.linear(seen.view(len(seen), -1), layer.out)
