"""The tail of a run: latency over time, percentiles with their counts, and what the selected requests have in common.

What sets them apart is correlation, ranked by how far two distributions lie from each other: a question, not an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dashboards.address import Address
from dashboards.selection import latency_s, selected
from dashboards.words import number
from tracekit.diagnosis import RunData
from tracekit.metrics.slo import UNLIMITED

__all__ = ["Contrast", "Percentile", "TailMap", "contrasts", "percentiles", "tail_map"]

COLUMNS, ROWS = 200, 40
OUTLIERS = 200
POINTS = (50.0, 90.0, 95.0, 99.0, 99.9)
_LIMITS = {"ttft": "ttft", "tpot": "tpot", "gap": "stall", "e2e": "e2e"}
_BINS = 24
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


class TailMap(NamedTuple):
    """Requests by arrival (``x``: edges in seconds) and latency (``y``: edges as log10 of seconds). ``counts``: of shape
    (rows, columns). ``limit_s``: the SLO's bound where all have the same. ``worst``: (request, arrival in s, latency in s)."""

    x: Floats
    y: Floats
    counts: npt.NDArray[np.int64]
    limit_s: float | None
    worst: tuple[tuple[int, float, float], ...]
    n: int
    missing: int


class Percentile(NamedTuple):
    """A percentile of the selected requests, of all of them, and how many of the selected lie above it."""

    point: float
    selected_s: float | None
    all_s: float | None
    beyond: int


class Contrast(NamedTuple):
    """A property whose values differ between the selected requests and the rest. ``distance``: largest difference of the two
    cumulative shares (numbers), or half the sum of differences (names); 0 to 1. Shares per bin or name, in ``labels``."""

    name: str
    unit: str
    distance: float
    labels: tuple[str, ...]
    selected: tuple[float, ...]
    rest: tuple[float, ...]
    selected_median: float | None
    rest_median: float | None


def tail_map(data: RunData, address: Address) -> TailMap | None:
    """``None`` where no counted request has the latency. The selection's own arrivals and range do not cut the map."""
    wide = _without(address)
    value = latency_s(data, address.metric)
    keep = selected(data, wide)
    there = keep & (value > 0)
    if not there.any():
        return None
    x, y = data.outcomes["arrival_ns"][there] / 1e9, np.log10(value[there])
    low, high = np.floor(y.min() * 4) / 4, np.ceil(y.max() * 4) / 4
    x_edges = np.linspace(x.min(), max(x.max(), x.min() + 1e-3), COLUMNS + 1)
    y_edges = np.linspace(low, max(high, low + 0.25), ROWS + 1)
    counts, _, _ = np.histogram2d(y, x, bins=(y_edges, x_edges))
    worst = np.argsort(-value[there], kind="stable")[:OUTLIERS]
    numbers = data.outcomes["request"][there]
    return TailMap(
        x_edges,
        y_edges,
        counts.astype(np.int64),
        _limit(data, address.metric),
        tuple((int(numbers[i]), float(x[i]), float(value[there][i])) for i in worst),
        int(there.sum()),
        int((keep & ~there).sum()),
    )


def _without(address: Address) -> Address:
    return replace(address, arrived_s=None, latency_s=None, requests=(), finding=None, harmed=())


def _limit(data: RunData, metric: str) -> float | None:
    limits = np.unique(data.limits_ns(_LIMITS[metric]))
    return float(limits[0]) / 1e9 if len(limits) == 1 and limits[0] != UNLIMITED else None


def percentiles(data: RunData, address: Address) -> tuple[Percentile, ...]:
    """Linear interpolation over requests, as everywhere; ``beyond`` is what a percentile rests on."""
    value = latency_s(data, address.metric)
    everyone = value[data.counted[data.outcomes["request"]] & ~np.isnan(value)]
    chosen = value[selected(data, address) & ~np.isnan(value)]
    found = []
    for point in POINTS:
        own = float(np.percentile(chosen, point)) if len(chosen) else None
        whole = float(np.percentile(everyone, point)) if len(everyone) else None
        found.append(Percentile(point, own, whole, 0 if own is None else int((chosen > own).sum())))
    return tuple(found)


def contrasts(data: RunData, address: Address) -> tuple[Contrast, ...]:
    """Properties ranked by how differently the selected requests and the other counted ones are distributed; empty where either
    side is."""
    chosen = selected(data, address)
    rest = data.counted[data.outcomes["request"]] & ~chosen
    if not chosen.any() or not rest.any():
        return ()
    found = [_numbers(name, unit, make(data), chosen, rest) for name, unit, make in _NUMBERS]
    found += [_names(what, data, chosen, rest) for what in ("class", "tenant")] + [_replicas(data, chosen, rest)]
    ranked = sorted((each for each in found if each is not None and each.distance > 0), key=lambda each: -each.distance)
    return tuple(ranked)


def _column(name: str) -> Callable[[RunData], Floats]:
    def make(data: RunData) -> Floats:
        values = data.outcomes[name].astype(np.float64)
        known: Floats = np.where(values >= 0, values, np.nan)
        return known

    return make


def _burst(data: RunData) -> Floats:
    """Requests that arrived within the second before each."""
    arrival = data.outcomes["arrival_ns"]
    order = np.sort(arrival)
    counted: Floats = (np.searchsorted(order, arrival, "left") - np.searchsorted(order, arrival - 10**9, "left")).astype(
        np.float64
    )
    return counted


def _at_arrival(column: str) -> Callable[[RunData], Floats]:
    """A level of its replica's iteration under way, or the last one before, when a request came."""

    def make(data: RunData) -> Floats:
        rows, its = data.outcomes, data.iterations
        found = np.full(len(rows), np.nan)
        for replica in data.replicas:
            own = its[its["replica"] == replica]
            mine = np.flatnonzero(np.maximum(rows["replica"], 0) == replica)
            at = np.searchsorted(own["start_ns"], rows["arrival_ns"][mine], "right") - 1
            before = at >= 0
            found[mine[before]] = own[column][at[before]]
        return found

    return make


def _company(data: RunData) -> Floats:
    """The longest prompt of anybody who was in the engine when a request came; 0 where nobody was. The longest first, each paints
    the arrivals that fall into its stay and that nobody has painted yet."""
    rows = data.outcomes
    order = np.argsort(rows["arrival_ns"], kind="stable")
    arrival = rows["arrival_ns"][order]
    begin = rows["arrival_ns"] + np.maximum(rows["queue_ns"], 0)
    inside = (rows["queue_ns"] >= 0) & (rows["last_token_ns"] > begin)
    low = np.searchsorted(arrival, begin, "right").tolist()
    high = np.searchsorted(arrival, rows["last_token_ns"], "left").tolist()
    found, free = np.zeros(len(rows)), list(range(len(rows) + 1))
    longest = np.argsort(-rows["prompt_tokens"], kind="stable")
    for one in longest[inside[longest]].tolist():
        at = _next(free, low[one])
        while at < high[one]:
            found[order[at]] = rows["prompt_tokens"][one]
            free[at] = at + 1
            at = _next(free, at)
    return found


def _next(free: list[int], at: int) -> int:
    """The first place from ``at`` on that is not taken; paths are halved as they are walked."""
    while free[at] != at:
        free[at] = free[free[at]]
        at = free[at]
    return at


def _hit(data: RunData) -> Floats:
    rows = data.outcomes
    known: Floats = np.where(
        rows["cached_tokens"] >= 0, 100.0 * rows["cached_tokens"] / np.maximum(rows["prompt_tokens"], 1), np.nan
    )
    return known


_NUMBERS: tuple[tuple[str, str, Callable[[RunData], Floats]], ...] = (
    ("prompt tokens", "tokens", _column("prompt_tokens")),
    ("output tokens", "tokens", _column("output_tokens")),
    ("prompt found in the prefix cache", "%", _hit),
    ("arrivals in the second before", "requests", _burst),
    ("waiting at arrival", "requests", _at_arrival("waiting")),
    ("running at arrival", "requests", _at_arrival("running")),
    ("longest prompt in the engine at arrival", "tokens", _company),
    ("KV used at arrival", "blocks", _at_arrival("kv_used")),
    ("preemptions", "", _column("preemptions")),
    ("recomputed tokens", "tokens", _column("recomputed_tokens")),
    ("retries", "", _column("retries")),
)


def _numbers(name: str, unit: str, values: Floats, chosen: Mask, rest: Mask) -> Contrast | None:
    one, other = values[chosen & ~np.isnan(values)], values[rest & ~np.isnan(values)]
    if not len(one) or not len(other):
        return None
    both = np.sort(np.concatenate([one, other]))
    shares = [np.searchsorted(np.sort(each), both, "right") / len(each) for each in (one, other)]
    low, high = both[0], both[-1]
    if low == high:
        return None
    wide = low >= 0 and high > 50 * max(np.median(both), 1)
    edges = np.geomspace(max(low, 1), high, _BINS + 1) if wide else np.linspace(low, high, _BINS + 1)
    edges[0] = low
    parts = [np.histogram(each, edges)[0] / len(each) for each in (one, other)]
    labels = tuple(number(float(edge)) for edge in edges[:-1])
    return Contrast(
        name,
        unit,
        float(np.abs(shares[0] - shares[1]).max()),
        labels,
        _tuple(parts[0]),
        _tuple(parts[1]),
        float(np.median(one)),
        float(np.median(other)),
    )


def _names(what: str, data: RunData, chosen: Mask, rest: Mask) -> Contrast | None:
    labels = data.labels(what)
    if labels is None:
        return None
    codes = np.asarray(labels.codes)[data.outcomes["request"]]
    return _categories(what, codes + 1, ("none", *labels.names), chosen, rest)


def _replicas(data: RunData, chosen: Mask, rest: Mask) -> Contrast | None:
    codes = np.maximum(data.outcomes["replica"], -1) + 1
    return _categories("replica", codes, ("none", *(f"replica {i}" for i in range(int(codes.max(initial=0))))), chosen, rest)


def _categories(name: str, codes: npt.NDArray[Any], names: tuple[str, ...], chosen: Mask, rest: Mask) -> Contrast | None:
    one, other = (np.bincount(codes[each], minlength=len(names)) / each.sum() for each in (chosen, rest))
    if (one + other > 0).sum() < 2:
        return None
    order = np.argsort(-(one + other), kind="stable")[:_BINS]
    order = order[(one + other)[order] > 0]
    return Contrast(
        name,
        "",
        float(np.abs(one - other).sum() / 2),
        tuple(names[i] for i in order),
        _tuple(one[order]),
        _tuple(other[order]),
        None,
        None,
    )


def _tuple(values: npt.NDArray[Any]) -> tuple[float, ...]:
    return tuple(float(each) for each in values)
