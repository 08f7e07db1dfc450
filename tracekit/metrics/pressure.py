"""The matrix's view of the engine under load: KV, prefix hits, refusals, unused budget, where the time went."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from replay_engine.config import SchedulerConfig
from tracekit.metrics.distributions import missing
from tracekit.metrics.inputs import MatrixInputs, Totals

__all__ = ["kv_section", "queueing_section", "time_section"]

_IDLE = "no iteration ran"


def kv_section(inputs: MatrixInputs, rows: npt.NDArray[np.void]) -> dict[str, Any]:
    """KV blocks: high-water mark, mean, cached, reserved, above the watermark; and what prefix caching saved."""
    totals, config = inputs.totals, inputs.scheduler
    total, busy = totals.kv_total, totals.busy_ns
    level = config.watermark
    return {
        "total_blocks": total,
        "high_water_blocks": totals.kv_used_max,
        "high_water_share": totals.kv_used_max / total if total else missing("the engine has no KV pool"),
        "mean_used_share": totals.kv_used_ns / busy / total if busy and total else missing(_IDLE),
        "cached_high_water_blocks": totals.kv_cached_max if config.enable_prefix_caching else missing(_NO_CACHE),
        **_reserved(inputs),
        "above_watermark_ns": totals.above_watermark_ns if level > 0 else missing("no watermark (watermark = 0)"),
        "above_watermark_share": (
            missing("no watermark (watermark = 0)")
            if level <= 0
            else totals.above_watermark_ns / busy
            if busy
            else missing(_IDLE)
        ),
        "evicted_blocks": totals.evicted if config.enable_prefix_caching else missing(_NO_CACHE),
        **_prefix(rows, totals, config),
    }


_NO_CACHE = "prefix caching is off"


def _reserved(inputs: MatrixInputs) -> dict[str, Any]:
    """Blocks set aside for whole sequences against those written."""
    names = ("reserved_high_water_blocks", "reserved_unused_blocks", "reserved_unused_share")
    totals = inputs.totals
    if inputs.rules.batching.kv_allocation != "contiguous":
        return dict.fromkeys(names, missing("paged KV: a block is taken when a token needs it, none is reserved ahead"))
    written, busy = inputs.written_block_ns, totals.busy_ns
    if written is None or not busy or not totals.kv_used_ns:
        reason = _IDLE if written is not None else "what was written of it needs --events full"
        return {names[0]: totals.kv_used_max} | dict.fromkeys(names[1:], missing(reason))
    unused = max(totals.kv_used_ns - written, 0.0)
    return dict(zip(names, (totals.kv_used_max, unused / busy, unused / totals.kv_used_ns), strict=True))


def _prefix(rows: npt.NDArray[np.void], totals: Totals, config: SchedulerConfig) -> dict[str, Any]:
    """Hit share = cached prompt tokens / prompt tokens of counted requests that were admitted."""
    if not config.enable_prefix_caching:
        return {"prefix_hit_share": missing(_NO_CACHE), "prefix_hit_tokens": missing(_NO_CACHE)}
    admitted = rows["cached_tokens"] >= 0
    prompt = int(rows["prompt_tokens"][admitted].sum())
    hit = int(rows["cached_tokens"][admitted].sum())
    return {
        "prefix_hit_share": hit / prompt if prompt else missing("no request was admitted"),
        "prefix_hit_tokens": totals.prefix_hit_tokens,
    }


def queueing_section(totals: Totals, config: SchedulerConfig) -> dict[str, Any]:
    """What the head of the queue was refused for, budget left unused while somebody waited, asynchronous scheduling's cost."""
    empty = "no iteration left a request waiting"
    offered = totals.queue_budget_tokens
    blocked = missing("scheduling is synchronous")
    return {
        "queue_ns": totals.queue_ns,
        "refusals": _refusals(totals) or missing("no queue head was refused"),
        "unused_budget_tokens": offered - totals.queue_tokens if offered else missing(empty),
        "unused_budget_share": (offered - totals.queue_tokens) / offered if offered else missing(empty),
        "async_blocked_ns": totals.async_blocked_ns if config.async_scheduling else blocked,
        "async_blocked_share": (
            blocked
            if not config.async_scheduling
            else totals.async_blocked_ns / totals.busy_ns
            if totals.busy_ns
            else missing(_IDLE)
        ),
    }


def _refusals(totals: Totals) -> dict[str, Any]:
    """By reason, longest first: iterations, their time, and the share of all refused time."""
    time = {name: ns for name, ns in totals.refused_ns.items() if name != "none"}
    counts = {name: count for name, count in totals.refused_iterations.items() if name != "none" and count}
    whole = sum(time.get(name, 0) for name in counts)
    order = sorted(counts, key=lambda name: (-time.get(name, 0), name))
    return {
        name: {
            "iterations": counts[name],
            "ns": time.get(name, 0),
            "share": time.get(name, 0) / whole if whole else 0.0,
        }
        for name in order
    }


def time_section(totals: Totals, engines: int = 1) -> dict[str, Any]:
    """Where the engines' time went. Device and host overlap when scheduling is asynchronous."""
    busy = totals.busy_ns
    run = max(0, totals.last_end_ns - totals.first_start_ns) if totals.iterations else 0
    return {
        "iterations": totals.iterations,
        "run_ns": run,
        "busy_ns": busy,
        "idle_ns": max(0, run * engines - busy),
        "device_ns": totals.device_ns,
        "host_ns": totals.host_ns,
        "device_share": totals.device_ns / busy if busy else missing(_IDLE),
        "host_share": totals.host_ns / busy if busy else missing(_IDLE),
        "prefill_tokens": totals.prefill_tokens,
        "recomputed_tokens": totals.recomputed_tokens,
        "decode_tokens": totals.decode_tokens,
        "walked_iterations": totals.walked,
    }
