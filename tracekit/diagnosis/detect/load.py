"""The traffic itself: more than the engine can serve, or as much as it can, bunched."""

from __future__ import annotations

import math

import numpy as np

from tracekit.diagnosis.capacity import Capacity
from tracekit.diagnosis.claim import BESIDE, CROWD, EVICTED, QUEUE, Claim, change, percent, round_up, scaled, seconds
from tracekit.diagnosis.finding import Change, Evidence
from tracekit.diagnosis.signals import evidence, fact, q_share95, quarters_s
from tracekit.diagnosis.view import View

__all__ = ["burst", "grows", "overload", "limit_weight", "worst_dispersion"]

BUNCHED = 2.5
"""Variance over mean of the arrivals' counts: beyond, they are bunched; by chance it is 1."""


def grows(view: View) -> bool:
    """Whether time to the first token grows from quarter to quarter of the arrivals, as it does beyond capacity."""
    one, two, three, four = quarters_s(view)
    return four > 1.3 * two and four > three > one


def overload(view: View) -> Claim | None:
    """More work is offered than any seats and any budget let the engine serve."""
    capacity = view.capacity
    if capacity is None or capacity.rate is None or capacity.floor_load is None:
        return None
    ratio, own = capacity.floor_load, capacity.own_load or 0.0
    if own < 0.93 or not (own >= 1.1 or grows(view)) or view.data.policy.rules.pd.prefill:
        return None
    quarters = quarters_s(view)
    loud = max(view.block, key=lambda name: view.block[name])
    decoys = (
        scaled(view, "max_num_seqs", 2, "seats are taken"),
        scaled(view, "max_num_batched_tokens", 2, "the budget is full"),
    )
    rate, most = capacity.rate * capacity.engines, capacity.most * capacity.engines
    return Claim(
        id="OVERLOAD",
        what=f"{rate:.3g} requests/s are offered, {most:.3g} is the most that any seats and budget serve: the time"
        " to the first token"
        f" grows from {quarters[0]:.3g} s in the first quarter to {quarters[3]:.3g} s in the last",
        first=dict.fromkeys((*QUEUE, *BESIDE, *EVICTED), 1.0),
        later=dict.fromkeys((*CROWD, *BESIDE, *EVICTED, "stalled"), 1.0),
        evidence=(
            fact("offered/capacity", ratio, "x", 1.0, note=f"{rate:.4g} of {most:.4g} requests/s"),
            *_slopes(view),
            evidence(view, "prefill rate"),
            evidence(view, "served"),
            evidence(view, f"block[{loud}]", note="a decoy: it only says where"),
            evidence(view, "seats taken"),
        ),
        is_not=(
            f"QUEUE_{loud.upper()}: that limit moves the queue, it does not end it: without it"
            f" {capacity.most / max(capacity.served(), 1e-12):.3g} times as much is served",
        ),
        changes=_answers(view, capacity),
        tempting=decoys,
        because="work a request, by the profile, times requests a second",
    )


def _slopes(view: View) -> tuple[Evidence, ...]:
    return tuple(
        fact(f"slope[{k}]", each, "s", note="mean TTFT by quarter of arrivals") for k, each in enumerate(quarters_s(view), 1)
    )


def _answers(view: View, capacity: Capacity) -> tuple[Change, ...]:
    rules = view.data.policy.rules
    need = math.ceil(capacity.engines * (capacity.rate or 0.0) / (0.9 * capacity.most))
    replicas = change(
        "fleet.replicas",
        capacity.engines,
        max(need, capacity.engines + 1),
        f"each serves {0.95 * capacity.most:.3g} requests/s at most; no scheduler knob serves more",
        sets=(
            f"fleet.replicas={max(need, capacity.engines + 1)}",
            *(("fleet.router=least_tokens",) if rules.fleet.replicas == 1 else ()),
        ),
        price="more devices",
        outside=True,
    )
    return (replicas, _bound(view))


def _bound(view: View) -> Change:
    """A bound of the queue: what is prefilled in the time that a first token may take."""
    rows, door = view.data.iterations, view.data.policy.rules.front_door
    limit = view.yardstick.limits["ttft"]
    limit = limit[np.isfinite(limit)]
    target = float(np.median(limit)) if len(limit) else 1e9
    full = view.queued & (rows["prefill_tokens"] > 0)
    rate = float(rows["prefill_tokens"][full].sum()) / max(float(rows["duration_ns"][full].sum()), 1.0)
    tokens = max(round_up(target * rate, 1024), 1024)
    return change(
        "front_door.max_queued_tokens",
        door.max_queued_tokens,
        tokens,
        f"so much is prefilled within {seconds(target)}: who is let in keeps its time, the others are told at once",
        price="requests are refused at peaks; it protects the others, it cures nothing",
        outside=True,
    )


def burst(view: View) -> Claim | None:
    """The mean load would be served; it comes bunched."""
    capacity = view.capacity
    if capacity is None or capacity.own_load is None or capacity.own_load > 1.0 or view.data.policy.rules.pd.prefill:
        return None
    spread, scale_s = worst_dispersion(view)
    worst = evidence(view, "waits of worst fifth", 0.3)
    if spread < BUNCHED or (worst.value or 0.0) < 0.3:
        return None
    return Claim(
        id="BURST",
        what=f"the load is {percent(capacity.own_load)} of the engine's time and comes bunched: counts per {scale_s:g} s vary"
        f" {spread:.3g} times as much"
        f" as chance would have it, and {percent(worst.value or 0)} of the waiting belongs to a fifth of the seconds",
        first=dict.fromkeys((*QUEUE, *BESIDE, *EVICTED, "dispatch"), 1.0),
        later=dict.fromkeys((*CROWD, *BESIDE, *EVICTED), 1.0),
        evidence=(
            evidence(view, "arrivals cv", 1.5),
            evidence(view, "dispersion", BUNCHED),
            fact("dispersion at worst", spread, f"variance/mean of {scale_s:g} s counts", BUNCHED),
            worst,
            fact("offered/capacity", capacity.own_load, "x", 1.0),
            q_share95(view, view.finished),
            *_slopes(view),
        ),
        is_not=(f"OVERLOAD: the mean load is {percent(capacity.own_load)} of the engine's time",),
        changes=_smoother(view),
        tempting=(
            scaled(view, "max_num_seqs", 2, "requests wait"),
            change(
                "order.by",
                view.data.policy.rules.order.by,
                "shortest_first",
                "short ones need not wait: the median falls and the tail rises",
            ),
        ),
        because="arrivals are counted, not guessed",
    )


def limit_weight(view: View) -> float:
    """What a limit may claim of the waits for it: where arrivals are bunched, a part is left to that."""
    return 1.0 if burst(view) is None else 0.65


def worst_dispersion(view: View) -> tuple[float, float]:
    """The largest index of dispersion (variance / mean of counts) over bins of 1, 3, 10 and 30 s with at least 30 of them, beyond
    what chance allows; and the bin."""
    at = np.sort(view.data.outcomes["arrival_ns"]) - int(view.data.outcomes["arrival_ns"].min())
    best = (0.0, 1.0)
    for scale in (1.0, 3.0, 10.0, 30.0):
        counts = np.bincount((at / (scale * 1e9)).astype(np.int64))
        if len(counts) < 30 and scale > 1.0:
            break
        if counts.mean() > 0:
            chance = 1 + 3 * math.sqrt(2 / max(len(counts) - 1, 1))
            best = max(best, (float(counts.var() / counts.mean()) / max(chance / 1.5, 1.0), scale))
    return best


def _smoother(view: View) -> tuple[Change, ...]:
    scheduler, latency = view.data.policy.scheduler, view.data.profile.latency
    budget = scheduler.token_budget
    length = max(latency.floor_ns, latency.a_ns) + latency.b_ns * 4 * budget
    even = change(
        "traffic.arrivals",
        "as recorded",
        "even",
        "the same requests at even distances do not wait",
        sets=("traffic.burst_scale=0",),
        outside=True,
        price="it has to be done upstream: smooth, shed, or size for peaks and scale on queue depth",
    )
    trade = change(
        "max_num_batched_tokens",
        scheduler.max_num_batched_tokens,
        4 * scheduler.max_num_batched_tokens,
        "a bunch is prefilled in fewer iterations",
        tolerated=0.3,
        price=f"a trade: token gaps grow to {seconds(length)} beside a full iteration",
    )
    return (even, _bound(view), trade)
