"""The matrix's view of what requests got: latencies, throughput, how they ended."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from replay_engine.tables import ENUMS
from replay_engine.types import RequestState
from tracekit.metrics.distributions import describe, missing
from tracekit.metrics.inputs import MatrixInputs
from tracekit.metrics.traffic import run_length

__all__ = ["ends_section", "latency_section", "throughput_section"]

Rows = npt.NDArray[np.void]


def known(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The values that are known: not -1, not NaN."""
    keep = ~np.isnan(column) if column.dtype.kind == "f" else column >= 0
    return np.ascontiguousarray(column) if keep.all() else column[keep]


def latency_section(inputs: MatrixInputs, rows: Rows) -> dict[str, Any]:
    """Distributions in ns over the counted requests that have the value; ITL is pooled over all their gaps."""
    gap = known(rows["max_gap_ns"])
    return {
        "queue_ns": describe(known(rows["queue_ns"]), "no request was scheduled"),
        "ttft_ns": describe(known(rows["ttft_ns"]), "no request got a first token"),
        "tpot_ns": describe(known(rows["tpot_ns"]), "no request has two tokens"),
        "itl_ns": missing(inputs.gaps_reason) if inputs.gaps is None else inputs.gaps.pooled(),
        "e2e_ns": describe(known(rows["e2e_ns"]), "no request finished"),
        "longest_gap_ns": describe(gap, "no request has two tokens") | _longest(rows),
        "stalled_ns": _stalled(inputs, rows),
    }


def _longest(rows: Rows) -> dict[str, Any]:
    if not rows.size or int(rows["max_gap_ns"].max()) < 0:
        return {}
    return {"request": int(rows["request"][int(rows["max_gap_ns"].argmax())])}


def _stalled(inputs: MatrixInputs, rows: Rows) -> dict[str, Any]:
    """Sum over gaps of the time beyond the threshold."""
    if inputs.stall_threshold_ns is None:
        return missing(inputs.stall_rule)
    stalled = known(rows["stalled_ns"])
    return {
        "total": int(stalled.sum()),
        "requests": int(np.count_nonzero(stalled)),
        "max": int(stalled.max(initial=0)),
        "n": int(stalled.size),
        "threshold_ns": inputs.stall_threshold_ns,
        "rule": inputs.stall_rule,
    }


def throughput_section(rows: Rows, window_ns: int) -> dict[str, Any]:
    """Finished requests and their tokens, per second of the arrival window and of the run to the last completion."""
    finished = rows["state"] == RequestState.finished
    requests = int(np.count_nonzero(finished))
    output = int(rows["output_tokens"][finished].sum())
    prompt = int(rows["prompt_tokens"][finished].sum())
    run_ns = run_length(rows)
    section: dict[str, Any] = {}
    for name, length, reason in (
        ("window", window_ns, "the arrival window is empty: all arrivals are at one instant"),
        ("run", run_ns, "no request got a token"),
    ):
        for figure, amount in (("output_tokens", output), ("total_tokens", prompt + output), ("requests", requests)):
            section[f"{name}_{figure}_per_s"] = amount / length * 1e9 if length > 0 else missing(reason)
        section[f"{name}_ns"] = length
    return section


def ends_section(rows: Rows) -> dict[str, Any]:
    """How the counted requests ended, and why those that did not finish."""
    states = np.bincount(rows["state"], minlength=len(RequestState))
    section: dict[str, Any] = {state.name: int(states[state]) for state in RequestState}
    names = ENUMS["outcomes", "reason"]
    reasons = np.bincount(rows["reason"][rows["state"] != RequestState.finished], minlength=len(names))
    found = {names[code]: int(count) for code, count in enumerate(reasons) if count and code < len(names)}
    section["reasons"] = found or missing("every request finished")
    return section
