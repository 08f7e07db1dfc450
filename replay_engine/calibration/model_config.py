"""Model facts from a Hugging Face ``config.json``: dense decoders with gated MLPs, which is what the latency form describes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replay_engine.config import ConfigError
from replay_engine.profile import ModelFacts
from replay_engine.settings_file import file_name, one_line

__all__ = ["DTYPE_BYTES", "ReadModel", "read_model"]

DTYPE_BYTES = {"bfloat16": 2.0, "float16": 2.0, "float32": 4.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}
KV_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "fp8": 1}
_ALIASES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float8": "fp8", "fp8_e4m3": "fp8",
            "fp8_e5m2": "fp8", "awq": "int4", "gptq": "int4", "w4a16": "int4", "w8a8": "int8"}  # fmt: skip
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_NEEDED = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadModel:
    """Facts, the type of its weights (a key of ``DTYPE_BYTES``), heads, and where the weights' size comes from."""

    facts: ModelFacts
    dtype: str
    kv_dtype: str
    heads: int
    weights: str


def read_model(path: Path, dtype: str | None = None, kv_dtype: str | None = None) -> ReadModel:
    """``path`` is the file or its folder. ``dtype`` and ``kv_dtype`` replace what it says. ``ConfigError``: what is missing or
    does not fit the latency form."""
    file = path / "config.json" if path.is_dir() else path
    config = _read(file)
    where = file_name(file.name if file.name != "config.json" else f"{file.resolve().parent.name}/config.json")
    for key in _EXPERTS:
        if isinstance(config.get(key), int) and config[key] > 1:
            raise ConfigError(
                f"{where}: {key} = {config[key]}: the experts that an iteration reads depend on its tokens, which one floor"
                " does not say; expected a dense model, or a profile fitted to a log"
            )
    if config.get("kv_lora_rank"):
        raise ConfigError(f"{where}: kv_lora_rank: latent attention is not in this form; expected a profile fitted to a log")
    sizes = {key: _whole(config, key, where) for key in _NEEDED}
    kept = _dtype(dtype, where) or _quantised(config, where) or _dtype(config.get("torch_dtype") or config.get("dtype"), where)
    kept = kept or "bfloat16"
    kv = _dtype(None if kv_dtype in (None, "auto") else kv_dtype, where) or (
        kept if kept in ("float32", "float16") else "bfloat16"
    )
    if kv not in KV_BYTES:
        raise ConfigError(f"kv_dtype {one_line(kv_dtype)}: expected one of {', '.join(KV_BYTES)}")
    return _facts(config, sizes, kept, kv, file, where, stored=dtype is None)


def _facts(
    config: Mapping[str, Any], sizes: dict[str, int], dtype: str, kv: str, file: Path, where: str, *, stored: bool
) -> ReadModel:
    hidden, layers, heads = sizes["hidden_size"], sizes["num_hidden_layers"], sizes["num_attention_heads"]
    kv_heads = _whole(config, "num_key_value_heads", where, heads)
    head_dim = _whole(config, "head_dim", where, hidden // heads)
    layer = hidden * ((2 * heads + 2 * kv_heads) * head_dim + 3 * sizes["intermediate_size"]) + 2 * hidden
    embedding = sizes["vocab_size"] * hidden
    parameters = layers * layer + hidden + embedding * (1 if config.get("tie_word_embeddings") else 2)
    told = _stored_bytes(file.parent) if stored else None
    # embeddings and the output stay in 16 bits where the layers are quantised
    rest = parameters - layers * layer
    size = DTYPE_BYTES[dtype]
    counted = int(layers * layer * size + rest * max(size, 2.0))
    facts = ModelFacts(
        name=str(config.get("_name_or_path") or file.resolve().parent.name or "model").rsplit("/", 1)[-1], dtype=dtype,
        parameters=parameters, weight_bytes=told or counted, layers=layers, kv_heads=kv_heads, head_dim=head_dim,
        kv_bytes_per_token=2 * layers * kv_heads * head_dim * KV_BYTES[kv], hidden_size=hidden,
        intermediate_size=sizes["intermediate_size"], vocab_size=sizes["vocab_size"],
        max_model_len=_whole(config, "max_position_embeddings", where, 2048),
    )  # fmt: skip
    source = "the index of its shards" if told else f"counted from the configuration, {size:g} bytes a weight of a layer"
    return ReadModel(facts=facts, dtype=dtype, kv_dtype=kv, heads=heads, weights=source)


def _read(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file_name(file)}: {error.strerror or 'cannot be read'}; expected a model's config.json") from None
    except ValueError:
        raise ConfigError(f"{file_name(file)}: not JSON; expected a model's config.json") from None
    if not isinstance(document, Mapping):
        raise ConfigError(f"{file_name(file)}: expected a JSON object")
    inner = document.get("text_config")  # models that also see images keep the decoder's sizes there
    return {**document, **inner} if isinstance(inner, Mapping) else dict(document)


def _whole(config: Mapping[str, Any], key: str, where: str, default: int | None = None) -> int:
    value = config.get(key, default)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        shown = "is missing" if value is None else f"= {one_line(value)}"
        raise ConfigError(f"{where}: {key} {shown}: expected a whole number above 0")
    return value


def _dtype(name: object, where: str) -> str | None:
    if name is None:
        return None
    plain = str(name).lower().removeprefix("torch.")
    plain = _ALIASES.get(plain, plain)
    if plain not in DTYPE_BYTES:
        raise ConfigError(f"{where}: dtype {one_line(name)}: expected one of {', '.join(DTYPE_BYTES)}")
    return plain


def _quantised(config: Mapping[str, Any], where: str) -> str | None:
    table = config.get("quantization_config")
    if not isinstance(table, Mapping):
        return None
    method = str(table.get("quant_method", "")).lower()
    if "fp8" in method:
        return "fp8"
    bits = table.get("bits") or table.get("w_bit")
    if method in ("awq", "gptq") and bits in (4, 8):
        return "int4" if bits == 4 else "int8"
    raise ConfigError(f"{where}: quantization_config {one_line(method)}: not known here; expected --dtype fp8, int8 or int4")


def _stored_bytes(folder: Path) -> int | None:
    try:
        total = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))["metadata"]["total_size"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return int(total) if isinstance(total, int | float) and total > 0 else None
