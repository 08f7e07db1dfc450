"""Intervals of two runs' figures from blocks of arrivals: they cover planted effects on loads that swing; by value."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.comparison.blocks import LEAST, Draws, block_maxima, blocks_for, resampled
from tracekit.experiments.intervals import judge

Floats = npt.NDArray[np.float64]
SECOND = 1_000_000_000
PERCENTS = (50.0, 95.0)
STEPS = 600
EFFECT = -0.1


def swings(rng: np.random.Generator, steps: int, memory: float, size: float) -> Floats:
    """A load that remembers itself from step to step."""
    noise = rng.normal(0, size * math.sqrt(1 - memory * memory), steps)
    load = np.empty(steps)
    load[0] = rng.normal(0, size)
    for at in range(1, steps):
        load[at] = memory * load[at - 1] + noise[at]
    return load


def two_runs(rng: np.random.Generator, requests: int, steps: int, memory: float) -> tuple[Floats, Floats]:
    """Latencies of the same requests in two runs: both feel the load, the second is 10 % faster (log scale)."""
    first = swings(rng, steps, memory, 0.6)
    second = 0.7 * first + swings(rng, steps, memory, 0.3)
    at = np.sort(rng.integers(0, steps, requests))
    own = rng.normal(0, 0.5, requests)
    return np.exp(first[at] + own), np.exp(second[at] + 0.8 * own + EFFECT)


@pytest.fixture(scope="module")
def truth() -> list[float]:
    """Log ratios of the percentiles of both runs. Each is lognormal: their logs are normal with these deviations."""
    z = {50.0: 0.0, 95.0: 1.6448536269514722}
    before, after = math.hypot(0.6, 0.5), math.sqrt((0.7 * 0.6) ** 2 + 0.3**2 + (0.8 * 0.5) ** 2)
    return [EFFECT + z[percent] * (after - before) for percent in PERCENTS]


@pytest.mark.parametrize(("blocks", "memory"), [(6, 0.8), (12, 0.8)])
def test_intervals_cover_planted_effects(truth: list[float], blocks: int, memory: float) -> None:
    rng = np.random.Generator(np.random.PCG64([blocks, 17]))
    hits, repeats = np.zeros(len(PERCENTS)), 120
    for _ in range(repeats):
        before, after = two_runs(rng, 1200, STEPS, memory)
        draws = Draws(np.arange(1200) * blocks // 1200, 200)
        drawn = [draws.percentiles(side, PERCENTS) for side in (before, after)]
        for at, percent in enumerate(PERCENTS):
            values = [float(np.percentile(side, percent)) for side in (before, after)]
            found = resampled(values[0], values[1], (drawn[0][at], drawn[1][at]), blocks, "ratio")
            assert found.low is not None and found.high is not None
            hits[at] += found.low <= math.expm1(truth[at]) <= found.high
    assert (hits / repeats >= 0.87).all() and (hits / repeats <= 0.99).all(), hits / repeats


def test_requests_alone_would_be_far_too_sure(truth: list[float]) -> None:
    """Why blocks: drawn one by one, requests of a load that swings give intervals that miss most of the time."""
    rng = np.random.Generator(np.random.PCG64(23))
    hits, repeats = 0, 60
    for _ in range(repeats):
        before, after = two_runs(rng, 1200, STEPS, 0.97)
        differences = np.log(after / before)
        half = 1.96 * differences.std() / math.sqrt(len(differences))
        hits += abs(differences.mean() - EFFECT) <= half
    assert hits / repeats < 0.6


def test_a_figure_in_every_draw_is_that_of_the_requests_drawn() -> None:
    rng = np.random.Generator(np.random.PCG64(5))
    values = rng.lognormal(0, 1, 300)
    values[::7] = np.nan
    block = np.arange(300) * 10 // 300
    draws = Draws(block, 50)
    sums = draws.sums(np.nan_to_num(values))
    percentiles = draws.percentiles(values, (50.0, 99.0))
    for at in range(50):
        drawn = np.concatenate([np.repeat(values[block == b], int(draws.taken[at, b])) for b in range(10)])
        known = np.sort(drawn[~np.isnan(drawn)])
        assert sums[at] == pytest.approx(known.sum())
        for percent, each in zip((50.0, 99.0), percentiles, strict=True):
            assert each[at] == known[math.floor((len(known) - 1) * percent / 100)]


def test_many_values_are_binned_finely() -> None:
    rng = np.random.Generator(np.random.PCG64(6))
    values = rng.lognormal(0, 1, 50_000)
    draws = Draws(np.arange(50_000) * 12 // 50_000, 1)
    draws.taken = np.ones((1, 12))
    for percent, found in zip((50.0, 95.0, 99.0), draws.percentiles(values, (50.0, 95.0, 99.0)), strict=True):
        assert found[0] == pytest.approx(np.percentile(values, percent), rel=0.01)


def test_equal_runs_are_the_same_and_few_blocks_tell_nothing() -> None:
    values = np.random.Generator(np.random.PCG64(7)).lognormal(0, 1, 400)
    block = np.arange(400) * 8 // 400
    drawn = Draws(block, 100).percentiles(values, (95.0,))[0]
    assert judge(resampled(2.0, 2.0, (drawn, drawn), 8, "ratio"), "low") == "same"
    assert judge(resampled(2.0, 4.0, (drawn, 2 * drawn), 8, "ratio"), "low") == "worse"
    few = resampled(2.0, 4.0, (drawn, 2.1 * drawn), LEAST - 1, "ratio")
    assert few.low is None and "too few" in str(few.why)
    assert judge(few, "low") == "cannot tell"


def test_zeros_are_compared_as_a_difference() -> None:
    draws = Draws(np.arange(80) * 8 // 80, 200)
    before, after = np.zeros(80), (np.arange(80) % 3 == 0).astype(float)
    found = resampled(0.0, float(after.sum()), (draws.sums(before), draws.sums(after)), 8, "ratio")
    assert (found.scale, found.estimate) == ("difference", after.sum())
    assert found.low is not None and found.low > 0


@given(st.integers(1, 2000), st.floats(0.1, 10_000), st.floats(0, 100))
def test_blocks_are_in_order_of_arrival_equal_and_long_enough(n: int, span_s: float, residence_s: float) -> None:
    rng = np.random.Generator(np.random.PCG64(n))
    arrival = np.sort((rng.random(n) * span_s * SECOND).astype(np.int64))
    block = blocks_for(arrival, residence_s * SECOND)
    count = int(block[-1]) + 1
    assert (np.diff(block) >= 0).all() and block[0] == 0
    sizes = np.bincount(block)
    assert sizes.max() - sizes.min() <= 1
    if count > 1:
        assert count <= 12 and sizes.min() >= 20
        assert (arrival[-1] - arrival[0]) / count >= 4 * residence_s * SECOND - 1


def test_block_maxima() -> None:
    found = block_maxima(np.array([1.0, 5.0, np.nan, np.nan, 2.0]), np.array([0, 0, 1, 1, 2]))
    assert found[0] == 5.0 and math.isnan(found[1]) and found[2] == 2.0
