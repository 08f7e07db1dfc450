"""Too much let in for the memory, or too little."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from replay_engine.types import Refusal
from tracekit.diagnosis.claim import BESIDE, EVICTED, QUEUE, Claim, Weights, change, percent, scaled, seconds
from tracekit.diagnosis.detect.load import limit_weight
from tracekit.diagnosis.finding import Change, Measure
from tracekit.diagnosis.signals import evidence, fact, q_share95
from tracekit.diagnosis.view import View

__all__ = ["admission_strict", "preemption_storm", "seats_that_fit"]

_IDLE = 0.7
"""KV in use below which a refusal for want of KV contradicts itself."""
_STORM = 0.15
"""Recomputed tokens, of all prefilled ones, that no sane policy pays."""


def admission_strict(view: View) -> Claim | None:
    """The head of the queue is refused for KV that nobody uses: it is reserved for output, or kept free."""
    rows = view.data.iterations
    reasons = (Refusal.kv_output_reserve, Refusal.kv_watermark, Refusal.reserved_blocks, Refusal.kv_full_isl)
    strict = np.isin(rows["head_refused_by"], [int(each) for each in reasons]) & (view.kv < _IDLE)
    weight = view.parts.waited(strict) / np.maximum(view.parts.first["kv"], 1.0)
    proposals = _looser(view)
    if not strict.any() or not proposals or float((weight * view.first["kv"]).sum()) < 0.02 * view.excess_ns:
        return None
    output = view.data.outcomes["output_tokens"]
    scheduler = view.data.policy.scheduler
    return Claim(
        id="ADMISSION_STRICT",
        what=f"in {percent(view.share_of_queue(strict))} of queue time the head is refused for KV while"
        f" {percent(1 - float(np.quantile(view.kv[strict], 0.95)))} of it and more is empty: it is reserved for output that"
        f" never comes (longest {int(output.max())} tokens)",
        first={"kv": weight},
        evidence=(
            evidence(view, "block[kv]", 0.2),
            evidence(view, "kv p95", _IDLE),
            evidence(view, "max_tokens / output p99", 3.0),
            evidence(view, "running max", note=f"of {scheduler.max_num_seqs} seats"),
            fact(
                "longest output", float(output.max()), "tokens", sql="SELECT max(output_tokens) FROM outcomes WHERE run = {run}"
            ),
        ),
        is_not=("QUEUE_KV: the memory is there, the reservation takes it",),
        changes=proposals,
        tempting=(
            scaled(view, "max_num_seqs", 2, "few requests run"),
            scaled(view, "max_num_batched_tokens", 4, "requests wait"),
        ),
        because="refused for KV and KV idle at once is a contradiction",
    )


def _looser(view: View) -> tuple[Change, ...]:
    batching, output = view.data.policy.rules.batching, view.data.outcomes["output_tokens"]
    found = []
    risk = f"evictions if outputs grow: the longest seen has {int(output.max())} tokens"
    if batching.output_reserve != "none":
        limit = view.data.source.max_tokens
        reserve = batching.output_reserve_clip or (int(limit.max()) if limit is not None else int(output.max()))
        clip = 2 ** int(np.ceil(np.log2(max(1.25 * float(np.quantile(output, 0.99)), 1.0))))
        if clip < reserve:
            found.append(
                change(
                    "batching.output_reserve_clip",
                    batching.output_reserve_clip,
                    clip,
                    "the 99th percentile of actual outputs with a margin",
                    price=risk,
                )
            )
        if batching.output_reserve_ratio > 0.2:
            less = round(max(batching.output_reserve_ratio * clip / max(reserve, 1), 0.05), 2)
            found.append(
                change(
                    "batching.output_reserve_ratio",
                    batching.output_reserve_ratio,
                    less,
                    "the share of the limit that outputs reach",
                    price=risk,
                )
            )
    if view.data.policy.scheduler.watermark > 0.1:
        found.append(
            change("watermark", view.data.policy.scheduler.watermark, 0.01, "blocks kept free that nobody takes", price=risk)
        )
    return tuple(found)


def preemption_storm(view: View) -> tuple[Claim, ...]:
    """Work is evicted and computed again and again: the queue is full of it, whatever its head is refused for."""
    rows, moves = view.data.iterations, view.data.tables["preemptions"]
    prefilled = max(int(rows["prefill_tokens"].sum()), 1)
    share = float(rows["recomputed_tokens"].sum()) / prefilled
    if share < _STORM or not len(moves):
        return ()
    outcomes, scheduler = view.data.outcomes, view.data.policy.scheduler
    first_token = (outcomes["arrival_ns"] + np.maximum(outcomes["ttft_ns"], 0))[view.rows_of(moves["request"])]
    decoding = float((moves["preempted_ns"] >= first_token).mean())
    lax = not scheduler.scheduler_reserve_full_isl and decoding < 0.25
    again = 1.0 if share >= 0.3 else np.divide(rows["recomputed_tokens"], np.maximum(rows["prefill_tokens"], 1))
    weight = (
        again if isinstance(again, float) else view.parts.waited(again) / np.maximum(view.parts.waited(np.ones(len(rows))), 1.0)
    )
    part = limit_weight(view)
    first = dict.fromkeys((*QUEUE, *BESIDE), weight * part) | dict.fromkeys(EVICTED, part)
    later = dict.fromkeys(("interference", "stalled"), weight * part) | dict.fromkeys((*EVICTED, *BESIDE), part)
    storm = _storm(view, share, decoding, first, later)
    if lax:
        return (storm, replace(_lax(view, storm), under="PREEMPTION_STORM"))
    return (_cliff(view, storm), replace(storm, under="QUEUE_KV"))


def _storm(view: View, share: float, decoding: float, first: Weights, later: Weights) -> Claim:
    moves, scheduler, outcomes = view.data.tables["preemptions"], view.data.policy.scheduler, view.data.outcomes
    fit, whole = seats_that_fit(view), _whole_prompts(view)
    seats = change(
        "max_num_seqs",
        scheduler.max_num_seqs,
        fit,
        "so many whole requests fit the KV",
        price="more requests wait in the queue, where they hold nothing",
        tolerated=0.15,
    )
    lax = not scheduler.scheduler_reserve_full_isl and decoding < 0.25
    changes = (whole, seats) if lax else (seats, whole)
    loud = max(view.block, key=lambda name: view.block[name])
    worst = int(outcomes["preemptions"].max())
    return Claim(
        id="PREEMPTION_STORM",
        what=f"{percent(share)} of the prefilled tokens are computed again after {len(moves)} evictions, up to"
        f" {worst} of one request;"
        f" refusals for {loud} ({percent(view.block[loud])} of queue time) follow from it",
        first=first,
        later=later,
        evidence=(
            evidence(view, "recompute", _STORM),
            evidence(view, "preempt/req"),
            evidence(view, "preempt_max"),
            evidence(view, "readmitted at once", 0.5),
            evidence(view, "kv p50", 0.95),
            evidence(view, "served"),
            evidence(view, "block[budget]", note="a decoy: the budget is full of recomputation"),
            evidence(view, "block[kv]"),
            fact("evicted while decoding", decoding, "of evictions"),
        ),
        is_not=("QUEUE_BUDGET: a larger budget computes the same tokens again", "OVERLOAD: most of the work is done twice"),
        changes=tuple(each for each in changes if each is not None and each.old != each.new),
        tempting=_tempting(view),
        because=f"every eviction is logged; mean loss {int(moves['lost_tokens'].mean())} tokens",
        measure=_measure(view),
    )


def _measure(view: View) -> Measure:
    return "ttft" if view.first_excess.sum() >= view.later_excess.sum() else "tpot"


def _tempting(view: View) -> tuple[Change, ...]:
    scheduler = view.data.policy.scheduler
    budget = scheduler.max_num_batched_tokens
    return (
        change("max_num_batched_tokens", budget, max(budget // 4, 256), "smaller chunks take fewer blocks at a time"),
        scaled(view, "max_num_seqs", 2, "requests wait"),
    )


def _whole_prompts(view: View) -> Change | None:
    scheduler = view.data.policy.scheduler
    if scheduler.scheduler_reserve_full_isl:
        return (
            change(
                "watermark",
                scheduler.watermark,
                0.05,
                "blocks kept for the growth of what runs",
                price="a twentieth of the KV is not given to prompts",
            )
            if scheduler.watermark < 0.05
            else None
        )
    return change(
        "scheduler_reserve_full_isl",
        False,
        True,
        "a prompt is admitted only where all of it fits",
        price="its first chunk starts later",
    )


def _lax(view: View, storm: Claim) -> Claim:
    moves = view.data.tables["preemptions"]
    lost = view.data.outcomes["prompt_tokens"][view.rows_of(moves["request"])]
    return Claim(
        id="ADMISSION_LAX",
        what="prompts are admitted when their first chunk fits;"
        f" {percent(float((moves['lost_tokens'] < lost).mean()))} of the evicted"
        " had not finished their prompt",
        evidence=(evidence(view, "kv p50", 0.95), evidence(view, "readmitted at once", 0.5), evidence(view, "recompute", _STORM)),
        is_not=("QUEUE_KV: what runs fits; what is let in beside it does not",),
        changes=storm.changes,
        tempting=storm.tempting,
        because="a whole prompt is never looked at",
        measure=storm.measure,
    )


def _cliff(view: View, storm: Claim) -> Claim:
    capacity = view.capacity
    fits = capacity.at_a_time()["kv"] if capacity else 0.0
    scheduler = view.data.policy.scheduler
    at_most = int(view.data.iterations["running"].max())
    blocks = change(
        "num_gpu_blocks",
        scheduler.num_gpu_blocks,
        2 * scheduler.num_gpu_blocks,
        "twice the KV holds what is let in",
        price="more or larger devices",
        outside=True,
        tolerated=0.3,
    )
    tpot = view.data.outcomes["tpot_ns"]
    tpot = tpot[np.isfinite(tpot) & (tpot >= 0)]
    p50, p99 = (float(np.quantile(tpot, q)) if len(tpot) else 0.0 for q in (0.5, 0.99))
    return Claim(
        id="QUEUE_KV",
        what=f"the KV holds {fits:.1f} requests of this size and up to {at_most} are let in: each further token evicts somebody;"
        f" time per token has a median of {seconds(p50)} and a 99th percentile of {seconds(p99)}: the tail moved",
        first=storm.first,
        later=storm.later,
        evidence=(
            evidence(view, "kv p50", 0.95),
            *storm.evidence[:3],
            evidence(view, "block[kv]"),
            q_share95(view, view.finished),
        ),
        is_not=storm.is_not,
        changes=(blocks, *storm.changes) if _is_mild(view) else (*storm.changes, blocks),
        tempting=storm.tempting,
        because=storm.because,
        measure=storm.measure,
    )


def _is_mild(view: View) -> bool:
    """Whether what is evicted soon runs through: then fewer at a time gain nothing, and only more memory does."""
    return float(evidence(view, "recompute").value or 0.0) < 0.4 and int(view.data.outcomes["preemptions"].max()) < 20


def seats_that_fit(view: View) -> int:
    """How many requests of this run's sizes fit the KV to their last token, with room for those above the mean."""
    size = (view.data.outcomes["prompt_tokens"] + np.maximum(view.data.outcomes["output_tokens"], 1)).astype(np.float64)
    scheduler = view.data.policy.scheduler
    room = scheduler.usable_blocks * scheduler.block_size
    n = int(room / size.mean())
    while n > 1 and n * size.mean() + 1.65 * size.std() * np.sqrt(n) > room:
        n -= 1
    return max(n, 1)
