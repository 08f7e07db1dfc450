"""Runs of one trace at other rates: does the mean time to the first token fall as load grows? No queue does that by itself."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracekit.metrics.wording import span_text
from tracekit.store import Store, load_run

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Load", "falls_with_load", "loads_of"]

FALLS = 0.03
"""By so much the mean must be smaller at the higher rate."""
_PLACED = {"rate_scale", "seed"}
"""What two runs may differ in, of the part of the trace that they replay and of how its arrivals are placed."""


@dataclass(frozen=True, slots=True)
class Load:
    """A run at ``rate`` times the trace's own: mean and 95th percentile of the time to the first token over ``n`` requests that
    finished, and the mean of what they waited in the queue (ns)."""

    rate: float
    n: int
    ttft_ns: float
    p95_ns: float
    queue_ns: float


def loads_of(store: Store, run: int) -> tuple[Load, ...]:
    """The run and all others of its trace, policy and profile that differ in nothing but the rate, by rate; of several at one
    rate the latest. Runs that kept no outcomes are left out."""
    own = load_run(store, run)
    query = (
        "SELECT run, policy, slice, setup FROM runs WHERE trace = ? AND state = 'finished' AND engine = ? AND events <> 'none'"
        " ORDER BY run"
    )
    with store.read() as con:
        rows = con.execute(query, [own["trace"], own["engine"]]).fetchall()
        alike = {}
        profile = (own["setup"] or {}).get("profile")  # its numbers: two calibrations may have one name
        for number, policy, part, setup in rows:
            there, same = json.loads(part or "{}"), json.loads(setup or "{}").get("profile") == profile
            if same and json.loads(policy or "null") == own["policy"] and _same(there, own["slice"] or {}):
                alike[float(there.get("rate_scale") or 1.0)] = number
        return tuple(_load(con, rate, alike[rate]) for rate in sorted(alike))


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    kept = (set(one) | set(other)) - _PLACED
    return all(one.get(name) == other.get(name) for name in kept)


def _load(con: Any, rate: float, run: int) -> Load:
    query = (
        "SELECT count(*), avg(ttft_ns), quantile_cont(ttft_ns, 0.95), avg(queue_ns) FROM outcomes"
        " WHERE run = ? AND state = 'finished' AND ttft_ns IS NOT NULL AND coalesce(counted, true)"
    )
    n, mean, tail, queue = con.execute(query, [run]).fetchone()
    return Load(rate, int(n), float(mean or 0.0), float(tail or 0.0), float(queue or 0.0))


def falls_with_load(loads: Sequence[Load]) -> tuple[str, ...]:
    """A warning for the steepest fall of the mean from a rate to the next higher one; nothing where it only grows."""
    falls = [(one, two) for one, two in zip(loads, loads[1:], strict=False) if 0 < two.ttft_ns < (1 - FALLS) * one.ttft_ns]
    if not falls:
        return ()
    one, two = min(falls, key=lambda pair: pair[1].ttft_ns / pair[0].ttft_ns)
    return (
        f"the mean time to the first token falls from {span_text(one.ttft_ns)} to {span_text(two.ttft_ns)} as the rate grows from"
        f" {one.rate:g} to {two.rate:g} times the trace's: compare percentiles (95th {span_text(one.p95_ns)} and"
        f" {span_text(two.p95_ns)}) and waits in the queue ({span_text(one.queue_ns)} and {span_text(two.queue_ns)}) instead",
    )
