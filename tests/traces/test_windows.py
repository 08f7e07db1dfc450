"""Representative windows: what was planted is found, they do not overlap, and the same trace gives the same ones."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.traces.tally import SECOND, Tally
from tracekit.traces.windows import Window, representative_windows, window_length_s


def tally_of(arrival_s: np.ndarray, prompt: np.ndarray) -> Tally:
    order = np.argsort(arrival_s, kind="stable")
    tally = Tally()
    tally.add((arrival_s[order] * SECOND).astype(np.int64), prompt[order].astype(np.int64), np.full(len(order), 10, np.int64))
    return tally


def windows_of(tally: Tally, length_s: int | None = None) -> list[Window]:
    return representative_windows(tally.seconds(), tally.span_ns, length_s, tally.first_ns)


def planted() -> Tally:
    """An hour at 2 a second; long prompts from 1200 to 1300 s, 200 requests at once every 20 s from 2400 to 2500 s."""
    rng = np.random.default_rng(2)
    base = np.sort(rng.uniform(0, 3600, 7200))
    prompt = np.where((base >= 1200) & (base < 1300), 20_000, 500)
    bursts = np.repeat(np.arange(2400.0, 2500.0, 20.0), 200)
    return tally_of(np.concatenate([base, bursts]), np.concatenate([prompt, np.full(len(bursts), 20)]))


def test_planted_windows_are_found() -> None:
    busy, bursty, typical = windows_of(planted(), 100)
    assert (busy.kind, bursty.kind, typical.kind) == ("busy", "bursty", "typical")
    assert abs(busy.begin_ns / SECOND - 1200) <= 25
    assert abs(bursty.begin_ns / SECOND - 2400) <= 25
    assert bursty.dispersion_1s > 20 > 3 > typical.dispersion_1s
    assert 1.5 < typical.rate_per_s < 2.5
    assert busy.option() == f"{busy.begin_ns // SECOND}s:{busy.end_ns // SECOND}s"
    assert windows_of(planted(), 100) == [busy, bursty, typical]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), n=st.integers(1, 800), span=st.floats(0, 5000))
def test_windows_lie_within_the_trace_and_apart(seed: int, n: int, span: float) -> None:
    rng = np.random.default_rng(seed)
    tally = tally_of(rng.uniform(0, span, n), rng.integers(1, 5000, n))
    found = windows_of(tally)
    assert len(found) <= 3
    for window in found:
        assert window.requests >= 20
        assert tally.first_ns <= window.begin_ns < window.end_ns <= tally.last_ns + SECOND
    edges = sorted((window.begin_ns, window.end_ns) for window in found)
    assert all(one[1] <= two[0] for one, two in zip(edges, edges[1:], strict=False))


def test_lengths() -> None:
    assert window_length_s(3600 * SECOND, 7200) == 500
    assert window_length_s(40_000 * SECOND, 40_000_000) == 60
    assert window_length_s(29 * SECOND, 300) == 4
    assert window_length_s(10**6 * SECOND, 100) == 1800
    assert window_length_s(0, 1) == 4
