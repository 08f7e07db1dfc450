"""Sums over an engine's iterations up to any moment, against a walk over them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from replay_engine.profile import Latency
from replay_engine.types import NEVER, Refusal
from tracekit.diagnosis.iteration_cost import CostForm
from tracekit.diagnosis.lanes import Amount, Lane, Moments
from tracekit.diagnosis.run_data import LAYOUTS

LATENCY = Latency(floor_ns=10.0, a_ns=5.0, b_ns=1.0, c_ns=0.0, d_ns=0.0, e_ns=0.0, h0_ns=0.0, h1_ns=0.0, h2_ns=0.0)
STEP = st.tuples(st.sampled_from([0, 0, 0, 3, 50]), st.sampled_from([0, 1, 7, 40]), st.booleans())
GAPS = st.lists(STEP, min_size=1, max_size=12)
MOMENTS = st.lists(st.integers(-5, 500), min_size=1, max_size=20)
Steps = list[tuple[int, int, bool]]


def lane_of(steps: Steps, asynchronous: bool) -> Lane:
    """(idle before, duration, whether the head was refused) of each iteration."""
    rows = np.zeros(len(steps), LAYOUTS["iterations"])
    idle, length, refused = (np.array(each) for each in zip(*steps, strict=True))
    rows["duration_ns"] = length
    rows["start_ns"] = np.cumsum(idle + length) - length
    rows["head_refused_by"] = np.where(refused, int(Refusal.kv_free), int(Refusal.none))
    return Lane(rows, CostForm(LATENCY, asynchronous))


@given(GAPS, st.booleans(), MOMENTS)
def test_the_first_plan_that_sees_a_moment(steps: Steps, asynchronous: bool, moments: list[int]) -> None:
    lane = lane_of(steps, asynchronous)
    made = [
        lane.start[k - 1] if asynchronous and k and lane.end[k - 1] == lane.start[k] else lane.start[k] for k in range(len(steps))
    ]
    wanted = [
        min((max(int(s), at) for s, plan in zip(lane.start, made, strict=True) if plan >= at), default=NEVER) for at in moments
    ]
    assert lane.seen_from(np.array(moments)).tolist() == wanted


@given(GAPS, MOMENTS, st.data())
def test_few_iterations_sum_as_all_of_them_do(steps: Steps, moments: list[int], data: st.DataObject) -> None:
    lane = lane_of(steps, False)
    each = np.array([data.draw(st.integers(0, length)) for _, length, _ in steps]) * np.array([bool(r) for _, _, r in steps])
    number = np.flatnonzero(each)
    at = Moments(lane, np.array(moments))
    dense = lane.passed(Amount(each, lane.duration), at)
    assert np.array_equal(lane.passed(Amount(each[number], lane.duration[number], number), at), dense)
    for ns, found in zip(moments, dense.tolist(), strict=True):
        sums = 0
        for amount, start, length in zip(each.tolist(), lane.start.tolist(), lane.duration.tolist(), strict=True):
            inside = min(max(ns - start, 0), length)
            sums += inside if amount == length else int(amount * (inside / max(length, 1)))
        assert found == sums
    assert lane.busy(at, at).tolist() == [0] * len(moments)


def test_a_refusal_counts_with_the_idle_time_behind_it() -> None:
    lane = lane_of([(0, 10, True), (5, 10, False), (7, 10, True), (0, 10, False)], False)
    begin, end = Moments(lane, np.array([2])), Moments(lane, np.array([52]))
    assert lane.reasons == (Refusal.kv_free,)
    assert lane.refused(Refusal.kv_free, begin, begin, end).tolist() == [8 + 5 + 10]
