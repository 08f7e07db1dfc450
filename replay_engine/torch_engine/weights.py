"""A model's weights as the forward pass wants them: q, k, v in one matrix, gate and up in one; dummy or from a checkpoint."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from replay_engine.config import ConfigError
from replay_engine.torch_engine.safetensors_file import Checkpoint
from replay_engine.torch_engine.shapes import SHIPPED, ModelShape

__all__ = ["LayerWeights", "Weights", "dummy_weights", "for_cpu", "load_weights", "read_weights"]

LARGEST_COPY = 64 << 20
"""Bytes of a tied embedding that a CPU keeps a second time, in the order that its product wants."""


@dataclass(slots=True, kw_only=True)
class LayerWeights:
    """One layer. Projections are [out, in] as in a checkpoint; ``qkv_bias`` [qkv], norms [hidden] or [head_dim]."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    out: torch.Tensor
    post_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(slots=True, kw_only=True)
class Weights:
    """A whole model. ``head`` is ``embedding`` itself where the two are tied, or a copy of it (``copied``); both
    [vocab, hidden]."""

    embedding: torch.Tensor
    layers: list[LayerWeights]
    norm: torch.Tensor
    head: torch.Tensor
    copied: bool = False

    @property
    def bytes(self) -> int:
        """Memory they take, a tied matrix counted once."""
        tied = self.copied or self.head is self.embedding
        tensors = [self.embedding, self.norm, *([] if tied else [self.head])]
        for layer in self.layers:
            values = (getattr(layer, name) for name in LayerWeights.__slots__)
            tensors += [value for value in values if value is not None]
        return sum(t.numel() * t.element_size() for t in tensors)


def load_weights(model: str, shape: ModelShape, dtype: torch.dtype, device: torch.device, seed: int = 0) -> Weights:
    """Dummy weights for a shipped model, the checkpoint's for a directory."""
    if model.lower() in SHIPPED:
        weights = dummy_weights(shape, dtype, device, seed)
    else:
        weights = read_weights(Path(model), shape, dtype, device)
    return for_cpu(weights) if device.type == "cpu" else weights


def for_cpu(weights: Weights) -> Weights:
    """The same values, projections stored column by column: products of 4 to 64 rows, which decodes are, take a third less time
    so on a CPU. An embedding is read row by row: a tied one is copied for the head, unless it is large."""
    for layer in weights.layers:
        for name in ("qkv", "out", "gate_up", "down"):
            setattr(layer, name, _by_column(getattr(layer, name)))
    tied = weights.head is weights.embedding
    if tied and weights.head.nbytes > LARGEST_COPY:
        return weights
    return replace(weights, head=_by_column(weights.head), copied=tied)


def _by_column(matrix: torch.Tensor) -> torch.Tensor:
    return matrix.t().contiguous().t()


def dummy_weights(shape: ModelShape, dtype: torch.dtype, device: torch.device, seed: int = 0) -> Weights:
    """Random weights, the same for one seed on one kind of device.

    Scaled so that every part of the model moves its answer: projections keep the size of what they project, and q and k are
    large enough for attention to prefer some tokens to others. (Weights of trained size would leave the residual stream to the
    last token's embedding, and the answer would hardly depend on the KV cache.)
    """
    generator = torch.Generator(device=device).manual_seed(seed)

    def normal(out: int, size: int, gain: float = 1.0) -> torch.Tensor:
        made = torch.empty(out, size, dtype=dtype, device=device)
        return made.normal_(0.0, gain / math.sqrt(size), generator=generator)

    def ones(size: int) -> torch.Tensor:
        return torch.ones(size, dtype=dtype, device=device)

    heads, gain = (shape.heads + shape.kv_heads) * shape.head_dim, 2.0
    layers = []
    for _ in range(shape.layers):
        qkv = normal(shape.qkv_size, shape.hidden)
        qkv[:heads] *= 1.0 if shape.qk_norm else gain
        bias = torch.zeros(shape.qkv_size, dtype=dtype, device=device) if shape.qkv_bias else None
        norm = ones(shape.head_dim) * gain if shape.qk_norm else None
        layers.append(LayerWeights(
            input_norm=ones(shape.hidden), qkv=qkv, qkv_bias=bias, q_norm=norm, k_norm=None if norm is None else norm.clone(),
            out=normal(shape.hidden, shape.heads * shape.head_dim, 2.0), post_norm=ones(shape.hidden),
            gate_up=normal(2 * shape.intermediate, shape.hidden), down=normal(shape.hidden, shape.intermediate, 2.0),
        ))  # fmt: skip
    embedding = normal(shape.vocab, shape.hidden, math.sqrt(shape.hidden) / 2)
    head = embedding if shape.tied else normal(shape.vocab, shape.hidden)
    return Weights(embedding=embedding, layers=layers, norm=ones(shape.hidden), head=head)


def read_weights(folder: Path, shape: ModelShape, dtype: torch.dtype, device: torch.device) -> Weights:
    """The weights of a Hugging Face directory, converted to ``dtype`` on ``device``.

    ``ConfigError``: one is missing, has another shape than ``config.json`` says, or is there and not understood.
    """
    source = _Source(Checkpoint(folder), dtype, device)
    layers = [_layer(source, shape, f"model.layers.{i}.") for i in range(shape.layers)]
    embedding = source.take("model.embed_tokens.weight", (shape.vocab, shape.hidden))
    norm = source.take("model.norm.weight", (shape.hidden,))
    head = embedding
    if not shape.tied:
        head = source.take("lm_head.weight", (shape.vocab, shape.hidden))
    source.refuse_left_over()
    return Weights(embedding=embedding, layers=layers, norm=norm, head=head)


class _Source:
    """A checkpoint that is taken apart; what is left over at the end was not understood."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> None:
        self._checkpoint, self._dtype, self._device = checkpoint, dtype, device
        self._left = checkpoint.names()

    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        found = self._checkpoint.take(name, shape)
        self._left.discard(name)
        return found.to(device=self._device, dtype=self._dtype, copy=True)

    def together(self, names: list[tuple[str, tuple[int, ...]]]) -> torch.Tensor:
        """Several tensors, one under the other."""
        return torch.cat([self.take(name, shape) for name, shape in names])

    def refuse_left_over(self) -> None:
        known = ("rotary_emb.inv_freq", "lm_head.weight")
        left = sorted(name for name in self._left if not name.endswith(known))
        if left:
            raise ConfigError(f"{self._checkpoint.folder}: tensor {left[0]}: not part of a model of this kind ({len(left)} such)")


def _layer(source: _Source, shape: ModelShape, at: str) -> LayerWeights:
    hidden, dim = shape.hidden, shape.head_dim
    rows = {"q": shape.heads * dim, "k": shape.kv_heads * dim, "v": shape.kv_heads * dim}
    bias: list[tuple[str, tuple[int, ...]]] = [(f"{at}self_attn.{part}_proj.bias", (size,)) for part, size in rows.items()]
    return LayerWeights(
        input_norm=source.take(f"{at}input_layernorm.weight", (hidden,)),
        qkv=source.together([(f"{at}self_attn.{part}_proj.weight", (size, hidden)) for part, size in rows.items()]),
        qkv_bias=source.together(bias) if shape.qkv_bias else None,
        q_norm=source.take(f"{at}self_attn.q_norm.weight", (dim,)) if shape.qk_norm else None,
        k_norm=source.take(f"{at}self_attn.k_norm.weight", (dim,)) if shape.qk_norm else None,
        out=source.take(f"{at}self_attn.o_proj.weight", (hidden, shape.heads * dim)),
        post_norm=source.take(f"{at}post_attention_layernorm.weight", (hidden,)),
        gate_up=source.together([(f"{at}mlp.{part}_proj.weight", (shape.intermediate, hidden)) for part in ("gate", "up")]),
        down=source.take(f"{at}mlp.down_proj.weight", (hidden, shape.intermediate)),
    )
