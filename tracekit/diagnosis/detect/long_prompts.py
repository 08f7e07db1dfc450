"""Short requests behind long prefills."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.diagnosis.claim import Claim, change, percent, scaled, seconds
from tracekit.diagnosis.finding import Change, Evidence
from tracekit.diagnosis.signals import evidence, fact, q_share95, slow_share
from tracekit.diagnosis.view import View

__all__ = ["hol_long_prompt"]

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
_LONGER = 8.0
"""How many times the median prompt makes a long one, where it also takes more than two iterations."""
_FEW = 0.25
"""Where more of the requests than this are long, they are the traffic."""


def hol_long_prompt(view: View) -> Claim | None:
    """A few long prompts take the whole budget of iteration after iteration, and the others get nothing of it."""
    prompt, scheduler = view.data.outcomes["prompt_tokens"], view.data.policy.scheduler
    budget = scheduler.token_budget
    long = prompt >= max(_LONGER * float(np.median(prompt)), 2 * budget)
    if not long.any() or long.mean() > _FEW:
        return None
    refused = view.parts.refused("budget")
    held = _held(view, long)
    weight = view.parts.waited(held * refused)
    waited = np.maximum(view.parts.first["budget"], 1.0)
    short = np.where(long, 0.0, 1.0)
    claimed = view.first["budget"] * np.minimum(weight / waited, 1.0) * short
    share = slow_share(view, ~long, held > 0.5)
    if claimed.sum() < 0.02 * view.excess_ns or claimed.sum() < 0.1 * (view.first["budget"] * short).sum():
        return None
    return _claim(view, long, np.minimum(weight / waited, 1.0) * short, held, share)


def _held(view: View, long: Bools) -> Floats:
    """Per iteration: the share of its prefill tokens that long prompts took."""
    rows, entries = view.data.iterations, view.data.entries
    own = entries[long[view.rows_of(entries["request"])]]
    found = np.zeros(len(rows))
    for replica, part in view.parts.engines.items():
        mine = own[own["replica"] == replica]
        at = np.searchsorted(rows["iteration"][part], mine["iteration"])
        found[part] = np.bincount(at, weights=mine["query_len"], minlength=part.stop - part.start)[: part.stop - part.start]
    share: Floats = np.minimum(found / np.maximum(rows["prefill_tokens"], 1), 1.0)
    return share


def _claim(view: View, long: Bools, weight: Floats, held: Floats, share: float) -> Claim:
    rows, _scheduler, _latency = view.data.outcomes, view.data.policy.scheduler, view.data.profile.latency
    prompts = rows["prompt_tokens"][long].astype(np.float64)
    alone = view.yardstick_alone(long)
    order = np.argsort(-rows["prompt_tokens"][long], kind="stable")
    culprits = tuple(rows["request"][long][order][:20].tolist())
    busy = float(view.data.iterations["duration_ns"][held > 0.5].sum()) / max(
        float(view.data.iterations["duration_ns"].sum()), 1.0
    )
    return Claim(
        id="HOL_LONG_PROMPT",
        what=f"{percent(share)} of the waiting time of the slowest short requests falls inside the prefills of"
        f" {int(long.sum())} prompts of {int(prompts.min()):,} tokens and more, which take {percent(busy)} of the time",
        first=dict.fromkeys(("budget", "under_way"), weight),
        evidence=(*_evidence(view, long, share, busy),),
        is_not=(
            f"OVERLOAD: nothing waits in {percent(1 - _queue_time(view))} of the time",
            "QUEUE_BUDGET: the prompt in progress takes a larger budget whole as well",
            f"QUEUE_KV: at most {percent(float(view.kv.max()))} of the KV is in use",
        ),
        changes=_caps(view, long, alone),
        tempting=(
            scaled(view, "max_num_batched_tokens", 2, "the budget is full"),
            scaled(view, "max_num_seqs", 4, "requests wait"),
        ),
        culprits=culprits,
        iterations=(held > 0.5) & view.queued,
        because=f"who held the budget is logged: longest {seconds(alone)} of prefill alone",
    )


def _queue_time(view: View) -> float:
    rows = view.data.outcomes
    length = max(int(rows["last_token_ns"].max()) - int(rows["arrival_ns"].min()), 1)
    return min(float(view.data.iterations["duration_ns"][view.queued].sum()) / length / max(len(view.parts.engines), 1), 1.0)


def _at_a_time(view: View, long: Bools) -> int:
    """How many long prompts are computed at a time, in the busiest twentieth of the time that any is."""
    rows = view.data.outcomes[long & (view.data.outcomes["ttft_ns"] >= 0)]
    begin = np.sort(rows["arrival_ns"] + rows["queue_ns"])
    end = np.sort(rows["arrival_ns"] + rows["ttft_ns"])
    moments = np.unique(np.concatenate([begin, end]))
    level = (np.searchsorted(begin, moments, "right") - np.searchsorted(end, moments, "right"))[:-1]
    length = np.diff(moments)
    length, level = length[level > 0], level[level > 0]
    if not len(level):
        return 1
    order = np.argsort(level)
    reached = np.cumsum(length[order]) >= 0.95 * length.sum()
    return max(1, min(int(level[order][np.argmax(reached)]) // max(len(view.parts.engines), 1), 3))


def _caps(view: View, long: Bools, alone: float) -> tuple[Change, ...]:
    """Half of the budget, or less where several long prompts are computed at a time; and a quarter of that."""
    scheduler, latency = view.data.policy.scheduler, view.data.profile.latency
    budget, step = scheduler.token_budget, max(scheduler.block_size, view.data.policy.rules.batching.chunk_align)
    cap = max(budget // (_at_a_time(view, long) + 1) // step * step, step)
    prompts = view.data.outcomes["prompt_tokens"][long].astype(np.float64)
    more = float(np.mean(prompts * (1 / cap - 1 / budget))) * (max(latency.floor_ns, latency.a_ns) + latency.h0_ns)
    extra = max(more / max(alone, 1.0), 0.1)
    limit = change(
        "long_prefill_token_threshold",
        scheduler.long_prefill_token_threshold,
        cap,
        f"one prompt then leaves {budget - cap} of {budget} tokens of every iteration to the others",
        price=f"long prompts take 10 to {max(round(100 * extra), 40)} % longer",
        tolerated=max(extra, 0.4),
    )
    smaller = max(cap // 4 // step * step, step)
    return (
        limit,
        change(
            "long_prefill_token_threshold",
            scheduler.long_prefill_token_threshold,
            smaller,
            "a shorter wait for the others still",
            price="long prompts take longer still",
            tolerated=0.6,
        ),
    )


def _evidence(view: View, long: Bools, share: float, busy: float) -> tuple[Evidence, ...]:
    shortest = int(view.data.outcomes["prompt_tokens"][long].min())
    return (
        q_share95(view, ~long, 0.8, whose="of the others than the long ones"),
        evidence(view, "block[budget]", 0.5),
        evidence(view, "fill_w", 0.9),
        evidence(view, "kv max"),
        fact("waits inside long prefills", share, "of the slow ones' waiting time", 0.5),
        fact("time of long prefills", busy, "of busy time"),
        fact(
            "long prompts",
            float(long.sum()),
            "requests",
            sql=f"SELECT count(*) FROM outcomes WHERE run = {{run}} AND prompt_tokens >= {shortest}",
        ),
    )
