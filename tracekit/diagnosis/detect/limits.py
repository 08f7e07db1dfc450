"""A limit binds, and nothing more special explains it: seats, KV, the token budget."""

from __future__ import annotations

import math

import numpy as np

from tracekit.diagnosis.capacity import Capacity
from tracekit.diagnosis.claim import BESIDE, EVICTED, WAITS, Claim, change, percent, round_up, scaled, seconds
from tracekit.diagnosis.detect.admission import seats_that_fit
from tracekit.diagnosis.detect.load import limit_weight
from tracekit.diagnosis.finding import Change
from tracekit.diagnosis.signals import evidence, fact, q_share95
from tracekit.diagnosis.view import View

__all__ = ["poisson_quantile", "queue_budget", "queue_kv", "queue_seats"]


def queue_seats(view: View) -> Claim | None:
    """All seats are taken while memory and budget have room."""
    scheduler, capacity = view.data.policy.scheduler, view.capacity
    seats, fit = scheduler.max_num_seqs, seats_that_fit(view)
    if view.block["seats"] < 0.02 or capacity is None or fit <= seats:
        return None
    wanted = _seats(view, seats, fit)
    if wanted <= seats or capacity.served(min(wanted, capacity.at_a_time()["kv"])) < 1.05 * capacity.served():
        return None
    more, taken = _more_seats(view, capacity, wanted, fit), evidence(view, "seats taken", 0.5)
    others = WAITS if view.block["seats"] > 0.9 else ("seats",)
    return Claim(
        id="QUEUE_SEATS",
        what=f"in {percent(view.block['seats'])} of queue time the head waits for one of {seats} seats while at most"
        f" {percent(float(view.kv.max()))} of the KV and {percent(view.share_of_queue(view.fill))} of the"
        " token budget are in use",
        first=dict.fromkeys((*others, "under_way"), limit_weight(view)),
        evidence=(
            evidence(view, "block[seats]", 0.5),
            taken,
            evidence(view, "running max", note=f"of {seats}"),
            evidence(view, "kv max"),
            evidence(view, "fill_w"),
            evidence(view, "waiting max"),
            q_share95(view, view.finished),
            fact("in flight unlimited", capacity.in_flight, "requests", float(seats), note="by Little's law at this rate"),
        ),
        is_not=(
            f"QUEUE_KV: at most {percent(float(view.kv.max()))} of it is in use",
            f"QUEUE_BUDGET: {percent(1 - view.share_of_queue(view.fill))} of it is left while requests wait",
        ),
        changes=(more,),
        tempting=_larger_budget(view, 4) + _more_kv(view),
        because=f"seats are full in {percent(taken.value or 0)} of queue time",
        iterations=view.data.iterations["head_refused_by"] > 0,
    )


def _seats(view: View, seats: int, fit: int) -> int:
    """Seats for this load: what runs at a time by Little's law, with room for chance; for a batch, where more hardly help."""
    capacity = view.capacity
    assert capacity is not None
    if capacity.in_flight is not None:
        wanted = max(poisson_quantile(capacity.in_flight, 0.999), seats + 1)
    else:
        wanted = math.ceil(4 * capacity.output * capacity.fixed_s / max(capacity.own_s, 1e-12))
        wanted = max(wanted, 2 * seats)
    return min(round_up(wanted), fit)


def poisson_quantile(mean: float, share: float) -> int:
    """The smallest count that a Poisson variable exceeds with a probability below ``1 - share``."""
    if mean > 200:
        return math.ceil(mean + 3.1 * math.sqrt(mean))
    term = total = math.exp(-mean)
    count = 0
    while total < share:
        count += 1
        term *= mean / count
        total += term
    return count


def queue_kv(view: View) -> Claim | None:
    """KV blocks are short, without a storm."""
    if view.block["kv"] < 0.02 or float(np.quantile(view.kv[view.queued], 0.95) if view.queued.any() else 0.0) < 0.8:
        return None
    scheduler, capacity = view.data.policy.scheduler, view.capacity
    return Claim(
        id="QUEUE_KV",
        what=f"in {percent(view.block['kv'])} of queue time the head waits for KV blocks;"
        f" {capacity.at_a_time()['kv'] if capacity else 0:.1f} requests of this size fit",
        first=dict.fromkeys(("kv", "under_way", *EVICTED), 1.0),
        later=dict.fromkeys((*EVICTED, *BESIDE), 1.0),
        evidence=(
            evidence(view, "block[kv]", 0.5),
            evidence(view, "kv p50"),
            evidence(view, "kv p95", 0.9),
            evidence(view, "recompute"),
            evidence(view, "preempt/req"),
            evidence(view, "running max", note=f"of {scheduler.max_num_seqs} seats"),
        ),
        is_not=(
            "PREEMPTION_STORM: hardly anything is computed twice",
            f"QUEUE_SEATS: {scheduler.max_num_seqs} seats are not the limit",
        ),
        changes=_more_kv(view),
        tempting=_larger_budget(view, 2),
        because="the head names what it lacks",
    )


def queue_budget(view: View) -> Claim | None:
    """Iterations are full and the engine could do with larger ones."""
    if view.block["budget"] < 0.02 or not view.data.has_iterations:
        return None
    scheduler, latency = view.data.policy.scheduler, view.data.profile.latency
    budget = scheduler.token_budget
    filled = view.share_of_queue(view.fill)
    length = max(latency.floor_ns, latency.a_ns) + latency.b_ns * 2 * budget
    return Claim(
        id="QUEUE_BUDGET",
        what=f"in {percent(view.block['budget'])} of queue time the head waits because the iteration's {budget} tokens are spent",
        first=dict.fromkeys(("budget", "under_way", *BESIDE), 1.0),
        evidence=(
            evidence(view, "block[budget]", 0.5),
            evidence(view, "fill_w", 0.9),
            evidence(view, "kv max"),
            q_share95(view, view.finished),
        ),
        changes=(
            change(
                "max_num_batched_tokens",
                scheduler.max_num_batched_tokens,
                2 * scheduler.max_num_batched_tokens,
                "more prompts an iteration",
                tolerated=0.3,
                price=f"an iteration with prefill takes up to {seconds(length)}: token gaps grow to that",
            ),
        ),
        tempting=(scaled(view, "max_num_seqs", 2, "requests wait"),),
        is_not=(f"QUEUE_KV: at most {percent(float(view.kv.max()))} of it is in use",),
        confidence="medium" if filled > 0.9 else "low",
        because="iterations are full, and no special cause was found",
    )


def _larger_budget(view: View, times: int) -> tuple[Change, ...]:
    scheduler = view.data.policy.scheduler
    return (
        change(
            "max_num_batched_tokens", scheduler.max_num_batched_tokens, times * scheduler.max_num_batched_tokens, "requests wait"
        ),
    )


def _more_kv(view: View) -> tuple[Change, ...]:
    blocks = view.data.policy.scheduler.num_gpu_blocks
    return (
        change(
            "num_gpu_blocks",
            blocks,
            2 * blocks,
            "more requests fit",
            price="more memory for KV: fewer or larger devices",
            outside=True,
            tolerated=0.3,
        ),
    )


def _more_seats(view: View, capacity: Capacity, wanted: int, fit: int) -> Change:
    latency, seats = view.data.profile.latency, view.data.policy.scheduler.max_num_seqs
    step_now = max(latency.floor_ns, latency.a_ns) + seats * capacity.decode_s * 1e9 / max(capacity.output, 1.0)
    slower = (wanted - seats) * capacity.decode_s * 1e9 / max(capacity.output, 1.0) / step_now
    return change(
        "max_num_seqs",
        seats,
        wanted,
        "so many run at a time at this load, with room for its peaks",
        price=f"time per token up to {percent(slower)} longer when all are taken; KV then reaches at most"
        f" {percent(min(wanted / fit, 1.0))} of what there is",
        tolerated=max(0.1, min(slower, 1.0)),
    )
