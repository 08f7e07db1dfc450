"""In which regime a replay runs, how much its latencies hang on the step time, and where it leaves what was measured."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from replay_engine.profile import Profile
from replay_engine.tables import LONGEST
from replay_engine.types import Refusal

if TYPE_CHECKING:
    from tracekit.diagnosis.run_data import RunData

__all__ = ["RANGES", "extrapolation", "load_of", "reached_in", "regime_words", "slowed"]

Floats = npt.NDArray[np.float64]
STEEP, LOADED = 4.0, 1.5
"""From which sensitivity of TTFT on a replay counts as near saturation, or as loaded."""
MOSTLY, SOME, FULL = 0.5, 0.05, 0.9
"""Shares of the busy time in which requests wait: from the first on an engine is overloaded, where it is busy ``FULL`` of all."""
RANGES = {
    "fitted_prefill_tokens": ("prefill_tokens", "prefill tokens"), "fitted_decode_seqs": ("decode_seqs", "decoding sequences"),
    "fitted_decode_kv_tokens": ("decode_kv_tokens", "KV tokens of decodes"),
    "fitted_skew_tokens": ("skew_tokens", "tokens of the longest context above the mean"),
}  # fmt: skip
"""What a profile says of its fit: which column of iterations it is of (``reached_in``), and what that is called."""


def reached_in(rows: npt.NDArray[np.void], column: str) -> Floats | None:
    """The values of ``column`` by iteration, tokens or sequences. ``skew_tokens`` follows from the longest context, and is
    ``None`` where nobody wrote that down."""
    if column != "skew_tokens":
        found: Floats = rows[column].astype(np.float64)
        return found
    if LONGEST[0] not in (rows.dtype.names or ()):
        return None
    above: Floats = rows[LONGEST[0]] - rows["decode_kv_tokens"] / np.maximum(rows["decode_seqs"], 1)
    return np.maximum(above, 0.0)


def slowed(profile: Profile, factor: float) -> Profile:
    """The profile with every cost ``factor`` times as high; above 1 no physical floor can be in the way."""
    return replace(profile, latency=profile.latency.times(factor))


def load_of(data: RunData) -> dict[str, Any]:
    """Shares of the engine's time (all replicas): busy, with requests waiting, with the head refused and by what; KV high-water
    as a share; preemptions."""
    rows = data.iterations
    if not len(rows):
        return {}
    duration = rows["duration_ns"].astype(np.float64)
    total = float(duration.sum())
    replicas = len(np.unique(rows["replica"]))
    span = float((rows["start_ns"] + rows["duration_ns"]).max() - rows["start_ns"].min()) * replicas
    refused = {
        Refusal(int(code)).name: float(duration[rows["head_refused_by"] == code].sum() / total)
        for code in np.unique(rows["head_refused_by"]) if int(code) != int(Refusal.none)
    }  # fmt: skip
    blocks = max(data.engine_of(int(replica)).usable_blocks for replica in np.unique(rows["replica"]))
    return {
        "busy": total / span if span else 0.0,
        "waiting": float(duration[rows["waiting"] > 0].sum() / total),
        "refused_by": dict(sorted(refused.items(), key=lambda each: -each[1])),
        "kv_high_water": float(rows["kv_used"].max() / blocks),
        "preemptions": int(rows["preempted"].sum()),
        "running_max": int(rows["running"].max()), "waiting_max": int(rows["waiting"].max()),
    }  # fmt: skip


def regime_words(load: dict[str, Any], sensitivity: float | None) -> str:
    """One line: the regime by how TTFT answers to the step time, and what stands in the way of the queue's head."""
    if sensitivity is None or not load:
        return "load regime: unknown"
    loaded = sensitivity > LOADED or load["waiting"] > SOME
    name = "near saturation" if sensitivity > STEEP else "loaded" if loaded else "light"
    if load["waiting"] > MOSTLY:  # of the busy time: an engine that idles between is not too small, its traffic comes bunched
        name = "overloaded" if load["busy"] > FULL else "loaded in bursts"
    text = f"load regime: {name}; in the replay the engine is busy {load['busy']:.0%} of the time, and requests wait in"
    text += f" {load['waiting']:.0%} of that"
    if load["refused_by"]:
        reason, share = next(iter(load["refused_by"].items()))
        text += f" (the first of the queue for {reason} in {share:.0%})"
    return f"{text}; a step time 1 % longer makes the mean TTFT {sensitivity:.1f} % longer"


def extrapolation(profile: Profile, rows: npt.NDArray[np.void]) -> list[dict[str, Any]]:
    """Per range that the profile states: the share of the engine's time spent outside of it, and how far it goes."""
    found = []
    total = float(rows["duration_ns"].sum()) if len(rows) else 0.0
    for key, (column, words) in RANGES.items():
        span, values = profile.fit.get(key), reached_in(rows, column)
        if not total or values is None or not isinstance(span, list | tuple) or len(span) != 2:
            continue
        low, high = float(span[0]), float(span[1])
        outside = (values > high) | ((values < low) & (values > 0))
        share = float(rows["duration_ns"][outside].sum() / total)
        reached = [float(values[values > 0].min()), float(values.max())] if (values > 0).any() else [0.0, 0.0]
        found.append({"what": words, "fitted": [low, high], "reached": reached, "time_outside": share})
    return found
