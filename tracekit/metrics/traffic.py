"""The matrix's view of the load: what was counted, lengths, the arrival process, realised concurrency."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.metrics.distributions import describe, missing
from tracekit.metrics.inputs import MatrixInputs, Totals

__all__ = ["arrival_window", "concurrency_section", "counted_section", "traffic_section"]

_SECOND = 1_000_000_000
Rows = npt.NDArray[np.void]


def counted_section(inputs: MatrixInputs, rows: Rows, n: int) -> dict[str, Any]:
    """How many requests the figures are over, and what was left out."""
    total = int(inputs.outcomes.size if inputs.counted is None else inputs.counted.size)
    total = total if inputs.requests is None else inputs.requests
    lead_in = total - n
    return {
        "requests": n,
        "lead_in_requests": lead_in,
        "lead_in_ns": inputs.lead_in_ns,
        "not_ended": n - int(rows.size),
        "rule": (
            "latency, throughput, SLO and request counts: counted requests only (lead-in left out);"
            " KV, refusals, queue, concurrency and time: the whole replay"
            if lead_in
            else "every request of the trace slice; there was no lead-in"
        ),
    }


def traffic_section(rows: Rows) -> dict[str, Any]:
    """Length distributions in tokens, and the arrival process of the counted requests."""
    nobody = "no request was counted"
    section = {
        "input_tokens": describe(rows["prompt_tokens"], nobody),
        "output_tokens": describe(rows["output_tokens"], nobody),
    }
    return section | _arrivals(rows["arrival_ns"])


def _arrivals(arrival_ns: npt.NDArray[np.int64]) -> dict[str, Any]:
    if arrival_ns.size < 2:
        few = missing("fewer than two arrivals")
        names = ("arrival_rate_per_s", "interarrival_cv", "dispersion_1s", "peak_1s_requests", "arrival_span_ns")
        return dict.fromkeys(names, few)
    at = np.ascontiguousarray(arrival_ns)
    gaps = np.diff(at)
    if (gaps < 0).any():
        at = np.sort(at)
        gaps = np.diff(at)
    span = int(at[-1] - at[0])
    if span == 0:
        instant = missing("all arrivals are at one instant")
        return {
            "arrival_rate_per_s": instant,
            "interarrival_cv": instant,
            "dispersion_1s": instant,
            "peak_1s_requests": int(at.size),
            "arrival_span_ns": 0,
        }
    second = (at - at[0]) // _SECOND
    # bins without an arrival count through n, sum and sum of squares: a week-long trace needs no array of its seconds
    _, counts = np.unique(second, return_counts=True)
    bins = int(second[-1]) + 1
    mean = at.size / bins
    variance = float(np.square(counts).sum()) / bins - mean * mean
    return {
        "arrival_rate_per_s": (at.size - 1) / span * _SECOND,
        "interarrival_cv": float(gaps.std() / gaps.mean()),
        "dispersion_1s": variance / mean,
        "peak_1s_requests": int(counts.max()),
        "arrival_span_ns": span,
    }


def arrival_window(inputs: MatrixInputs, rows: Rows) -> tuple[int, int, str]:
    """The arrival window (ns), the window SLO rates are over (ns), and its name.

    Rates are over the arrival window, or over the run to its last completion where arrivals depend on completions or the
    arrival window is empty.
    """
    window = inputs.arrival_window_ns
    if window is None:
        window = int(rows["arrival_ns"].max() - rows["arrival_ns"].min()) if rows.size else 0
    if inputs.arrivals_depend:
        return window, run_length(rows), "the run up to its last completion (arrivals depend on completions)"
    if window <= 0:
        return window, run_length(rows), "the run up to its last completion (all arrivals are at one instant)"
    return window, window, "arrival window"


def run_length(rows: Rows) -> int:
    """From the first counted arrival to the last counted token, ns; 0 where there is no token."""
    last = int(rows["last_token_ns"].max(initial=-1))
    return max(0, last - int(rows["arrival_ns"].min())) if last >= 0 else 0


def concurrency_section(totals: Totals) -> dict[str, Any]:
    """Running and waiting requests: mean over busy time, and the maximum."""
    idle = missing("no iteration ran")
    busy = totals.busy_ns
    return {
        "running_mean": totals.running_ns / busy if busy else idle,
        "running_max": totals.running_max,
        "waiting_mean": totals.waiting_ns / busy if busy else idle,
        "waiting_max": totals.waiting_max,
    }
