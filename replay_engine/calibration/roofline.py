"""Coefficients from a model's sizes and an accelerator's peaks: an estimate, before anything was measured.

Each cost is work over peak, over the share of the peak that was reached for it elsewhere. The shares come from the shipped
profiles, which are published fits of measured operations: those of the same card where there is one, else the median of all, with
their range as the uncertainty. Nothing here beats the peaks, since no share exceeds 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from replay_engine.calibration.accelerators import Accelerator
from replay_engine.calibration.model_config import ReadModel
from replay_engine.config import ConfigError
from replay_engine.profile import HardwareFacts, Latency, ModelFacts, Profile, list_profiles

__all__ = ["Roofline", "Share", "reached", "roofline", "shares_for"]

HOST_NS = 1_000_000.0
FAST_LINK = 200e9
STEP_NS = {True: 10_000.0, False: 30_000.0}
"""An all-reduce of a few kilobytes, by whether cards have links of their own (above ``FAST_LINK``) or PCIe: estimates."""
LLAMA_HEADS = 32
"""Of the model of all shipped profiles: query heads, which profiles do not say."""
WHAT = {
    "weights": "weights read at peak bandwidth", "flops": "matrix products at peak FLOPs", "kv": "KV read at peak bandwidth",
    "attention": "attention of prompts at peak FLOPs", "decode": "cost of a decoding sequence beside a prompt token",
    "start": "an iteration with prefill before its tokens, beside one without",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What part of a peak is reached: the value taken, from and to over the shipped profiles, and whose it is."""

    value: float
    low: float
    high: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """An estimated latency, the hardware it is for, the shares behind it, and the source of each coefficient."""

    latency: Latency
    hardware: HardwareFacts
    shares: dict[str, Share]
    sources: dict[str, str]


def attention_flops(layers: int, heads: int, head_dim: int) -> float:
    """Of one query token and one context token: a product each with its key and its value."""
    return 4.0 * layers * heads * head_dim


def reached(profile: Profile) -> dict[str, float]:
    """By kind of work (``WHAT``), what a shipped profile reaches of its card's peaks."""
    model, hardware, cost = profile.model, profile.hardware, profile.latency
    assert model is not None and hardware is not None
    flops, bandwidth = hardware.peak_flops, hardware.bandwidth_bytes_s
    return {
        "weights": model.weight_bytes / bandwidth * 1e9 / cost.floor_ns,
        "flops": 2 * model.parameters / flops * 1e9 / cost.b_ns,
        "kv": model.kv_bytes_per_token / bandwidth * 1e9 / cost.e_ns,
        "attention": attention_flops(model.layers, LLAMA_HEADS, model.head_dim) / flops * 1e9 / cost.c_ns,
        "decode": cost.d_ns / cost.b_ns,
        "start": cost.a_ns / cost.floor_ns,
    }


def shares_for(card: Accelerator, leaving_out: str | None = None) -> dict[str, Share]:
    """The shares taken for ``card``; ``leaving_out`` a shipped profile, as if it were not there."""
    known = {profile.name: reached(profile) for profile in list_profiles() if profile.name != leaving_out}
    found = {}
    for kind in WHAT:
        values = {name: each[kind] for name, each in known.items()}
        own = card.profile if card.profile in values else None
        source = f"published profile of this card, {own}" if own else f"median of {len(values)} published profiles"
        value = values[own] if own else median(values.values())
        found[kind] = Share(value=value, low=min(values.values()), high=max(values.values()), source=source)
    return found


def roofline(model: ReadModel, card: Accelerator, tensor_parallel: int = 1, shares: dict[str, Share] | None = None) -> Roofline:
    """The estimate for ``tensor_parallel`` cards. ``ConfigError``: the heads do not divide, or the weights do not fit."""
    facts = model.facts
    if model.heads % tensor_parallel:
        raise ConfigError(f"tensor parallel {tensor_parallel}: expected a divisor of the model's {model.heads} attention heads")
    if facts.weight_bytes / tensor_parallel > card.memory_bytes:
        need = facts.weight_bytes / tensor_parallel / 1e9
        raise ConfigError(f"{facts.name}: {need:.0f} GB of weights a card; expected at most {card.memory_bytes / 1e9:.0f} GB")
    low_precision = model.dtype == "fp8" and card.peak_fp8 is not None
    peak = (card.peak_fp8 if low_precision and card.peak_fp8 else card.peak_bf16) * tensor_parallel
    bandwidth = card.bandwidth_bytes_s * tensor_parallel
    used = shares_for(card) if shares is None else shares
    exchange, per_token = _exchanged(facts, card, tensor_parallel)
    floor = facts.weight_bytes / bandwidth * 1e9 / used["weights"].value + exchange
    b = 2 * facts.parameters / peak * 1e9 / used["flops"].value + per_token
    pairs = attention_flops(facts.layers, model.heads, facts.head_dim)
    latency = Latency(
        floor_ns=floor, a_ns=floor * used["start"].value, b_ns=b,
        c_ns=pairs / (card.peak_bf16 * tensor_parallel) * 1e9 / used["attention"].value,
        d_ns=b * used["decode"].value, e_ns=facts.kv_bytes_per_token / bandwidth * 1e9 / used["kv"].value, h0_ns=HOST_NS,
    )  # fmt: skip
    hardware = HardwareFacts(
        name=card.name, memory_bytes=card.memory_bytes, peak_flops=peak / tensor_parallel,
        bandwidth_bytes_s=card.bandwidth_bytes_s, count=tensor_parallel, tensor_parallel=tensor_parallel,
    )  # fmt: skip
    return Roofline(latency=latency, hardware=hardware, shares=used, sources=_sources(used, tensor_parallel))


def _exchanged(model: ModelFacts, card: Accelerator, cards: int) -> tuple[float, float]:
    """ns of all-reduces an iteration, and a token: two in each layer, 16 bits an element, in a ring."""
    if cards == 1:
        return 0.0, 0.0
    step = STEP_NS[card.link_bytes_s > FAST_LINK]
    moved = 2 * (cards - 1) / cards * 2 * model.hidden_size
    return 2 * model.layers * step, 2 * model.layers * moved / card.link_bytes_s * 1e9


def _sources(shares: dict[str, Share], cards: int) -> dict[str, str]:
    kinds = {"floor_ns": "weights", "a_ns": "start", "b_ns": "flops", "c_ns": "attention", "d_ns": "decode", "e_ns": "kv"}
    found = {}
    for key, kind in kinds.items():
        share = shares[kind]
        ring = ", and all-reduces over its links" if cards > 1 and key in ("floor_ns", "b_ns") else ""
        found[key] = f"estimate: {WHAT[kind]}, {share.value:.2f} ({share.source}; {share.low:.2f} to {share.high:.2f}){ring}"
    return found | {"h0_ns": "estimate: sources say 0.5 to 3 ms of engine host time an iteration", "h1_ns": "estimate",
                    "h2_ns": "estimate"}  # fmt: skip
