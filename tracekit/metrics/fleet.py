"""The matrix's view of several replicas: who did what, how even it was, what failures cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from replay_engine.types import Phase, Refusal
from tracekit.metrics.distributions import missing
from tracekit.metrics.gaps import TokenGaps, token_gaps
from tracekit.metrics.inputs import MatrixInputs, Totals
from tracekit.metrics.written import written_block_ns

__all__ = ["fleet_gaps", "fleet_section", "fleet_written"]

Rows = npt.NDArray[np.void]
_ONE = "one engine: see --replicas"


def fleet_section(inputs: MatrixInputs, rows: Rows) -> dict[str, Any]:
    """``rows``: the counted outcomes. Imbalance is the largest over the mean of the replicas, 1 for an even share."""
    fleet, totals = inputs.rules.fleet, inputs.by_replica
    names = ("by_replica", "imbalance_requests", "imbalance_tokens", "imbalance_busy", "retried", "retries", "faults")
    if not inputs.rules.several:
        return {"replicas": 1, "router": missing(_ONE), **dict.fromkeys(names, missing(_ONE))}
    sent = np.bincount(rows["replica"][rows["replica"] >= 0], minlength=len(totals)) if len(rows) else np.zeros(len(totals), int)
    planned = ", ".join(part for part in (fleet.fail and f"fail {fleet.fail}", fleet.slow and f"slow {fleet.slow}") if part)
    run_ns = _run_ns(totals)
    return {
        "replicas": fleet.replicas if fleet.active else len(totals),
        "router": fleet.router if fleet.active else missing("one a pool: see Prefill and decode pools"),
        "by_replica": {str(n): _replica(each, int(sent[n]), run_ns) for n, each in enumerate(totals)},
        "imbalance_requests": _imbalance(sent),
        "imbalance_tokens": _imbalance(np.array([each.prefill_tokens + each.decode_tokens for each in totals])),
        "imbalance_busy": _imbalance(np.array([each.busy_ns for each in totals])),
        "retried": int((rows["retries"] > 0).sum()),
        "retries": int(rows["retries"].sum()),
        "faults": planned or missing("none was planned: see --fail and --slow"),
    }


def _run_ns(totals: Sequence[Totals]) -> int:
    ran = [each for each in totals if each.iterations]
    return max(each.last_end_ns for each in ran) - min(each.first_start_ns for each in ran) if ran else 0


def _replica(totals: Totals, requests: int, run_ns: int) -> dict[str, Any]:
    return {
        "requests": requests,
        "iterations": totals.iterations,
        "busy_share": totals.busy_ns / run_ns if run_ns else 0.0,
        "tokens": totals.prefill_tokens + totals.decode_tokens,
        "prefix_hit_tokens": totals.prefix_hit_tokens,
        "preemptions": totals.preemptions,
        "kv_high_water_share": totals.kv_used_max / totals.kv_total if totals.kv_total else 0.0,
    }


def _imbalance(values: npt.NDArray[Any]) -> Any:
    mean = float(values.mean()) if values.size else 0.0
    return float(values.max()) / mean if mean else missing("no replica did anything")


def last_life(spans: Rows, outcomes: Rows) -> Rows:
    """``spans`` without those of earlier attempts of requests that were sent again after their replica had failed."""
    again = outcomes["request"][outcomes["retries"] > 0]
    if not again.size:
        return spans
    began = np.full(int(spans["request"].max(initial=0)) + 1, np.iinfo(np.int64).min)
    starts = spans[(spans["phase"] == Phase.queued) & (spans["reason"] == Refusal.replica_failed)]
    np.maximum.at(began, starts["request"], starts["start_ns"])
    kept: Rows = spans[spans["start_ns"] >= began[spans["request"]]]
    return kept


def fleet_gaps(
    iterations: Rows, spans: Rows, outcomes: Rows, counted: npt.NDArray[np.bool_], *, first_elsewhere: bool = False
) -> TokenGaps:
    """Token gaps of all replicas: the requests of each, as they ended there. Rows have a ``replica``. ``first_elsewhere``: the
    first token came from another engine, and the gap to the second one spans the way."""
    if not iterations.size:
        return token_gaps(iterations, spans, outcomes, counted)
    spans = last_life(spans, outcomes)
    home = np.full(counted.size, -1)
    home[outcomes["request"]] = outcomes["replica"]
    parts = []
    for replica in np.unique(iterations["replica"]):
        own = spans[(spans["replica"] == replica) & (home[spans["request"]] == replica)]
        parts.append(
            token_gaps(iterations[iterations["replica"] == replica], own, outcomes[outcomes["replica"] == replica], counted)
        )
    request, gap = _handed_over(spans, outcomes, home, counted) if first_elsewhere else (np.empty(0, np.int64),) * 2
    shift = np.cumsum([0, *(part.step_ns.size for part in parts)])
    moved = [part.runs + np.array([0, at, at]) for part, at in zip(parts, shift, strict=False)]
    return TokenGaps(
        step_ns=np.concatenate([part.step_ns for part in parts]),
        weight=np.concatenate([part.weight for part in parts]),
        runs=np.concatenate(moved),
        single_ns=np.concatenate([*(part.single_ns for part in parts), gap]),
        single_request=np.concatenate([*(part.single_request for part in parts), request]),
    )


def _handed_over(
    spans: Rows, outcomes: Rows, home: npt.NDArray[np.int64], counted: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Requests whose first token came from another engine than the one they ended on, and their gaps to the second one."""
    first = np.full(home.size, np.iinfo(np.int64).max)
    spoke = outcomes[(outcomes["ttft_ns"] >= 0) & (outcomes["output_tokens"] > 1)]
    first[spoke["request"]] = spoke["arrival_ns"] + spoke["ttft_ns"]
    own = spans[(spans["phase"] == Phase.prefill) & (spans["replica"] == home[spans["request"]]) & counted[spans["request"]]]
    own = own[own["end_ns"] > first[own["request"]]]
    order = np.lexsort((own["end_ns"], own["request"]))
    request, at = np.unique(own["request"][order], return_index=True)
    return request.astype(np.int64), own["end_ns"][order][at] - first[request]


def fleet_written(iterations: Rows, entries: Rows, spans: Rows, outcomes: Rows, block_size: int) -> float:
    """Written block time of all replicas (``written_block_ns``)."""
    written = 0.0
    for replica in np.unique(iterations["replica"]) if iterations.size else ():
        own = [table[table["replica"] == replica] for table in (iterations, entries, spans, outcomes)]
        written += written_block_ns(own[0], own[1], own[2], own[3], block_size)
    return written
