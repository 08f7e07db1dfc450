"""What a dense decoder model is made of: its sizes, from a shipped list or from a Hugging Face ``config.json``.

Three families share one body: Llama 3, Qwen2/2.5 (bias on q, k, v) and Qwen3 (RMSNorm on each head of q and k). What the body
does not compute is refused here, in one line, before any weight is read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replay_engine.config import ConfigError
from replay_engine.settings_file import nearest, one_line

__all__ = ["SHIPPED", "ModelShape", "RopeScaling", "find_shape", "read_config"]

FAMILIES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}
_SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Llama 3's stretch of the slow rotary frequencies (``rope_type = llama3``)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a model. ``qkv_bias``: q, k and v have a bias; ``qk_norm``: q and k are normed head by head."""

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_positions: int
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    eps: float = 1e-6
    qkv_bias: bool = False
    qk_norm: bool = False
    tied: bool = False

    @property
    def qkv_size(self) -> int:
        """Columns of the packed projection of q, k and v."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def parameters(self) -> int:
        """Number of weights, a tied output projection counted once."""
        layer = self.hidden * (self.qkv_size + self.heads * self.head_dim + 3 * self.intermediate) + 2 * self.hidden
        layer += self.qkv_size if self.qkv_bias else 0
        layer += 2 * self.head_dim if self.qk_norm else 0
        return self.layers * layer + self.hidden + self.vocab * self.hidden * (1 if self.tied else 2)

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * element_bytes

    def inverse_frequencies(self) -> list[float]:
        """Radians per position of each pair of a head's elements, [head_dim / 2]."""
        plain = [self.rope_theta ** (-2 * i / self.head_dim) for i in range(self.head_dim // 2)]
        if self.rope_scaling is None:
            return plain
        return [_stretched(frequency, self.rope_scaling) for frequency in plain]


def _stretched(frequency: float, scaling: RopeScaling) -> float:
    """Slow frequencies divided by the factor, fast ones kept, a linear blend in between."""
    turns = scaling.original_positions * frequency / (2 * math.pi)
    if turns < scaling.low_freq_factor:
        return frequency / scaling.factor
    if turns > scaling.high_freq_factor:
        return frequency
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return frequency * (kept + (1 - kept) / scaling.factor)


SHIPPED: dict[str, ModelShape] = {
    shape.name: shape
    for shape in (
        ModelShape(
            name="tiny", hidden=256, intermediate=512, layers=4, heads=8, kv_heads=2, head_dim=32, vocab=2048,
            max_positions=131072, qk_norm=True,
        ),
        ModelShape(
            name="qwen3-0.6b", hidden=1024, intermediate=3072, layers=28, heads=16, kv_heads=8, head_dim=128, vocab=151936,
            max_positions=40960, rope_theta=1e6, qk_norm=True, tied=True,
        ),
        ModelShape(
            name="llama-3.1-8b", hidden=4096, intermediate=14336, layers=32, heads=32, kv_heads=8, head_dim=128, vocab=128256,
            max_positions=131072, rope_theta=5e5, eps=1e-5,
            rope_scaling=RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_positions=8192),
        ),
    )
}  # fmt: skip
"""Shapes that come with dummy weights; ``tiny`` is for CPUs."""


def find_shape(model: str) -> ModelShape:
    """The shape of a shipped model, or of the Hugging Face directory ``model``. ``ConfigError``: neither, or unsupported."""
    shipped = SHIPPED.get(model.lower())
    if shipped is not None:
        return shipped
    folder = Path(model)
    if not folder.is_dir():
        raise ConfigError(f"model {one_line(model)}: no such model; {nearest(model, list(SHIPPED))}, or a Hugging Face directory")
    return read_config(folder)


def read_config(folder: Path) -> ModelShape:
    """The shape that ``folder/config.json`` describes; both spellings of the rotary settings are read."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or 'cannot be read'}; expected a Hugging Face model directory") from None
    except ValueError:
        raise ConfigError(f"{path}: not JSON; expected a Hugging Face model's config") from None
    if not isinstance(config, Mapping):
        raise ConfigError(f"{path}: expected a JSON object")
    family = _family(config, path)
    _refuse_what_is_not_built(config, family, path)
    sizes = {name: _whole(config, name, path) for name in _SIZES}
    heads = sizes["num_attention_heads"]
    kv_heads = _whole(config, "num_key_value_heads", path, heads)
    head_dim = _whole(config, "head_dim", path, sizes["hidden_size"] // heads)
    if heads % kv_heads:
        raise ConfigError(f"{path}: num_key_value_heads = {kv_heads}: expected a divisor of num_attention_heads = {heads}")
    if head_dim % 2:
        raise ConfigError(f"{path}: head_dim = {head_dim}: expected an even number")
    theta, scaling = _rope(config, path)
    return ModelShape(
        name=folder.resolve().name, hidden=sizes["hidden_size"], intermediate=sizes["intermediate_size"],
        layers=sizes["num_hidden_layers"], heads=heads, kv_heads=kv_heads, head_dim=head_dim, vocab=sizes["vocab_size"],
        max_positions=_whole(config, "max_position_embeddings", path, 2048), rope_theta=theta, rope_scaling=scaling,
        eps=float(config.get("rms_norm_eps", 1e-6)), qkv_bias=_has_bias(config, family), qk_norm=family == "qwen3",
        tied=bool(config.get("tie_word_embeddings", False)),
    )  # fmt: skip


def _family(config: Mapping[str, Any], path: Path) -> str:
    names = config.get("architectures") or []
    for name in names:
        if name in FAMILIES:
            return FAMILIES[name]
    model_type = config.get("model_type")
    if not names and model_type in FAMILIES.values():
        return str(model_type)
    shown = one_line(", ".join(map(str, names)) or model_type)
    raise ConfigError(f"{path}: architectures = {shown}: not supported; expected one of {', '.join(FAMILIES)}")


def _has_bias(config: Mapping[str, Any], family: str) -> bool:
    return family == "qwen2" or bool(config.get("attention_bias", False))


def _refuse_what_is_not_built(config: Mapping[str, Any], family: str, path: Path) -> None:
    refused = (
        ("quantization_config", config.get("quantization_config") is not None, "quantized weights", "plain bf16, fp16 or fp32"),
        ("use_sliding_window", bool(config.get("use_sliding_window", False)), "windowed attention", "full attention"),
        ("mlp_bias", bool(config.get("mlp_bias", False)), "a bias in the MLP", "none"),
        ("attention_bias", family == "llama" and bool(config.get("attention_bias")), "a bias on the output projection", "none"),
        ("hidden_act", config.get("hidden_act", "silu") not in ("silu", "swish"), "this activation", "silu"),
    )
    for name, present, what, expected in refused:
        if present:
            raise ConfigError(f"{path}: {name} = {one_line(config[name])}: {what} is not supported; expected {expected}")


def _whole(config: Mapping[str, Any], name: str, path: Path, default: int | None = None) -> int:
    value = config.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{path}: {name} = {one_line(value)}: expected a whole number above 0")
    return value


def _rope(config: Mapping[str, Any], path: Path) -> tuple[float, RopeScaling | None]:
    """Base and stretch of the rotary embedding: newer files keep both in ``rope_parameters``, older ones apart."""
    table = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(table.get("rope_theta", config.get("rope_theta", 10000.0)))
    kind = table.get("rope_type", table.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise ConfigError(f"{path}: rope_type = {one_line(kind)}: not supported; expected default or llama3")
    try:
        scaling = RopeScaling(
            factor=float(table["factor"]), low_freq_factor=float(table["low_freq_factor"]),
            high_freq_factor=float(table["high_freq_factor"]), original_positions=int(table["original_max_position_embeddings"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: rope_type = llama3: {one_line(error)} is missing or no number") from None
    return theta, scaling
