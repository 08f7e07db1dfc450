"""Streams that stand still while prompts are computed."""

from __future__ import annotations

import numpy as np

from replay_engine.types import Phase
from tracekit.diagnosis.claim import Claim, change, percent, seconds
from tracekit.diagnosis.finding import Evidence
from tracekit.diagnosis.signals import evidence
from tracekit.diagnosis.view import View

__all__ = ["prefill_stalls_decode"]


def prefill_stalls_decode(view: View) -> Claim | None:
    """Iterations either prefill or decode, and prefill has its way."""
    batching, scheduler = view.data.policy.rules.batching, view.data.policy.scheduler
    stalled = view.data.spans[view.data.spans["phase"] == int(Phase.stalled)]
    if batching.step not in ("prefill_first", "interleave") or not len(stalled) or not view.later["stalled"].any():
        return None
    length = (stalled["end_ns"] - stalled["start_ns"]).astype(np.float64)
    worst = stalled[int(length.argmax())]
    culprits = _prefilled_in(view, stalled[np.argsort(length)[-50:]])
    budget = scheduler.token_budget
    mixed = change("batching.step", batching.step, "decode_first", "every iteration decodes, and prefills in the rest of its budget",
                   price="iterations with prefill last longer than those that only decode: the 99th percentile of all token gaps rises"
                   " while the longest falls")  # fmt: skip
    turns = change("batching.interleave", batching.interleave if batching.step == "interleave" else "none", "1:1",
                   "a decode iteration after every prefill iteration", sets=("batching.step=interleave", "batching.interleave=1:1"),
                   price="prompts take a few percent longer; the 99th percentile of all token gaps rises while the longest falls")  # fmt: skip
    runs = evidence(view, "prefill runs", 5)
    return Claim(
        id="PREFILL_STALLS_DECODE",
        what=f"streams stand still for up to {seconds(float(view.data.outcomes['max_gap_ns'].max()))} while prompts are computed: up to"
             f" {int(runs.value or 0)} iterations in a row prefill and decode nobody",
        later={"stalled": 1.0},
        evidence=(
            evidence(view, "stall_max", float(np.median(view.yardstick.limits["gap"])) / 1e9), runs,
            Evidence(metric="stalled", value=float(length.sum()) / 1e9, unit="s",
                     sql="SELECT sum(end_ns - start_ns) / 1e9 FROM spans WHERE run = {run} AND phase = 'stalled'"),
            Evidence(metric="streams stalled", value=float(np.unique(stalled["request"]).size / len(view.data.outcomes)), unit="of requests",
                     sql=None),
        ),
        is_not=("CHUNK_TOO_LARGE: a smaller budget makes the same prompt take more iterations, and the stall longer",),
        changes=(mixed, turns) if batching.step == "prefill_first" else (mixed,),
        tempting=(change("max_num_batched_tokens", scheduler.max_num_batched_tokens, max(budget // 4, 128), "smaller chunks, shorter stalls"),),
        measure="gap", culprits=culprits,
        because=f"each stall is logged; the longest ({seconds(float(length.max()))}) begins at iteration {int(worst['start_iteration'])}",
    )  # fmt: skip


def _prefilled_in(view: View, stalls: np.ndarray) -> tuple[int, ...]:  # type: ignore[type-arg]
    """The requests whose prompts took most tokens in the iterations of the longest stalls."""
    entries, total = view.data.entries, {}
    for stall in stalls:
        own = entries[(entries["replica"] == stall["replica"]) & (entries["iteration"] >= stall["start_iteration"])
                      & (entries["iteration"] <= stall["end_iteration"])]  # fmt: skip
        for request, tokens in zip(own["request"].tolist(), own["query_len"].tolist(), strict=True):
            total[request] = total.get(request, 0) + tokens
    return tuple(sorted(total, key=lambda request: (-total[request], request))[:10])
