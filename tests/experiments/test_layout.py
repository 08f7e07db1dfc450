"""Where windows lie: inside the trace, apart, evenly spaced, with enough requests; what cannot be had is said."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracekit.experiments.layout import lay_windows

SECOND = 1_000_000_000


def arrivals(n: int, span_s: float, seed: int = 0) -> np.ndarray:
    rng = np.random.Generator(np.random.PCG64(seed))
    return np.sort((rng.random(n) * span_s * SECOND).astype(np.int64))


def test_eight_windows_in_an_hour() -> None:
    at = arrivals(20_000, 3600)
    layout = lay_windows(at, 8, lead_in_ns=60 * SECOND)
    assert len(layout.windows) == 8 and layout.notes == ()
    assert layout.length_ns == 176 * SECOND  # a thousand requests come in 180 s; whole fours
    begins = np.array([begin for begin, _ in layout.windows])
    assert np.allclose(np.diff(begins) / SECOND, 450, atol=1)
    assert begins[0] >= 60 * SECOND  # the first has its lead-in too
    assert "8 windows of 2.93 min, one every 7.5 min" in layout.line(60 * SECOND)


def test_a_short_trace_has_fewer_windows_and_says_so() -> None:
    layout = lay_windows(arrivals(100, 600), 8)
    assert len(layout.windows) <= 5
    assert any("5 of 8 windows: 100 requests" in note for note in layout.notes)
    assert len(lay_windows(arrivals(30, 600), 8).windows) == 1
    assert lay_windows(arrivals(5, 600), 8).windows == ()


def test_a_given_length_and_part_are_kept() -> None:
    at = arrivals(20_000, 3600)
    layout = lay_windows(at, 8, length_ns=600 * SECOND)
    assert len(layout.windows) == 5 or len(layout.windows) == 6
    assert {end - begin for begin, end in layout.windows} == {layout.length_ns} == {600 * SECOND}
    inside = lay_windows(at, 4, part=(600 * SECOND, 1800 * SECOND))
    assert inside.windows[0][0] >= 600 * SECOND and inside.windows[-1][1] <= 1800 * SECOND


def test_silence_is_left_out() -> None:
    at = np.concatenate([arrivals(1000, 100), arrivals(1000, 100, 1) + 3500 * SECOND])
    layout = lay_windows(at, 8, length_ns=100 * SECOND)
    assert any("left out: fewer than 20 requests" in note for note in layout.notes)
    for begin, end in layout.windows:
        assert ((at >= begin) & (at < end)).sum() >= 20


@given(st.integers(1, 3000), st.floats(1, 100_000), st.integers(1, 20), st.integers(0, 300), st.integers(0, 5))
def test_windows_are_apart_inside_and_hold_enough(n: int, span_s: float, wanted: int, lead_s: int, seed: int) -> None:
    at = arrivals(n, span_s, seed)
    layout = lay_windows(at, wanted, lead_in_ns=lead_s * SECOND)
    assert len(layout.windows) <= wanted
    assert len(layout.windows) == wanted or layout.notes
    last = int(at[0])
    for begin, end in layout.windows:
        assert last <= begin < end <= int(at[-1]) + 1
        assert ((at >= begin) & (at < end)).sum() >= 20
        last = end


def test_an_instant_is_no_window() -> None:
    assert lay_windows(np.full(100, 5, np.int64), 8).windows == ()
