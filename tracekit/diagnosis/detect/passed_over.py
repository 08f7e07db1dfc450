"""Whom the order in force passes over: the urgent where it knows no priorities, the long or less urgent where nothing ages."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from replay_engine.types import NEVER
from tracekit.diagnosis.claim import QUEUE, Claim, change, percent, scaled, seconds
from tracekit.diagnosis.culprits import waiting
from tracekit.diagnosis.finding import Change
from tracekit.diagnosis.signals import evidence, fact
from tracekit.diagnosis.view import View

__all__ = ["levels", "order_ignored", "order_in_force", "passed_over"]

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
_MATERIAL = 0.01
_THEIRS = 0.7
"""Of all excess before the first token: where others than those passed over bear more of the rest, the order is not the cause."""
_LOOKED_AT = 400
"""Requests of those passed over whose waits are looked through."""


def order_in_force(view: View) -> str:
    """``order.by``, and what ``engine`` stands for."""
    by = view.data.policy.rules.order.by
    return view.data.policy.scheduler.policy if by == "engine" else by


def levels(view: View) -> Ints | None:
    """How urgent each outcome row is by the trace (smaller: more urgent); ``None`` where it does not tell them apart."""
    priority, order = view.data.source.priority, view.data.policy.rules.order
    if priority is None or len(np.unique(priority)) < 2:
        return None
    found: Ints = priority[view.data.outcomes["request"]].astype(np.int64) * (-1 if order.larger_first else 1)
    return found


def order_ignored(view: View) -> Claim | None:
    """The trace has priorities, the queue goes by arrival, and the urgent wait behind the others."""
    level = levels(view)
    if level is None or order_in_force(view) != "fcfs":
        return None
    urgent = level == level.min()
    tokens = (view.data.outcomes["prompt_tokens"] + np.maximum(view.data.outcomes["output_tokens"], 0)).astype(np.float64)
    waits = np.sum([view.first[name] for name in QUEUE], axis=0)
    if (view.first_excess[urgent] > 0).mean() < _MATERIAL or waits[urgent].sum() < 0.3 * view.first_excess[urgent].sum():
        return None
    if tokens[urgent].sum() > 0.5 * tokens.sum():
        return None
    share = _behind(view, urgent & (view.first_excess > 0), level)
    if share < 0.5:
        return None
    names = view.classes_of(urgent.astype(np.float64))
    named = f" ({', '.join(names)})" if names else ""
    return Claim(
        id="STARVATION",
        what=f"the queue goes by arrival although the trace tells who is urgent: in {percent(share)} of the time that urgent"
        f" requests{named} wait, a less urgent one stands at its head",
        first=dict.fromkeys(QUEUE, np.where(urgent, share, 0.0)),
        evidence=(
            fact("behind less urgent", share, "of the urgent requests' waiting time", 0.5, note="who stood at the queue's head"),
            fact("urgent", float(tokens[urgent].sum() / tokens.sum()), "of all tokens", 0.5),
            evidence(view, "waiting max"),
        ),
        is_not=("OVERLOAD of the urgent: their own work is a part of what the engine does",),
        changes=_by_priority(view),
        tempting=(scaled(view, "max_num_seqs", 2, "requests wait"),),
        because="who stood at the head of the queue is logged",
        urgent=True,
    )


def _behind(view: View, victims: Bools, level: Ints) -> float:
    """Of the victims' waiting time in iterations, the share in which a less urgent request stood at the head of the queue."""
    lost = waiting(view.parts.blame, victims).per_iteration
    head = view.data.iterations["head_request"]
    stood = np.flatnonzero((head >= 0) & (lost > 0))
    less = level[view.rows_of(head[stood])] > level.min()
    return float(lost[stood][less].sum() / max(float(lost.sum()), 1.0))


def _by_priority(view: View) -> tuple[Change, ...]:
    order, scheduler = view.data.policy.rules.order, view.data.policy.scheduler
    knob, old = ("policy", scheduler.policy) if order.by == "engine" else ("order.by", order.by)
    price = "less urgent requests wait longer, and nothing keeps them from waiting for ever"
    first = change(knob, old, "priority", "the urgent are then looked at first", price=price, tolerated=0.35)
    displaces = change(
        knob,
        old,
        "priority",
        "the urgent also take the place of the least urgent that run",
        sets=(f"{knob}=priority", "preemption.to_admit=true"),
        price=f"{price}; what is displaced is computed again",
        tolerated=0.5,
    )
    return (first, displaces)


def passed_over(view: View) -> Claim | None:
    """An order without aging: whoever is long, or less urgent, is overtaken for as long as others come."""
    by, order = order_in_force(view), view.data.policy.rules.order
    if by not in ("priority", "shortest_first") or order.aging_s is not None:
        return None
    rank = levels(view) if by == "priority" else _sizes(view)
    if rank is None:
        return None
    victims = (rank > float(np.median(rank)) if by == "shortest_first" else rank > rank.min()) & (view.first_excess > 0)
    total = float(view.first_excess.sum())
    if not victims.any() or float(view.first_excess[victims].sum()) < _THEIRS * total:
        return None
    share = _overtaken(view, victims)
    if share < 0.5:
        return None
    whom = "less urgent" if by == "priority" else "longer"
    worst = float(view.data.outcomes["queue_ns"][victims].max())
    return Claim(
        id="STARVATION",
        what=f"{percent(share)} of what was served while {whom} requests waited came after them: nothing ages, so they wait for"
        f" as long as others come, up to {seconds(worst)}",
        first=dict.fromkeys(QUEUE, np.where(victims, share, 0.0)),
        evidence=(
            fact("overtaken", share, "of what was served meanwhile", 0.5, note="by requests that came later"),
            fact("longest wait", worst / 1e9, "s"),
            fact("passed over", float(victims.sum()), "requests"),
            evidence(view, "waiting max"),
        ),
        is_not=("OVERLOAD: the others are served in time, and all are served in the end",),
        changes=_aged(view, by, rank, victims),
        tempting=(scaled(view, "max_num_seqs", 2, "requests wait"),),
        because="who came later and was served first is logged",
    )


def _sizes(view: View) -> Ints:
    """What ``shortest_first`` goes by, in tokens, per outcome row; predictions count as the true length."""
    rows, size = view.data.outcomes, view.data.policy.rules.order.size
    prompt = rows["prompt_tokens"].astype(np.int64)
    output = view.data.source.output_tokens[rows["request"]].astype(np.int64)
    found: Ints = {"prompt": prompt, "total": prompt + output}.get(size, output)
    return found


def _overtaken(view: View, victims: Bools) -> float:
    """Of the time at the engine of those admitted while the victims waited, that of those who came after them; per replica."""
    rows = view.data.outcomes
    arrival, queue = rows["arrival_ns"], rows["queue_ns"]
    admitted = np.where(queue >= 0, arrival + queue, NEVER)
    held = np.where(queue >= 0, np.maximum(rows["e2e_ns"] - queue, 0), 0).astype(np.float64)
    order = np.argsort(admitted, kind="stable")
    moments = admitted[order]
    picked = np.flatnonzero(victims)
    picked = picked[np.unique(np.linspace(0, len(picked) - 1, min(len(picked), _LOOKED_AT)).astype(np.int64))]
    later = meanwhile = 0.0
    for row in picked.tolist():
        low, high = np.searchsorted(moments, arrival[row], "left"), np.searchsorted(moments, admitted[row], "left")
        during = order[low:high]
        during = during[rows["replica"][during] == rows["replica"][row]]
        meanwhile += float(held[during].sum())
        later += float(held[during[arrival[during] > arrival[row]]].sum())
    return later / max(meanwhile, 1.0)


def _aged(view: View, by: str, rank: Ints, victims: Bools) -> tuple[Change, ...]:
    """Aging that brings those passed over level with the others within half of the time that they may take."""
    limit = view.yardstick.limits["ttft"][view.data.outcomes["request"]][victims]
    limit = limit[np.isfinite(limit)]
    wait_s = float(np.median(limit)) / 2e9 if len(limit) else 1.0
    ahead = float(np.median(rank[victims])) - float(np.median(rank[~victims]) if (~victims).any() else 0.0)
    worth = max(ahead if by == "priority" else ahead / 1000, 1e-3)
    order, trade = view.data.policy.rules.order, 5.0 if view.yardstick.asked else 1.0
    aging = change(
        "order.aging_s",
        "none",
        float(f"{max(wait_s / worth, 1e-3):.2g}"),
        "waiting then counts: who was passed over comes level with the others in time",
        price="the others give up a part of their lead: their means grow, within what they are allowed",
        tolerated=trade,
    )
    price = "the order is given up: the others' means grow, within what they are allowed"
    arrival = change("order.by", order.by, "fcfs", "nobody is overtaken", price=price, tolerated=trade)
    return (aging, arrival) if by == "shortest_first" else (aging,)
