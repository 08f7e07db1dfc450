"""Arrivals made more even or burstier: by value on gaps worked out here, and what must hold of any trace."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.errors import UsageError
from tracekit.slices import slice_lines, slice_of
from tracekit.traces.bursts import gap_cv, warp_gaps
from tracekit.traces.clock import moved
from tracekit.traces.load import load_trace
from tracekit.traces.slicing import Slice
from tracekit.traces.source import TraceSource

SECOND = 10**9


def test_gaps_are_raised_to_the_power_and_fill_the_same_stretch() -> None:
    moment = np.array([1, 2, 4, 8]) * SECOND  # with the edges 0 and 11: gaps of 1, 1, 2, 4 and 3
    found = warp_gaps(moment, (0, 11 * SECOND), 2.0)  # 1, 1, 4, 16 and 9 of 31
    np.testing.assert_allclose(found / SECOND, np.array([1, 2, 6, 22]) * 11 / 31, atol=2e-9)
    even = warp_gaps(moment, (0, 11 * SECOND), 0.0)
    np.testing.assert_allclose(even / SECOND, np.array([1, 2, 3, 4]) * 11 / 5, atol=2e-9)
    assert gap_cv(even) == pytest.approx(0.0, abs=1e-8)
    assert gap_cv(np.array([0, 1, 2])) == 0.0 and gap_cv(np.array([5, 5, 5])) is None and gap_cv(np.array([1, 2])) is None


@given(st.lists(st.integers(0, 10**13), min_size=1, max_size=60), st.floats(0, 4), st.integers(0, 10**13))
def test_order_edges_and_numbers_stay(moments: list[int], power: float, edge: int) -> None:
    moment = np.sort(np.array(moments))
    edges = tuple(sorted({0, edge, 10**13 + 1}))
    found = warp_gaps(moment, edges, power)
    assert (np.diff(found) >= 0).all()
    for low, high in pairwise(edges):
        inside = (moment >= low) & (moment < high)
        assert ((found >= low) & (found < high))[inside].all()
    np.testing.assert_allclose(warp_gaps(moment, edges, 1.0), moment, atol=2 + 1e-9 * 10**13)


@pytest.fixture
def source_of(write: Callable[..., Path], con: duckdb.DuckDBPyConnection) -> Callable[[Slice], TraceSource]:
    """Eighty requests in sessions of two turns, some of them with a deadline."""
    rng = np.random.default_rng(4)
    at = np.cumsum(rng.exponential(1.0, 80))
    rows = [{"arrival_s": round(float(at[i]), 6), "input_tokens": 50 + i, "output_tokens": 5, "session_id": f"s{i // 2}"}
            | ({"deadline_s": float(at[i]) + 1.5} if i % 3 else {})
            for i in range(80)]  # fmt: skip
    number = load_trace(con, write("".join(json.dumps(row) + "\n" for row in rows), "t.jsonl")).trace
    assert number is not None
    return lambda part: TraceSource.from_database(con, number, part)


@pytest.mark.parametrize("sessions", [None, "as_recorded"])
def test_a_window_keeps_its_requests(source_of: Callable[[Slice], TraceSource], sessions: str | None) -> None:
    part = {"window_ns": (10 * SECOND, 60 * SECOND), "lead_in_ns": 5 * SECOND, "sessions": sessions}
    plain = source_of(Slice(**part))  # type: ignore[arg-type]
    known = []
    for scale in (0.0, 0.5, 2.0, 3.0):
        found = source_of(Slice(**part, burst_scale=scale))  # type: ignore[arg-type]
        assert np.array_equal(found.req_idx, plain.req_idx) and np.array_equal(found.counted, plain.counted)
        assert found.window_ns == plain.window_ns
        lead = 5 * SECOND
        assert (found.start_ns[found.counted] >= lead).all() and (found.start_ns[~found.counted] < lead).all()
        assert found.gap_cv[0] is not None and found.gap_cv[1] is not None
        known.append(found.gap_cv[1])
        if found.parent is not None and plain.parent is not None:  # a turn keeps its distance from the one before it
            assert np.array_equal(found.think_ns, plain.think_ns)  # type: ignore[arg-type]
        faster = source_of(Slice(**part, burst_scale=scale, rate_scale=4.0))  # type: ignore[arg-type]
        np.testing.assert_allclose(faster.start_ns, found.start_ns / 4, atol=1)
    assert known == sorted(known) and known[0] < 0.5 < 1.5 < known[3]


def test_what_is_said_and_refused(source_of: Callable[[Slice], TraceSource]) -> None:
    found = source_of(slice_of({"burst_scale": 2.0, "sessions": "as_recorded"}, 0, None))
    (line,) = [line for line in slice_lines(found) if line.startswith("bursts")]
    assert f"from {found.gap_cv[0]:.2f} to {found.gap_cv[1]:.2f}" in line and "to the power 2" in line
    assert not [line for line in slice_lines(source_of(Slice())) if line.startswith("bursts")]
    assert Slice().is_whole and not Slice(burst_scale=0.0).is_whole
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="--burst-scale"):
            Slice(burst_scale=wrong)


def test_moved_in_memory_is_what_the_slice_would_read(source_of: Callable[[Slice], TraceSource]) -> None:
    for at in ({}, {"window_ns": (10 * SECOND, 60 * SECOND), "lead_in_ns": 5 * SECOND}, {"limit": 30, "burst_scale": 2.0}):
        part: dict[str, Any] = {"sessions": "as_recorded", "rate_scale": 3.0, **at}
        own = source_of(Slice(**part))
        before = own.arrival_ns.copy()
        for rate, power in ((1.0, 0.0), (0.7, 1.0), (2.5, 0.5)):
            found = moved(own, rate_scale=rate, burst_scale=power)
            product = {"rate_scale": own.part.rate_scale * rate, "burst_scale": own.part.burst_scale * power}
            read = source_of(Slice(**part | product))
            assert (found.part, found.window_ns, found.gap_cv) == (read.part, read.window_ns, read.gap_cv)
            for column in ("arrival_ns", "start_ns", "deadline_ns", "counted"):
                assert np.array_equal(getattr(found, column), getattr(read, column)), (at, rate, power, column)
        assert np.array_equal(own.arrival_ns, before) and (before >= 0).all()
