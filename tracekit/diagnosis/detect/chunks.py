"""The token budget itself: too small a piece of a prompt per iteration, too large a one, or a part of it that stays empty."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from replay_engine.types import Refusal
from tracekit.diagnosis.claim import BESIDE, Claim, change, percent, round_up, scaled, seconds
from tracekit.diagnosis.detect.load import limit_weight
from tracekit.diagnosis.finding import Change, Evidence
from tracekit.diagnosis.signals import evidence, fact
from tracekit.diagnosis.view import View

__all__ = ["aligned_away", "fixed_cost", "too_large", "underused"]


def aligned_away(view: View) -> Claim | None:
    """Chunks are multiples of an alignment that is as large as the budget: what is left of an iteration is of no use."""
    batching, scheduler = view.data.policy.rules.batching, view.data.policy.scheduler
    align, budget = batching.chunk_align, scheduler.token_budget
    if align <= 1 or budget >= 4 * align:
        return None
    wasted, seats = evidence(view, "left below align", 0.5), scheduler.max_num_seqs
    useless = view.parts.refused("budget") & (view.fill < 0.95)
    if (wasted.value or 0.0) < 0.5 or view.share_of_queue(useless) < 0.2:
        return None
    more = _several_blocks(view)
    return Claim(
        id="CHUNK_TOO_SMALL",
        what=f"the budget of {budget} tokens holds {budget // align} alignment block of {align}: in"
        f" {percent(wasted.value or 0)} of the"
        f" refusals what is left of it is less than that, and prompts are computed one by one",
        first=dict.fromkeys(("budget", "under_way", *BESIDE), 1.0),
        evidence=(
            wasted,
            evidence(view, "running max", note=f"of {seats} seats"),
            evidence(view, "waiting max"),
            evidence(view, "kv max"),
            evidence(view, "decode only"),
            evidence(view, "fill_w"),
            evidence(view, "stall_max"),
        ),
        is_not=(f"QUEUE_SEATS: at most {int(view.data.iterations['running'].max())} of {seats} seats are taken",),
        changes=(
            more,
            change(
                "batching.chunk_align",
                align,
                1,
                "any rest of the budget could be used",
                price="needs an engine that can split anywhere",
            ),
        ),
        tempting=(scaled(view, "max_num_seqs", 2, "prompts wait"),),
        because="what was left of the budget is known for every refusal",
    )


def fixed_cost(view: View) -> Claim | None:
    """Iterations are so small that what each costs anyway is most of it."""
    share, budget = evidence(view, "fixed share", 0.35), view.data.policy.scheduler.token_budget
    capacity = view.capacity
    if (
        (share.value or 0.0) < 0.35
        or view.block["budget"] < 0.3
        or (evidence(view, "fill_w").value or 0) < 0.8
        or capacity is None
    ):
        return None
    latency = view.data.profile.latency
    fixed = max(latency.floor_ns, latency.a_ns) + latency.h0_ns
    enough = 2 ** round(np.log2(max(fixed * 4 / max(latency.b_ns, 1e-9), 2.0 * budget)))
    more = change(
        "max_num_batched_tokens",
        budget,
        int(enough),
        "the fixed cost of an iteration is then a fifth of it",
        price=f"iterations with prefill take up to {seconds(fixed + latency.b_ns * enough)}: token gaps grow to that",
        tolerated=0.3,
    )
    return Claim(
        id="CHUNK_TOO_SMALL",
        what=f"{percent(share.value or 0)} of a full iteration of {budget} tokens is its fixed cost of {seconds(fixed)}",
        first=dict.fromkeys(("budget", "under_way", *BESIDE), limit_weight(view)),
        later={"interference": 1.0, "stalled": 1.0},
        evidence=(share, evidence(view, "block[budget]", 0.3), evidence(view, "fill_w", 0.8), evidence(view, "kv max")),
        is_not=("OVERLOAD: the same requests in fewer iterations cost less",),
        changes=(more,),
        tempting=(scaled(view, "max_num_seqs", 2, "requests wait"),),
        because="the profile's fixed cost against what full iterations took",
    )


def underused(view: View) -> Claim | None:
    """The head is refused for the budget, and part of the budget stays empty."""
    _batching, scheduler = view.data.policy.rules.batching, view.data.policy.scheduler
    refused = view.parts.refused("budget")
    rows = view.data.iterations
    codes = [int(Refusal.prefill_limit), int(Refusal.no_chunking)]
    named = bool(np.isin(rows["head_refused_by"][refused], codes).any())
    length = rows["duration_ns"][refused].astype(np.float64)
    filled = float((view.fill[refused] * length).sum() / max(length.sum(), 1.0)) if refused.any() else 1.0
    if not refused.any() or filled > 0.87 or view.block["budget"] < 0.2:
        return None
    half = refused & (view.fill < 0.87)
    changes = _fuller(view)
    if not changes:
        return None
    smaller = max(scheduler.token_budget // 2, 1)
    return Claim(
        id="UNDERUSED_BUDGET",
        what=f"while requests wait {percent(1 - filled)} of the token budget stays empty: {int(half.sum())} of"
        f" {int(refused.sum())}"
        " iterations that refuse the head for it have room for a part of its prompt",
        first=dict.fromkeys(("budget", "under_way", *BESIDE), 1.0),
        evidence=_underused_evidence(view, float(np.isin(rows["head_refused_by"][refused], codes).mean())),
        is_not=("QUEUE_BUDGET: what there is of it is not used", "QUEUE_SEATS, QUEUE_KV: both have room"),
        changes=changes,
        tempting=(
            change("max_num_batched_tokens", scheduler.max_num_batched_tokens, smaller, "iterations are half empty"),
            scaled(view, "max_num_seqs", 2, "requests wait"),
        ),
        confidence="high" if named else "medium",
        because="the refusals name the rule" if named else "this rests on how full iterations are: no refusal names the rule",
    )


def _fuller(view: View) -> tuple[Change, ...]:
    batching, scheduler = view.data.policy.rules.batching, view.data.policy.scheduler
    budget, found = scheduler.token_budget, []
    prompt = view.data.outcomes["prompt_tokens"]
    whole = round_up(float(np.quantile(prompt, 0.99)), 512)
    if whole > budget:
        found.append(
            change(
                "max_num_batched_tokens",
                budget,
                whole,
                "one typical prompt fits an iteration whole",
                price="longer iterations: token gaps grow with the budget",
                tolerated=0.3,
            )
        )
    if batching.max_partial_prefills is not None:
        found.append(
            change(
                "batching.max_partial_prefills",
                batching.max_partial_prefills,
                "none",
                "the rest of the budget goes to the next prompt",
                price="needs an engine that can split a second prompt",
            )
        )
    if not scheduler.enable_chunked_prefill:
        found.append(
            change("enable_chunked_prefill", False, True, "a part of the head's prompt fits", price="prompts take turns")
        )
    if scheduler.long_prefill_token_threshold:
        found.append(
            change("long_prefill_token_threshold", scheduler.long_prefill_token_threshold, 0, "one prompt may fill the rest")
        )
    if batching.decode_reserve:
        found.append(change("batching.decode_reserve", batching.decode_reserve, 0, "decodes do not take what is kept for them"))
    return tuple(found)


def too_large(view: View) -> Claim | None:
    """An iteration that computes prompts is so long that every stream beside it pauses."""
    rows, limit = view.data.iterations, view.yardstick.limits["gap"]
    finite = limit[np.isfinite(limit)]
    if not len(finite) or not view.later["interference"].any():
        return None
    allowed = float(np.median(finite))
    long = (rows["duration_ns"] > allowed) & (rows["prefill_tokens"] > 0) & (rows["decode_seqs"] > 0)
    if not long.any() or (not view.data.slo_parts and float(rows["duration_ns"][long].max()) < 1.3 * allowed):
        return None
    less = _smaller(view, long, allowed)
    if less is None:
        return None
    return Claim(
        id="CHUNK_TOO_LARGE",
        what=f"{int(long.sum())} iterations with prefill take longer than the {seconds(allowed)} that a token gap may: up to"
        f" {seconds(float(rows['duration_ns'][long].max()))}, and everybody who decodes waits for them",
        later={"interference": 1.0},
        evidence=(
            evidence(view, "stall_max", allowed / 1e9),
            fact(
                "long iterations",
                float(long.sum()),
                "iterations",
                0.0,
                sql=f"SELECT count(*) FROM iterations WHERE run = {{run}} AND duration_ns > {allowed:.0f}"
                " AND prefill_tokens > 0 AND decode_seqs > 0",
            ),
        ),
        is_not=("OVERLOAD: the iterations are long because of what one may hold, not because of a queue",),
        changes=(less,),
        measure="gap",
        iterations=long,
        tempting=(scaled(view, "max_num_batched_tokens", 2, "prompts would be done sooner"),),
        because="every iteration's length is logged",
    )


def _several_blocks(view: View) -> Change:
    batching, scheduler = view.data.policy.rules.batching, view.data.policy.scheduler
    align, budget = batching.chunk_align, scheduler.token_budget
    several = 2 * align if budget < 2 * align else 4 * align
    latency = view.data.profile.latency
    stall = (latency.a_ns + latency.b_ns * several) / 1e9
    return change(
        "max_num_batched_tokens",
        budget,
        several,
        f"{several // align} alignment blocks: a decode no longer blocks a prompt",
        price=f"streams pause up to {stall:.3g} s beside a full iteration; twice as much again gains little and doubles that",
        tolerated=0.3,
    )


def _underused_evidence(view: View, named: float) -> tuple[Evidence, ...]:
    return (
        evidence(view, "fill_w", 0.87),
        evidence(view, "iterations full"),
        evidence(view, "iterations half full"),
        evidence(view, "block[budget]", 0.2),
        evidence(view, "kv max"),
        evidence(view, "seats taken"),
        fact(
            "refused for a rule",
            named,
            "of refusals",
            note="a second partial prompt, or no chunks at all",
        ),
    )


def _smaller(view: View, long: npt.NDArray[np.bool_], allowed: float) -> Change | None:
    """A budget that the ``long`` iterations would end in time with; ``None`` where decoding alone takes as long."""
    scheduler, latency, rows = view.data.policy.scheduler, view.data.profile.latency, view.data.iterations
    beside = float(np.median((rows["duration_ns"] - view.parts.interference)[long]))
    fits = max(allowed - beside, 0.1 * allowed) / max(latency.b_ns, 1e-9)
    budget = int(2 ** np.floor(np.log2(max(fits, 64.0))))
    if beside >= allowed or budget >= scheduler.token_budget:
        return None
    return change(
        "max_num_batched_tokens",
        scheduler.max_num_batched_tokens,
        budget,
        "an iteration then ends within what a gap may take",
        price=f"more iterations a prompt, {seconds(max(latency.floor_ns, latency.a_ns))} each: prompts take longer",
        tolerated=0.3,
    )
