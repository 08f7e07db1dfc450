"""What vLLM's API server would choose where a policy says nothing: by hardware, then clipped to what fits.

Source of the table: vLLM 0.33's engine arguments. The number of KV blocks cannot be known without loading the model;
it is ``(utilization x memory - weights - activations - overhead) / block bytes``, an estimate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replay_engine.config import ConfigError, SchedulerConfig, cdiv
from replay_engine.profile import HardwareFacts, ModelFacts, Profile
from replay_engine.settings_file import one_line
from replay_engine.vllm_flags import SIZING

__all__ = ["activation_bytes", "derive_scheduler", "estimate_blocks", "serving_defaults"]

GIB = 2**30
OVERHEAD_BYTES = GIB // 2
"""CUDA context, graphs and communication buffers on a card, an estimate."""
DEFAULT_UTILIZATION = 0.92


def serving_defaults(hardware: HardwareFacts | None) -> tuple[int, int]:
    """``(max_num_batched_tokens, max_num_seqs)`` of the API server on this hardware."""
    gib = 0.0 if hardware is None else hardware.memory_bytes / GIB
    name = "" if hardware is None else hardware.name.lower()
    if gib >= 160:
        return 16384, 1024
    if hardware is None or (gib >= 70 and "a100" not in name and "gb10" not in name):
        return 8192, 1024
    return 2048, 256


def activation_bytes(model: ModelFacts, tokens: int, seqs: int, cards: int = 1) -> int:
    """Peak transient memory of the profiling run: the larger of one layer's activations and the logits with their
    fp32 copy and sort buffer."""
    layer = tokens * 2 * (4 * model.hidden_size + 3 * model.intermediate_size // cards)
    logits = seqs * model.vocab_size * 10
    return max(layer, logits)


def estimate_blocks(profile: Profile, block_size: int, tokens: int, seqs: int, settings: Mapping[str, Any]) -> int:
    """KV blocks (null block included) that fit beside the weights; without model or hardware, the config's default."""
    model, hardware = profile.model, profile.hardware
    if model is None or hardware is None:
        return SchedulerConfig().num_gpu_blocks
    cards = hardware.tensor_parallel
    share = settings.get("gpu_memory_utilization", DEFAULT_UTILIZATION)
    if not isinstance(share, int | float) or isinstance(share, bool) or not 0 < share <= 1:
        raise ConfigError(f"gpu_memory_utilization = {one_line(share)}: expected a share of the memory, 0 to 1")
    free = share * hardware.memory_bytes - model.weight_bytes / cards - activation_bytes(model, tokens, seqs, cards)
    free = settings.get("kv_cache_memory_bytes") or free - OVERHEAD_BYTES
    blocks = int(free / (model.kv_bytes_per_token * block_size / cards))
    if blocks < 2:
        raise ConfigError(
            f"num_gpu_blocks: {model.name} leaves {free / GIB:.1f} GiB for KV on {hardware.name};"
            f" expected more memory, or num_gpu_blocks given"
        )
    return blocks


def derive_scheduler(settings: Mapping[str, Any], profile: Profile) -> tuple[SchedulerConfig, tuple[str, ...]]:
    """All knobs from the given ones, and a note for each value that is estimated or was clipped to fit.

    Given values are never changed: if they contradict each other, ``ConfigError``.
    """
    knobs = {key: value for key, value in settings.items() if key not in SIZING}
    unused = [key for key in SIZING if key in settings and "num_gpu_blocks" in settings]
    notes = [f"{key} is not used: num_gpu_blocks is given" for key in unused]
    block_size = knobs.get("block_size", 16)
    tokens, seqs = serving_defaults(profile.hardware)
    tokens, seqs = knobs.get("max_num_batched_tokens", tokens), knobs.get("max_num_seqs", seqs)
    if not all(isinstance(n, int) and n > 0 for n in (block_size, tokens, seqs, knobs.get("num_gpu_blocks", 2))):
        SchedulerConfig(**knobs)  # raises, with the knob's own message
    if "num_gpu_blocks" not in knobs:
        knobs["num_gpu_blocks"] = estimate_blocks(profile, block_size, tokens, min(seqs, tokens), settings)
        notes.append(_blocks_note(profile, knobs["num_gpu_blocks"], block_size, settings))
    if "max_model_len" not in knobs:
        fits = (knobs["num_gpu_blocks"] - 1) * block_size
        wanted = profile.model.max_model_len if profile.model else 131072
        knobs["max_model_len"] = min(wanted, fits)
        if fits < wanted:
            notes.append(f"max_model_len = {fits}: the model's {wanted} cut to what {cdiv(fits, block_size)} blocks hold")
    length = knobs["max_model_len"]
    if "max_num_batched_tokens" not in knobs and isinstance(length, int):
        tokens = min(tokens, seqs * length)
        tokens = tokens if knobs.get("enable_chunked_prefill", True) else max(tokens, length)
        knobs["max_num_batched_tokens"] = tokens
    knobs.setdefault("max_num_seqs", min(seqs, tokens))
    return SchedulerConfig(**knobs), tuple(notes)


def _blocks_note(profile: Profile, blocks: int, block_size: int, settings: Mapping[str, Any]) -> str:
    tokens = f"{(blocks - 1) * block_size:,} tokens"
    if profile.model is None or profile.hardware is None:
        return f"num_gpu_blocks = {blocks} ({tokens}): a placeholder, the profile has no model or hardware"
    share = settings.get("gpu_memory_utilization", DEFAULT_UTILIZATION)
    basis = "kv_cache_memory_bytes" if settings.get("kv_cache_memory_bytes") else f"{share:g} of {profile.hardware.name}'s memory"
    return f"num_gpu_blocks = {blocks} ({tokens}): an estimate from {basis}; vLLM prints the real one at start"
