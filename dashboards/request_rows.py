"""Requests as a grid and a waterfall show them: sorted by what hurts, each with its life as stretches of one phase."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dashboards.address import Address
from dashboards.selection import label_of, latency_s, selected
from tracekit.diagnosis import RunData
from tracekit.store import code_names

__all__ = ["DRAWN", "LISTED", "SORTS", "Life", "RequestRow", "RequestTable", "Stretch", "list_requests", "lives_of"]

LISTED, DRAWN = 2000, 40
"""Rows that the grid gets, and requests that the waterfall draws, at most."""
SORTS = {
    "excess": "time over the class's median",
    "arrival": "arrival",
    "prompt": "prompt tokens",
    "latency": "the latency itself",
}
_MOST_STRETCHES = 400


class RequestRow(NamedTuple):
    """One request. Times in seconds on the engine clock or since arrival, ``None`` where it has none. ``excess_s``: how much its
    latency (the address's metric) lies above the median of its class."""

    request: int
    cls: str | None
    tenant: str | None
    arrival_s: float
    prompt: int
    output: int
    cached: int | None
    queue_s: float | None
    ttft_s: float | None
    tpot_s: float | None
    gap_s: float | None
    e2e_s: float | None
    preemptions: int
    state: str
    slo_met: bool | None
    excess_s: float | None


class RequestTable(NamedTuple):
    """The first ``LISTED`` of the selected requests in order, and how many are selected, of how many."""

    rows: tuple[RequestRow, ...]
    selected: int
    total: int


class Stretch(NamedTuple):
    """A part of a request's life, in seconds since its arrival. ``reason``: why it waited, empty where it did not."""

    phase: str
    reason: str
    begin_s: float
    end_s: float


class Life(NamedTuple):
    """A request's stretches in order; ``cut``: there are more than are drawn."""

    request: int
    label: str
    stretches: tuple[Stretch, ...]
    cut: bool


def list_requests(data: RunData, address: Address, sort: str = "excess") -> RequestTable:
    """The requests that an address selects, most of ``sort`` first (earliest first by arrival)."""
    rows, keep = data.outcomes, selected(data, address)
    value = latency_s(data, address.metric)
    excess = _over_class_median(data, value, keep)
    key = {
        "excess": excess,
        "arrival": -rows["arrival_ns"].astype(np.float64),
        "prompt": rows["prompt_tokens"].astype(np.float64),
        "latency": value,
    }[sort]
    at = np.flatnonzero(keep)
    order = at[np.lexsort((rows["request"][at], -np.nan_to_num(key[at], nan=-np.inf)))]
    listed = tuple(_row(data, int(i), excess) for i in order[:LISTED])
    return RequestTable(listed, int(keep.sum()), int(data.counted[rows["request"]].sum()))


def _over_class_median(data: RunData, value: npt.NDArray[np.float64], keep: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Against all counted requests of the class, not only the selected ones."""
    labels, request = data.labels("class"), data.outcomes["request"]
    codes = labels.codes[request] if labels is not None else np.zeros(len(request), np.int64)
    over = np.full(len(request), np.nan)
    counted = data.counted[request] & ~np.isnan(value)
    for code in np.unique(codes[keep]):
        mine = (codes == code) & counted
        if mine.any():
            over[codes == code] = value[codes == code] - np.median(value[mine])
    return over


def _row(data: RunData, at: int, excess: npt.NDArray[np.float64]) -> RequestRow:
    row = data.outcomes[at]
    number = int(row["request"])
    met = data.slo_result
    states = code_names("outcomes", "state")

    def s(name: str) -> float | None:
        value = float(row[name])
        return value / 1e9 if value >= 0 else None

    return RequestRow(
        request=number,
        cls=label_of(data, "class", number),
        tenant=label_of(data, "tenant", number),
        arrival_s=float(row["arrival_ns"]) / 1e9,
        prompt=int(row["prompt_tokens"]),
        output=int(row["output_tokens"]),
        cached=int(row["cached_tokens"]) if row["cached_tokens"] >= 0 else None,
        queue_s=s("queue_ns"),
        ttft_s=s("ttft_ns"),
        tpot_s=s("tpot_ns"),
        gap_s=s("max_gap_ns"),
        e2e_s=s("e2e_ns"),
        preemptions=int(row["preemptions"]),
        state=states[int(row["state"])].replace("_", " "),
        slo_met=None if met is None else bool(met.met[at]),
        excess_s=None if np.isnan(excess[at]) else float(excess[at]),
    )


def lives_of(data: RunData, requests: tuple[int, ...]) -> tuple[Life, ...]:
    """The lives of some requests, in the order given; empty where the run kept no spans."""
    spans = data.spans
    phases, reasons = code_names("spans", "phase"), code_names("spans", "reason")
    lives = []
    for number in requests[:DRAWN]:
        low, high = np.searchsorted(spans["request"], (number, number + 1))
        own = spans[low:high]
        if not len(own):
            continue
        row = data.outcomes[int(np.searchsorted(data.outcomes["request"], number))]
        arrival = int(row["arrival_ns"])
        found = [
            Stretch(
                phases[int(each["phase"])],
                reasons[int(each["reason"])] if each["reason"] else "",
                (int(each["start_ns"]) - arrival) / 1e9,
                (int(each["end_ns"]) - arrival) / 1e9,
            )
            for each in own[:_MOST_STRETCHES]
        ]
        lives.append(Life(number, f"#{number}", tuple(found), len(own) > _MOST_STRETCHES))
    return tuple(lives)
