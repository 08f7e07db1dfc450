"""Whoever should go first does not."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.diagnosis.claim import Claim, change, percent, scaled, seconds
from tracekit.diagnosis.detect.passed_over import levels, order_in_force
from tracekit.diagnosis.finding import Change
from tracekit.diagnosis.signals import evidence, fact
from tracekit.diagnosis.view import View

__all__ = ["starvation"]

Bools = npt.NDArray[np.bool_]
_MATERIAL = 0.01


def starvation(view: View) -> Claim | None:
    """Urgent requests wait for seats or blocks while less urgent ones hold them."""
    level = levels(view) if order_in_force(view) == "priority" else None
    if level is None:
        return None
    queued = np.maximum(view.parts.waited(np.ones(len(view.data.iterations))), 1)
    for each in np.unique(level)[:-1].tolist():
        urgent = level <= each
        waited = view.first["seats"] + view.first["kv"]
        if (view.first_excess[urgent] > 0).mean() < _MATERIAL or waited[urgent].sum() < 0.3 * view.first_excess[urgent].sum():
            continue
        inverted = _inverted(view, urgent)
        lasted = view.parts.waited(inverted)
        share = float(lasted[urgent].sum() / queued[urgent].sum())
        if share >= 0.5:
            return _claim(view, urgent, lasted / queued, share)
    return None


def _inverted(view: View, urgent: Bools) -> Bools:
    """Iterations where their engine's head was refused a seat or blocks while somebody less urgent ran there."""
    rows, outcomes = view.data.iterations, view.data.outcomes
    found = view.parts.refused("seats") | view.parts.refused("kv")
    admitted = outcomes["arrival_ns"] + np.maximum(outcomes["queue_ns"], 0)
    for replica, part in view.parts.engines.items():
        lower = ~urgent & (outcomes["queue_ns"] >= 0) & (outcomes["replica"] == replica)
        start = rows["start_ns"][part]
        there = np.searchsorted(np.sort(admitted[lower]), start, "right") - np.searchsorted(
            np.sort(outcomes["last_token_ns"][lower]), start, "right"
        )
        found[part] &= there > 0
    return found


def _claim(view: View, urgent: Bools, weight: npt.NDArray[np.float64], share: float) -> Claim:
    rows, _scheduler = view.data.outcomes, view.data.policy.scheduler
    slow = view.slowest(urgent)
    mine = np.where(urgent, 1.0, 0.0)
    classes = view.classes_of(mine)
    return Claim(
        id="STARVATION",
        what=f"in {percent(share)} of the time that urgent requests{_named(classes)} wait, less urgent ones hold"
        " what they wait for;"
        f" their slowest 5 % take {seconds(float(np.median(rows['ttft_ns'][slow])))} to the first token",
        first=dict.fromkeys(("budget", "seats", "kv", "gate", "under_way"), weight * mine),
        evidence=(
            fact(
                "inverted",
                share,
                "of the urgent requests' waiting time",
                0.5,
                note="every place taken, and a less urgent request in one of them",
            ),
            evidence(view, "block[seats]"),
            evidence(view, "block[kv]"),
            evidence(view, "kv max"),
        ),
        is_not=("QUEUE_SEATS: more seats would be taken by the less urgent ones that wait, too",),
        changes=_room(view, urgent),
        tempting=(scaled(view, "max_num_seqs", 2, "all seats are taken"),),
        because="who ran while they waited is logged",
        urgent=True,
    )


def _reserve(view: View, urgent: Bools) -> int:
    """Seats that urgent requests take at a time, by Little's law, with room for their peaks."""
    rows = view.data.outcomes[urgent]
    served = np.maximum(rows["e2e_ns"], 0) - np.maximum(rows["queue_ns"], 0)
    length = max(int(rows["last_token_ns"].max()) - int(rows["arrival_ns"].min()), 1)
    mean = float(served.sum()) / length
    return max(1, min(int(np.ceil(mean + 2 * np.sqrt(mean))), view.data.policy.scheduler.max_num_seqs // 2))


def _named(classes: tuple[str, ...]) -> str:
    return f" ({', '.join(classes)})" if classes else ""


def _room(view: View, urgent: Bools) -> tuple[Change, ...]:
    rows, scheduler, reserve = view.data.outcomes, view.data.policy.scheduler, _reserve(view, urgent)
    level = int(view.data.source.priority[rows["request"][urgent]].max())  # type: ignore[index]
    preempt = change(
        "preemption.to_admit",
        False,
        True,
        "an urgent request then takes the place of the least urgent one that runs",
        price="what it displaces is computed again: less urgent requests wait longer and some work is done twice",
        tolerated=0.35,
    )
    keep = change(
        "order.reserved",
        "none",
        f"priority={level} seqs={reserve}",
        "room is kept for urgent requests",
        price=f"{reserve} of {scheduler.max_num_seqs} seats stay empty when nothing urgent is there",
        tolerated=0.35,
    )
    return preempt, keep
