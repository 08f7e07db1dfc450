"""The reports of three load generators, computed from a run by their own formulas and under their own names.

Sources: vLLM 0.33.0 (``vllm bench serve``), guidellm 0.8.1, aiperf 0.13.0. They agree in little: who counts, what a percentile
is, what one token under a limit on the time per token means, and what a rate is per second of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.errors import UsageError, shown
from tracekit.metrics.distributions import weighted_percentiles
from tracekit.metrics.slo import UNLIMITED
from tracekit.terms.seen import Seen

__all__ = ["TOOLS", "Term", "Terms", "in_terms_of"]

MS = 1e-6
TOOLS = {"vllm": "vLLM 0.33.0, vllm bench serve", "guidellm": "guidellm 0.8.1", "aiperf": "aiperf 0.13.0"}
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
_NO_SLO = "no SLO was given"


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One line of a tool's report: its own name of the figure, ``value`` in ``unit`` (``None``: it has none, ``note`` says why),
    and over how many values (``n``)."""

    name: str
    value: float | int | None
    unit: str
    n: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """A run as ``tool`` would report it; ``notes``: where its figures mean something else than ours."""

    tool: str
    version: str
    terms: tuple[Term, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        figures = {each.name: {"value": each.value, "unit": each.unit, "n": each.n, "note": each.note} for each in self.terms}
        return {"tool": self.tool, "version": self.version, "figures": figures, "notes": list(self.notes)}


def in_terms_of(seen: Seen, tool: str) -> Terms:
    """What ``tool`` (of ``TOOLS``) would report of what a client saw. ``UsageError``: no such tool."""
    if tool not in TOOLS:
        raise UsageError(f"--as {shown(tool)}: no such tool; expected one of {', '.join(TOOLS)}")
    report = {"vllm": _vllm, "guidellm": _guidellm, "aiperf": _aiperf}[tool]
    notes = list(_NOTES[tool])
    if seen.unknown_parts:
        notes.append(f"it has no SLO on {', '.join(seen.unknown_parts)}: left out of its goodput")
    return Terms(tool=tool, version=TOOLS[tool], terms=tuple(report(seen)), notes=tuple(notes))


_NOTES = {
    "vllm": (
        "its clock starts after its own limit of requests in flight; ours at the arrival that was meant",
        "failed requests are in no latency and not in its goodput's denominator, which is seconds",
        "a request of one token meets any limit on TPOT; ITL pools the gaps of all requests",
        "rates are per second from the first request sent to the last token, ramp and drain included",
    ),
    "guidellm": (
        "its TPOT has the first token in it; its ITL is our TPOT, and an SLO on tpot is held against it",
        "TPOT and ITL are weighted by tokens; percentiles are values that occurred, without interpolation",
        "a request of one token under a limit on tpot is left out of attainment, and so is a cancelled one",
        "rates are means over the whole run: nothing was cut off as warm-up or cool-down",
    ),
    "aiperf": (
        "its inter token latency is our TPOT; its inter chunk latency pools the gaps of all requests",
        "a request of one token has no inter token latency, and so misses any limit on it",
        "its clock starts after its own limit of requests in flight; latencies are of successful requests",
    ),
}  # fmt: skip


def _per_token(seen: Seen, keep: Mask) -> Floats:
    """(last token - first token) / (tokens - 1) in ns, of rows that are kept; NaN for one token."""
    decoded = (seen.e2e_ns - seen.ttft_ns)[keep].astype(np.float64)
    later = (seen.output - 1)[keep]
    found: Floats = np.where(later > 0, decoded / np.maximum(later, 1), np.nan)
    return found


def _objectives(seen: Seen, keep: Mask) -> dict[str, tuple[Floats, npt.NDArray[np.int64]]]:
    """Value (ns, NaN where there is none) and limit of each objective asked for, of rows that are kept."""
    ttft, e2e = (each[keep].astype(np.float64) for each in (seen.ttft_ns, seen.e2e_ns))
    values: dict[str, Floats] = {"ttft": ttft, "tpot": _per_token(seen, keep), "e2e": e2e}
    return {part: (values[part], seen.limit_ns[part][keep]) for part in seen.asked}


def _pooled_gaps(seen: Seen) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Every gap between two tokens of one request, ns, and how often it occurs."""
    if seen.gaps is None:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    used = seen.gaps.weight > 0
    values = np.concatenate([seen.gaps.step_ns[used], seen.gaps.single_ns])
    return values, np.concatenate([seen.gaps.weight[used], np.ones(seen.gaps.single_ns.size, np.int64)])


def _spread(name: str, unit: str, figures: Sequence[tuple[str, float]], n: int) -> Iterator[Term]:
    for label, value in figures:
        yield Term(name=name.format(label), value=value, unit=unit, n=n)


def _nothing(names: Sequence[str], unit: str, why: str) -> Iterator[Term]:
    for name in names:
        yield Term(name=name, value=None, unit=unit, n=0, note=why)


def _vllm(seen: Seen) -> Iterator[Term]:
    done, seconds = seen.finished, seen.window_ns / 1e9
    count, prompt, output = int(done.sum()), int(seen.prompt[done].sum()), int(seen.output[done].sum())
    yield Term(name="completed", value=count, unit="requests")
    yield Term(name="failed", value=int((~done).sum()), unit="requests")
    yield Term(name="duration", value=seconds, unit="s")
    yield Term(name="total_input_tokens", value=prompt, unit="tokens")
    yield Term(name="total_output_tokens", value=output, unit="tokens")
    yield Term(name="request_throughput", value=count / seconds, unit="requests/s")
    kept = np.ones(count, np.bool_)
    for value, limit in _objectives(seen, done).values():
        kept &= ~(np.nan_to_num(value, nan=0.0) > limit)  # one token: 0 ms per token, which is good
    good = int(kept.sum()) / seconds if seen.asked else None
    yield Term(name="request_goodput", value=good, unit="requests/s", note="" if seen.asked else _NO_SLO)
    yield Term(name="output_throughput", value=output / seconds, unit="tokens/s")
    yield Term(name="total_token_throughput", value=(prompt + output) / seconds, unit="tokens/s")
    per_token = _per_token(seen, done)
    one = np.ones(1, np.int64)
    for name, values, weights in (
        ("ttft", seen.ttft_ns[done], one), ("tpot", per_token[~np.isnan(per_token)], one), ("itl", *_pooled_gaps(seen)),
        ("e2el", seen.e2e_ns[done], one),
    ):  # fmt: skip
        weights = np.broadcast_to(weights, values.shape) if weights.size == 1 else weights
        yield from _vllm_spread(name, values, weights)


def _vllm_spread(name: str, values: npt.NDArray[Any], weights: npt.NDArray[np.int64]) -> Iterator[Term]:
    """Mean, median, population deviation, P99; linear interpolation."""
    if not values.size:
        why = "this run keeps no iterations" if name == "itl" else "no request of two tokens finished"
        yield from _nothing([f"{each}_{name}_ms" for each in ("mean", "median", "std", "p99")], "ms", why)
        return
    n = int(weights.sum())
    mean = float((values * weights).sum()) / n
    deviation = float(np.sqrt((weights * (values - mean) ** 2).sum() / n))
    median, p99 = weighted_percentiles(values, weights, (50, 99))
    figures = [("mean", mean * MS), ("median", median * MS), ("std", deviation * MS), ("p99", p99 * MS)]
    yield from _spread("{}_" + name + "_ms", "ms", figures, n)


def _guidellm(seen: Seen) -> Iterator[Term]:
    done, seconds = seen.finished, seen.window_ns / 1e9
    count, output, prompt = int(done.sum()), int(seen.output[done].sum()), int(seen.prompt[done].sum())
    for name, value in (("successful", count), ("incomplete", int(seen.cancelled.sum())), ("errored", seen.errored)):
        yield Term(name=f"request_totals.{name}", value=value, unit="requests")
    yield Term(name="requests_per_second.mean", value=count / seconds, unit="requests/s")
    yield Term(name="output_tokens_per_second.mean", value=output / seconds, unit="tokens/s")
    yield Term(name="tokens_per_second.mean", value=(prompt + output) / seconds, unit="tokens/s")
    one = np.ones(count, np.int64)
    e2e = seen.e2e_ns[done].astype(np.float64)
    tokens = seen.output[done]
    yield from _weighted("request_latency", "s", e2e * 1e-9, one)
    yield from _weighted("time_to_first_token_ms", "ms", seen.ttft_ns[done] * MS, one)
    yield from _weighted("time_per_output_token_ms", "ms", e2e / np.maximum(tokens, 1) * MS, tokens)
    between = np.nan_to_num(_per_token(seen, done), nan=0.0)
    yield from _weighted("inter_token_latency_ms", "ms", between * MS, np.maximum(tokens - 1, 0))
    yield from _guidellm_goodput(seen, seconds)


def _weighted(name: str, unit: str, values: npt.NDArray[np.floating[Any]], weights: npt.NDArray[np.int64]) -> Iterator[Term]:
    """Mean and percentiles of values by weight: the first value up to which the share of weights reaches the percentile."""
    labels = ("mean", "p50", "p90", "p95", "p99", "p999")
    there = weights > 0
    if not there.any():
        yield from _nothing([f"{name}.{label}" for label in labels], unit, "no request of enough tokens finished")
        return
    distinct, which = np.unique(values[there], return_inverse=True)
    weight = np.bincount(which, weights[there].astype(np.float64))
    share = weight / weight.sum()
    upto = np.cumsum(share)
    figures = [("mean", float((distinct * share).sum()))]
    for label, point in zip(labels[1:], (0.5, 0.9, 0.95, 0.99, 0.999), strict=True):
        figures.append((label, float(distinct[min(int(np.searchsorted(upto, point)), len(distinct) - 1)])))
    yield from _spread(name + ".{}", unit, figures, int(weights.sum()))


def _guidellm_goodput(seen: Seen, seconds: float) -> Iterator[Term]:
    """A request is undetermined as soon as one objective has no value, whatever the others say."""
    if not seen.asked:
        yield Term(name="goodput.requests_per_second", value=None, unit="requests/s", note=_NO_SLO)
        yield Term(name="goodput.attainment", value=None, unit="share", note=_NO_SLO)
        return
    done = seen.finished
    kept, known = np.ones(int(done.sum()), np.bool_), np.ones(int(done.sum()), np.bool_)
    for value, limit in _objectives(seen, done).values():
        known &= ~(np.isnan(value) & (limit != UNLIMITED))
        kept &= ~(value > limit)
    good, told = int((kept & known).sum()), int(known.sum()) + seen.errored
    yield Term(name="goodput.requests_per_second", value=good / seconds, unit="requests/s")
    yield Term(name="goodput.attainment", value=good / told if told else None, unit="share", n=told,
               note="" if told else "every request is undetermined")  # fmt: skip


_STATS = ("avg", "min", "max", "p99", "p95", "p90", "p75", "p50", "std")


def _aiperf(seen: Seen) -> Iterator[Term]:
    done, seconds = seen.finished, seen.window_ns / 1e9
    count, output = int(done.sum()), int(seen.output[done].sum())
    per_token = _per_token(seen, done)
    some = per_token[~np.isnan(per_token)]
    one = np.ones(1, np.int64)
    for name, unit, values, weights in (
        ("time_to_first_token", "ms", seen.ttft_ns[done] * MS, one),
        ("request_latency", "ms", seen.e2e_ns[done] * MS, one),
        ("inter_token_latency", "ms", some * MS, one),
        ("inter_chunk_latency", "ms", _pooled_gaps(seen)[0] * MS, _pooled_gaps(seen)[1]),
        ("output_token_throughput_per_user", "tokens/s/user", 1e9 / some[some > 0], one),
        ("output_sequence_length", "tokens", seen.output[done].astype(np.float64), one),
        ("input_sequence_length", "tokens", seen.prompt[done].astype(np.float64), one),
    ):  # fmt: skip
        yield from _aiperf_spread(name, unit, values, np.broadcast_to(weights, values.shape) if weights.size == 1 else weights)
    yield Term(name="request_count", value=count, unit="requests")
    yield Term(name="error_request_count", value=int((~done).sum()), unit="requests")
    yield Term(name="benchmark_duration", value=seconds, unit="s")
    yield Term(name="request_throughput", value=count / seconds, unit="requests/s")
    yield Term(name="output_token_throughput", value=output / seconds, unit="tokens/s")
    kept = np.ones(count, np.bool_)
    for value, limit in _objectives(seen, done).values():
        kept &= (value <= limit) | (limit == UNLIMITED)  # what has no value is not good
    good, note = (int(kept.sum()), "") if seen.asked else (None, _NO_SLO)
    total = len(done)
    yield Term(name="good_request_count", value=good, unit="requests", note=note)
    yield Term(name="goodput", value=None if good is None else good / seconds, unit="requests/s", note=note)
    yield Term(name="good_request_fraction", value=None if good is None else good / total, unit="share", n=total, note=note)


def _aiperf_spread(name: str, unit: str, values: npt.NDArray[Any], weights: npt.NDArray[np.int64]) -> Iterator[Term]:
    if not values.size:
        yield from _nothing([f"{name}.{stat}" for stat in _STATS], unit, "no value: one token each, or no iterations kept")
        return
    n = int(weights.sum())
    mean = float((values * weights).sum()) / n
    points = weighted_percentiles(values, weights, (99, 95, 90, 75, 50))
    deviation = float(np.sqrt((weights * (values - mean) ** 2).sum() / n))
    figures = (mean, float(values.min()), float(values.max()), *points, deviation)
    yield from _spread(name + ".{}", unit, list(zip(_STATS, figures, strict=True)), n)
