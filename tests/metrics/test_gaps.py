"""Token gaps from spans and iterations equal the gaps of the token list."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.metrics.synthetic import walk
from tracekit.metrics import gaps as gaps_module
from tracekit.metrics.distributions import weighted_percentiles
from tracekit.metrics.gaps import token_gaps


@given(st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 9)), min_size=1).filter(lambda rows: any(w for _, w in rows)))
def test_weighted_percentiles_are_numpys_on_the_expanded_list(rows: list[tuple[int, int]]) -> None:
    values = np.array([v for v, _ in rows], np.int64)
    weights = np.array([w for _, w in rows], np.int64)
    percents = (0, 1, 50, 90, 99, 99.9, 100)
    assert weighted_percentiles(values, weights, percents) == pytest.approx(
        np.percentile(np.repeat(values, weights), percents), rel=1e-15
    )


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6))
def test_pooled_and_per_request_gaps_equal_brute_force(seed: int) -> None:
    world = walk(seed)
    counted = np.arange(8) % 3 != 0
    found = token_gaps(world.iterations, world.spans, world.outcomes, counted)
    everything = [gap for request in np.flatnonzero(counted) for gap in world.gaps(int(request))]
    pooled = found.pooled()
    if not everything:
        assert pooled == {"value": None, "reason": "no request has two tokens"}
        return
    assert pooled["n"] == len(everything)
    assert pooled["max"] == max(everything)
    assert pooled["mean"] == pytest.approx(np.mean(everything))
    assert [pooled[name] for name in ("p50", "p95", "p99")] == pytest.approx(np.percentile(everything, (50, 95, 99)))
    own = found.request_p99(8)
    for request in range(8):
        gaps = world.gaps(request) if counted[request] else []
        assert own[request] == pytest.approx(np.percentile(gaps, 99)) if gaps else np.isnan(own[request])


def test_the_chunked_form_of_the_per_request_percentile_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    world = walk(5, requests=60, iterations=300)
    found = token_gaps(world.iterations, world.spans, world.outcomes)
    whole = found.request_p99(60)
    monkeypatch.setattr(gaps_module, "_CHUNK", 7)
    assert np.array_equal(found.request_p99(60), whole, equal_nan=True)


def test_gaps_and_ttft_sum_to_e2e() -> None:
    world = walk(11, requests=40, iterations=400)
    found = token_gaps(world.iterations, world.spans, world.outcomes)
    total = int((found.step_ns * found.weight).sum() + found.single_ns.sum())
    spoke = world.outcomes["ttft_ns"] >= 0
    span = world.outcomes["last_token_ns"] - world.outcomes["arrival_ns"] - world.outcomes["ttft_ns"]
    assert total == int(span[spoke].sum())
