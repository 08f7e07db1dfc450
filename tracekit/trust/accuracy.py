"""Predicted against observed, request by request and over time. Times are ns; unknown ones are NaN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from replay_engine.types import RequestState
from tracekit.metrics.verdict import Errors

if TYPE_CHECKING:
    from tracekit.traces.source import TraceSource

__all__ = [
    "METRICS",
    "Latencies",
    "compared",
    "errors_of",
    "makespan_s",
    "observed_latencies",
    "over_time",
    "predicted_latencies",
]

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
METRICS = ("queue", "ttft", "tpot", "e2e")
POINTS = (50, 90, 99)
GRID = 400
"""Moments at which running requests and KV tokens are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Columns per request index; ``arrival`` on the engine clock."""

    arrival: Floats
    prompt: Floats
    output: Floats
    queue: Floats
    ttft: Floats
    tpot: Floats
    e2e: Floats

    def metric(self, name: str) -> Floats:
        values: Floats = getattr(self, name)
        return values


def observed_latencies(source: TraceSource) -> Latencies:
    """What the trace itself has; TPOT follows from TTFT and E2E where it is not given."""
    output = source.output_tokens.astype(np.float64)
    found = {name: _known(getattr(source, f"obs_{name}_ns"), source.total) for name in METRICS}
    gaps = np.maximum(output - 1, 1)
    derived = np.where(output > 1, (found["e2e"] - found["ttft"]) / gaps, np.nan)
    found["tpot"] = np.where(np.isnan(found["tpot"]), derived, found["tpot"])
    return Latencies(
        arrival=source.arrival_ns.astype(np.float64), prompt=source.prompt_tokens.astype(np.float64), output=output, **found
    )  # fmt: skip


def predicted_latencies(source: TraceSource, outcomes: npt.NDArray[np.void]) -> Latencies:
    """What a replay gave; NaN for requests that did not finish."""
    done = outcomes[outcomes["state"] == RequestState.finished]
    found: dict[str, Floats] = {}
    for name in METRICS:
        column = np.full(source.total, np.nan)
        values = done[f"{name}_ns"].astype(np.float64)
        column[done["request"]] = np.where(values >= 0, values, np.nan)
        found[name] = column
    arrival = source.arrival_ns.astype(np.float64)
    arrival[done["request"]] = done["arrival_ns"]
    return Latencies(
        arrival=arrival, prompt=source.prompt_tokens.astype(np.float64), output=source.output_tokens.astype(np.float64), **found
    )  # fmt: skip


def _known(column: npt.NDArray[Any] | None, total: int) -> Floats:
    if column is None:
        return np.full(total, np.nan)
    values: Floats = column.astype(np.float64)
    return np.where(values >= 0, values, np.nan)


def compared(predicted: Latencies, observed: Latencies, part: Mask) -> dict[str, dict[str, Any] | None]:
    """Per metric, over the requests of ``part`` that have both: figures, errors, and errors request by request as shares of the
    observed value. ``None``: none has both."""
    return {name: _compare(predicted.metric(name), observed.metric(name), part) for name in METRICS}


def _compare(ours: Floats, theirs: Floats, part: Mask) -> dict[str, Any] | None:
    both = part & ~np.isnan(ours) & ~np.isnan(theirs)
    if not both.any():
        return None
    ours, theirs = ours[both], theirs[both]
    predicted, observed = _figures(ours), _figures(theirs)
    apart = np.abs(ours - theirs)
    shares = apart[theirs > 0] / theirs[theirs > 0]
    return {
        "n": int(both.sum()), "predicted_ns": predicted, "observed_ns": observed,
        "error": {name: (predicted[name] / observed[name] - 1 if observed[name] else None) for name in observed},
        "per_request": {
            "median_ns": float(np.median(apart)), "p90_ns": float(np.percentile(apart, 90)),
            "median": float(np.median(shares)) if len(shares) else None,
            "p90": float(np.percentile(shares, 90)) if len(shares) else None,
        },
    }  # fmt: skip


def _figures(values: Floats) -> dict[str, float]:
    found = np.percentile(values, POINTS)
    return {"mean": float(values.mean())} | {f"p{p}": float(v) for p, v in zip(POINTS, found, strict=True)}


def errors_of(comparison: dict[str, dict[str, Any] | None]) -> dict[str, Errors]:
    """What the verdict is made from; a metric whose observed figures are 0 is left out."""
    found = {}
    for name, each in comparison.items():
        if each is not None and None not in each["error"].values():
            error = each["error"]
            found[name] = Errors(n=each["n"], mean=error["mean"], p50=error["p50"], p90=error["p90"])
    return found


def makespan_s(latencies: Latencies) -> float | None:
    """Seconds from the first arrival to the last token; ``None`` where no end is known."""
    ends = latencies.arrival + latencies.e2e
    return None if np.isnan(ends).all() else float(np.nanmax(ends) - latencies.arrival.min()) / 1e9


def over_time(predicted: Latencies, observed: Latencies) -> dict[str, Any] | None:
    """Requests under way, waiting and KV tokens held, as both sides' latencies imply them at the same moments; ``None``: the
    trace does not tell TTFT and E2E. KV grows evenly from the first token to the last."""
    both = ~np.isnan(predicted.e2e) & ~np.isnan(observed.e2e) & ~np.isnan(predicted.ttft) & ~np.isnan(observed.ttft)
    if not both.any():
        return None
    last = max(float((each.arrival + each.e2e)[both].max()) for each in (predicted, observed))
    at = np.linspace(float(observed.arrival[both].min()), last, GRID)
    queue_known = not np.isnan(observed.queue[both]).any()
    ours, theirs = (_load(each, both, at, queue_known) for each in (predicted, observed))
    found: dict[str, Any] = {"seconds": (at / 1e9).round(3).tolist()}
    for name in ours:
        off = float(np.abs(ours[name] - theirs[name]).mean() / theirs[name].mean()) if theirs[name].any() else None
        found[name] = {
            "predicted_max": float(ours[name].max()), "observed_max": float(theirs[name].max()), "mean_error": off,
            "predicted": ours[name].round(1).tolist(), "observed": theirs[name].round(1).tolist(),
        }  # fmt: skip
    return found


def _load(each: Latencies, rows: Mask, at: Floats, queue_known: bool) -> dict[str, Floats]:
    arrival, first, end = each.arrival[rows], (each.arrival + each.ttft)[rows], (each.arrival + each.e2e)[rows]
    start = (each.arrival + each.queue)[rows] if queue_known else arrival
    prompt, output = each.prompt[rows], each.output[rows]
    slope = np.where(end > first, output / np.maximum(end - first, 1.0), 0.0)
    under_way = _step(start, at) - _step(end, at)
    grown = _ramp(first, slope, at) - _ramp(end, slope, at)
    kv = _step(start, at, prompt) - _step(end, at, prompt) + grown - _step(end, at, np.where(end > first, output, 0.0))
    found = {"running" if queue_known else "in_system": under_way}
    if queue_known:
        found["waiting"] = _step(arrival, at) - _step(start, at)
        found["kv_tokens"] = np.maximum(kv, 0.0)
    return found


def _step(times: Floats, at: Floats, weight: Floats | None = None) -> Floats:
    """The sum of the weights of all ``times`` that are past, at each moment."""
    order = np.argsort(times)
    total = np.concatenate(([0.0], np.cumsum(np.ones(len(times)) if weight is None else weight[order])))
    found: Floats = total[np.searchsorted(times[order], at, side="right")]
    return found


def _ramp(times: Floats, slope: Floats, at: Floats) -> Floats:
    """The sum of ``slope * (now - time)`` over all ``times`` that are past, at each moment."""
    return at * _step(times, at, slope) - _step(times, at, slope * times)
