"""Engines that idle while others have a queue: between replicas, within a pool, or between the pools."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.diagnosis.claim import BESIDE, QUEUE, Claim, change, percent, scaled
from tracekit.diagnosis.detect.waits_elsewhere import busy_evidence
from tracekit.diagnosis.finding import Change
from tracekit.diagnosis.signals import evidence, fact, stage
from tracekit.diagnosis.view import View

__all__ = ["imbalance", "pool_sizes"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def imbalance(view: View) -> Claim | None:
    """Requests wait at one engine while another of its kind has nothing to do."""
    engines = _kinds(view)
    if len(engines) < 2:
        return None
    moments, spare = _spare(view, engines)
    if not len(moments):
        return None
    covered = np.concatenate(([0.0], np.cumsum(np.diff(moments) * spare[:-1])))
    waits = view.parts.queued
    waits = waits.take(np.isin(waits.replica, engines))
    beside = np.interp(waits.end_ns, moments, covered) - np.interp(waits.begin_ns, moments, covered)
    per_row, queued = (np.bincount(waits.row, each, len(view.data.outcomes)) for each in (beside, waits.length_ns))
    share = float(per_row.sum() / max(queued.sum(), 1.0))
    if share < 0.3:
        return None
    return _claim(view, np.minimum(per_row / np.maximum(queued, 1.0), 1.0), share, engines)


def _kinds(view: View) -> list[int]:
    """The engines a request may be sent to when it comes."""
    rules = view.data.policy.rules
    return list(range(rules.pd.prefill or rules.fleet.replicas))


def _spare(view: View, engines: list[int]) -> tuple[Ints, Floats]:
    """Moments, and whether from each on until the next some engine computes nothing, or has no queue and at most half of its
    budget in use."""
    rows = view.data.iterations
    ends = rows["start_ns"] + rows["duration_ns"]
    of = np.isin(rows["replica"], engines)
    moments = np.unique(np.concatenate([rows["start_ns"][of], ends[of]]))
    spare = np.zeros(len(moments), bool)
    light = (rows["waiting"] == 0) & (view.fill < 0.5) & (rows["prefill_tokens"] == 0)
    for replica in engines:
        own = (rows["replica"] == replica) & ~light
        level = np.searchsorted(np.sort(rows["start_ns"][own]), moments, "right") - np.searchsorted(
            np.sort(ends[own]), moments, "right"
        )
        spare |= level <= 0
    return moments, spare.astype(np.float64)


def _claim(view: View, weight: Floats, share: float, engines: list[int]) -> Claim | None:
    rules = view.data.policy.rules
    pd = rules.pd.prefill > 0
    knob, router = ("pd.prefill_router", rules.pd.prefill_router) if pd else ("fleet.router", rules.fleet.router)
    better = _router(knob, router)
    if not better:
        return None
    sent = [int((view.data.outcomes["replica"] == k).sum()) for k in engines] if not pd else _prefilled(view, engines)
    kind = "prefill engine" if pd else "replica"
    more = ("pd.prefill", rules.pd.prefill) if pd else ("fleet.replicas", rules.fleet.replicas)
    return Claim(
        id="PD_IMBALANCE" if pd else "ROUTING_IMBALANCE",
        what=f"in {percent(share)} of the time that requests queue at one {kind}, another one has nothing to do;"
        " prompts went to them"
        f" as {'/'.join(map(str, sorted(sent, reverse=True)))}",
        first=dict.fromkeys((*QUEUE, *BESIDE), weight),
        evidence=(
            fact("queued beside idle", share, "of queued time", 0.3),
            fact("stage[P queue]" if pd else "stage[queue]", stage(view, *QUEUE), "of TTFT"),
            fact("stage[transfer]", stage(view, "transfer_wait", "transfer"), "of TTFT"),
            fact("stage[D queue]", stage(view, "decode_queue"), "of TTFT"),
            *(busy_evidence(view) if pd else ()),
            evidence(view, "block[budget]"),
        ),
        is_not=(f"OVERLOAD: another {kind} could have taken the work",),
        changes=better,
        tempting=(
            change(more[0], more[1], more[1] + 1, "requests queue for these engines"),
            scaled(view, "max_num_batched_tokens", 2, "the budget is full"),
        ),
        because="where each request went, and what every engine did then, is logged",
    )


def _prefilled(view: View, engines: list[int]) -> list[int]:
    entries = view.data.entries
    return [int(np.unique(entries["request"][entries["replica"] == k]).size) for k in engines]


def _router(knob: str, router: str) -> tuple[Change, ...]:
    found = []
    if router != "least_tokens":
        found.append(
            change(
                knob,
                router,
                "least_tokens",
                "a request goes where the fewest tokens are outstanding",
                price="the router must know what it has sent and what is answered",
            )
        )
    if router not in ("least_tokens", "power_of_two"):
        found.append(change(knob, router, "power_of_two", "nearly the same from two looks"))
    return tuple(found)


def pool_sizes(view: View) -> Claim | None:
    """One pool is full while the other has little to do."""
    pd = view.data.policy.rules.pd
    if not pd.prefill:
        return None
    busy = busy_evidence(view)
    p_busy, d_busy = (float(each.value or 0.0) for each in busy)
    p_wait, d_wait = stage(view, *QUEUE), stage(view, "decode_queue")
    if p_wait < 0.2 and d_wait < 0.2:
        return None
    prefill = p_wait >= d_wait
    if (p_busy if prefill else d_busy) < 0.7:
        return None
    grown, shrunk = ("prefill", "decode") if prefill else ("decode", "prefill")
    move = _moved(view, grown, shrunk, d_busy if prefill else p_busy)
    return Claim(
        id="PD_IMBALANCE",
        what=f"the {grown} pool is busy {percent(p_busy if prefill else d_busy)} of the run and has a queue, the {shrunk} pool"
        f" {percent(d_busy if prefill else p_busy)}",
        first=dict.fromkeys(QUEUE, 1.0) if prefill else {"decode_queue": 1.0},
        evidence=(
            fact("stage[P queue]", p_wait, "of TTFT"),
            fact("stage[D queue]", d_wait, "of TTFT"),
            *busy,
        ),
        changes=(move,),
        confidence="medium",
        because="shares of busy time tell who is full, not how the work would split",
    )


def _moved(view: View, grown: str, shrunk: str, idle: float) -> Change:
    """An engine more for one pool: from the other where that has one to spare, else another one."""
    pd = view.data.policy.rules.pd
    from_other = getattr(pd, shrunk) > 1 and idle < 0.6
    old, new = f"{pd.prefill}:{pd.decode}", {"prefill": pd.prefill, "decode": pd.decode}
    new[grown] += 1
    new[shrunk] -= from_other
    return change(
        "pd",
        old,
        f"{new['prefill']}:{new['decode']}",
        f"the {grown} pool is what requests wait for",
        sets=tuple(f"pd.{pool}={new[pool]}" for pool in new if new[pool] != getattr(pd, pool)),
        price="an engine less to " + shrunk if from_other else "an engine more",
        outside=not from_other,
        tolerated=0.3,
    )
