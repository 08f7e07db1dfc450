"""Streams that stand still while prompts are computed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from replay_engine.types import Phase
from tracekit.diagnosis.claim import Claim, change, seconds
from tracekit.diagnosis.finding import Change
from tracekit.diagnosis.signals import evidence, fact
from tracekit.diagnosis.view import View

__all__ = ["prefill_stalls_decode"]


def prefill_stalls_decode(view: View) -> Claim | None:
    """Iterations either prefill or decode, and prefill has its way."""
    batching, scheduler = view.data.policy.rules.batching, view.data.policy.scheduler
    stalled = view.data.spans[view.data.spans["phase"] == int(Phase.stalled)]
    if batching.step not in ("prefill_first", "interleave") or not len(stalled) or not view.later["stalled"].any():
        return None
    length = (stalled["end_ns"] - stalled["start_ns"]).astype(np.float64)
    worst, budget = stalled[int(length.argmax())], scheduler.token_budget
    runs = evidence(view, "prefill runs", 5)
    return Claim(
        id="PREFILL_STALLS_DECODE",
        what=f"streams stand still for up to {seconds(float(view.data.outcomes['max_gap_ns'].max()))} while"
        " prompts are computed: up to"
        f" {int(runs.value or 0)} iterations in a row prefill and decode nobody",
        later={"stalled": 1.0},
        evidence=(
            evidence(view, "stall_max", float(np.median(view.yardstick.limits["gap"])) / 1e9),
            runs,
            fact(
                "stalled",
                float(length.sum()) / 1e9,
                "s",
                sql="SELECT sum(end_ns - start_ns) / 1e9 FROM spans WHERE run = {run} AND phase = 'stalled'",
            ),
            fact("streams stalled", float(np.unique(stalled["request"]).size / len(view.data.outcomes)), "of requests"),
        ),
        is_not=("CHUNK_TOO_LARGE: a smaller budget makes the same prompt take more iterations, and the stall longer",),
        changes=_changes(view),
        tempting=(
            change(
                "max_num_batched_tokens",
                scheduler.max_num_batched_tokens,
                max(budget // 4, 128),
                "smaller chunks, shorter stalls",
            ),
        ),
        measure="gap",
        culprits=_prefilled_in(view, stalled[np.argsort(length)[-50:]]),
        because=f"each stall is logged; the longest begins at iteration {int(worst['start_iteration'])}",
    )


def _prefilled_in(view: View, stalls: npt.NDArray[np.void]) -> tuple[int, ...]:
    """The requests whose prompts took most tokens in the iterations of the longest stalls."""
    entries = view.data.entries
    total: dict[int, int] = {}
    for stall in stalls:
        own = entries[
            (entries["replica"] == stall["replica"])
            & (entries["iteration"] >= stall["start_iteration"])
            & (entries["iteration"] <= stall["end_iteration"])
        ]
        for request, tokens in zip(own["request"].tolist(), own["query_len"].tolist(), strict=True):
            total[request] = total.get(request, 0) + tokens
    return tuple(sorted(total, key=lambda request: (-total[request], request))[:10])


def _changes(view: View) -> tuple[Change, ...]:
    batching = view.data.policy.rules.batching
    mixed = change(
        "batching.step",
        batching.step,
        "decode_first",
        "every iteration decodes, and prefills in the rest of its budget",
        price="iterations with prefill last longer than those that only decode: the 99th percentile of all token gaps rises"
        " while the longest falls",
    )
    turns = change(
        "batching.interleave",
        batching.interleave if batching.step == "interleave" else "none",
        "1:1",
        "a decode iteration after every prefill iteration",
        sets=("batching.step=interleave", "batching.interleave=1:1"),
        price="prompts take a few percent longer; the 99th percentile of all token gaps rises while the longest falls",
    )
    return (mixed, turns) if batching.step == "prefill_first" else (mixed,)
