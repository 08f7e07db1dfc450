"""A finished calibration: coefficients, how far they can be trusted, what they imply of the hardware, and the profile."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from replay_engine.calibration.fit import FEWEST, Held, fit_device, fit_latency, held_out, predicted_device
from replay_engine.calibration.samples import Samples
from replay_engine.profile import HardwareFacts, Latency, ModelFacts, Profile, list_profiles

__all__ = ["Calibration", "calibrate_samples", "implied", "in_replay_factor", "joined", "known_peaks", "profile_of"]

REPLAY_SHARE = 2.0
"""How much the iterations of a replay count beside exact batches: what is to be predicted is replays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """``latency`` over all modes, which is what the simulator takes; ``by_mode`` the device's part of each mode alone, padded
    rows counted. ``held``: error on unseen shapes, ``None`` where there were too few. ``ranges``: what was measured, from and
    to. ``factor``: as ``in_replay_factor`` says."""

    latency: Latency
    held: Held | None
    by_mode: dict[str, Latency]
    error: float
    iterations: int
    ranges: dict[str, tuple[float, float]]
    factor: float | None = None
    sources: dict[str, str] = field(default_factory=dict)


def in_replay_factor(batches: Samples, replay: Samples) -> float:
    """How many times as long an iteration takes within a replay as the same batch run over and over with warm caches: the median
    over the replay's iterations of measured over predicted from ``batches``."""
    return float(np.median(replay.device_ns / predicted_device(fit_device(batches), replay)))


def joined(batches: Samples, replay: Samples) -> tuple[Samples, float]:
    """Both as one, the batches' times raised to what they are within a replay, and by what factor."""
    factor = in_replay_factor(batches, replay)
    raised = replace(batches, device_ns=batches.device_ns * factor)
    return raised.weighing(1.0) + replay.weighing(REPLAY_SHARE), factor


def calibrate_samples(samples: Samples, *, factor: float | None = None, sources: dict[str, str] | None = None) -> Calibration:
    """Fit and judge. ``ConfigError``: too few iterations."""
    latency = fit_latency(samples)
    modes = {str(mode): samples.part(samples.mode == mode) for mode in np.unique(samples.mode)}
    by_mode = {name: fit_device(part, padded=True) for name, part in modes.items() if len(part) >= FEWEST}
    columns = {"prefill_tokens": samples.tokens, "decode_seqs": samples.seqs, "decode_kv_tokens": samples.kv}
    ranges = {name: (float(values.min()), float(values.max())) for name, values in columns.items()}
    if latency.s_ns:  # contexts that are all as long are within whatever it was fitted on
        ranges["skew_tokens"] = (0.0, float(samples.above.max()))
    off = np.abs(predicted_device(latency, samples) / samples.device_ns - 1)
    return Calibration(
        latency=latency, held=held_out(samples), by_mode=by_mode, error=float(np.median(off)), iterations=len(samples),
        ranges=ranges, factor=factor, sources=sources or {},
    )  # fmt: skip


def implied(latency: Latency, model: ModelFacts, peaks: HardwareFacts | None) -> list[tuple[str, str]]:
    """What the coefficients say of the hardware, with the share of its peak where that is known: lines of (what, value)."""
    facts: list[tuple[str, float | None, str, float, str]] = [
        ("prompt tokens", 2 * model.parameters / latency.b_ns * 1e9 if latency.b_ns else None, "TFLOP/s", 1e12, "peak_flops"),
        ("weights", model.weight_bytes / latency.floor_ns * 1e9 if latency.floor_ns else None, "GB/s", 1e9, "bandwidth_bytes_s"),
        ("KV reads", model.kv_bytes_per_token / latency.e_ns * 1e9 if latency.e_ns else None, "GB/s", 1e9, "bandwidth_bytes_s"),
    ]
    token, pair = 2 * model.parameters, 4 * model.layers * model.hidden_size
    facts += [
        # heads are not known here: those of most models together are as wide as the model
        ("attention of prompts", pair / latency.c_ns * 1e9 if latency.c_ns else None, "TFLOP/s", 1e12, "peak_flops"),
        ("decoding sequences", token / latency.d_ns * 1e9 if latency.d_ns else None, "TFLOP/s", 1e12, "peak_flops"),
    ]
    if latency.s_ns:
        reads = model.kv_bytes_per_token / latency.s_ns * 1e9
        facts.append(("KV reads of the longest context alone", reads, "GB/s", 1e9, "bandwidth_bytes_s"))
    if latency.p_ns:
        facts.append(("rows of padding", token / latency.p_ns * 1e9, "TFLOP/s", 1e12, "peak_flops"))
    lines = []
    for what, value, unit, scale, peak in facts:
        if value is None:
            lines.append((what, "nothing: the coefficient is 0"))
            continue
        share = "" if peaks is None else _of_peak(value / (getattr(peaks, peak) * peaks.tensor_parallel), what)
        lines.append((what, f"{value / scale:.4g} {unit}{share}"))
    return lines


def _of_peak(share: float, what: str) -> str:
    if share <= 1:
        return f", {share:.0%} of peak"
    # a decoding sequence's products cost nothing of their own while the weights they need are still on their way
    hidden = what in ("decoding sequences", "rows of padding")
    why = "hidden behind the reads of the weights" if hidden else "too low a cost for this card; what was fitted hardly tells it"
    return f", beyond the peak: {why}"


def known_peaks(device: str, memory_bytes: int) -> HardwareFacts | None:
    """Peak numbers of ``device`` (as its driver names it) from the shipped profiles; ``None``: none has them."""
    for profile in list_profiles():
        if profile.hardware is not None and profile.hardware.name.split()[0].lower() in device.lower().split():
            return replace(profile.hardware, name=device, memory_bytes=memory_bytes, count=1, tensor_parallel=1)
    return None


def profile_of(
    found: Calibration, *, name: str, kind: str, model: ModelFacts | None, hardware: HardwareFacts | None, peaks: bool
) -> Profile:
    """The profile to be written. Without ``peaks`` there is nothing to hold it against, and it says so.

    ``ConfigError``: it beats the hardware's peaks.
    """
    fit: dict[str, Any] = {"median_error": round(found.error, 5), "iterations": found.iterations}
    fit |= {f"fitted_{what}": list(span) for what, span in found.ranges.items()}
    if found.held is not None:
        fit |= {"held_out_shapes": len(found.held.shapes), "held_out_median_error": round(found.held.median, 5)}
        fit |= {"held_out_p90_error": round(found.held.p90, 5)}
    if found.factor is not None:
        fit["in_replay_factor"] = round(found.factor, 5)
    if not peaks:
        fit["note"] = "physics is off because no peak numbers of this hardware are known to hold the coefficients against"
    if len(found.by_mode) > 1:
        fit["mode"] = {
            mode: {k: v for k, v in each.costs().items() if not k.startswith("h")} for mode, each in found.by_mode.items()
        }
    device, host = found.sources.get("device", "fitted"), found.sources.get("host", "fitted")
    numbers = {key: host if key.startswith("h") else device for key in found.latency.costs()}
    provenance = {"kind": kind, **numbers, **{k: v for k, v in found.sources.items() if k not in ("device", "host")}}
    return Profile(
        name=name, latency=found.latency, model=model, hardware=hardware, synthetic=not peaks, fit=fit, provenance=provenance
    )
