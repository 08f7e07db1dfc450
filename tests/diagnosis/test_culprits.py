"""Who held what others waited for: lost time is counted as by hand, and shared out without loss."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_engine.config import SchedulerConfig
from replay_engine.profile import Latency
from replay_engine.types import Phase, Refusal
from tests.diagnosis.test_attribution import blame, tables_of
from tests.engine.policy_runs import FLAT, MILLISECOND, knobs, tell
from tests.engine.traffic import Row, latencies, schedulers, traffic
from tracekit.diagnosis.attribution import Blame
from tracekit.diagnosis.culprits import (
    block_holders,
    budget_holders,
    head_holders,
    inside,
    interference_holders,
    seat_holders,
    waiting,
)

SOME = settings(max_examples=80, deadline=None)


def prepared(rows: list[Row], config: SchedulerConfig, latency: Latency = FLAT) -> Blame:
    return blame(tables_of(tell(rows, config, latency=latency).sink), latency, config)


@SOME
@given(
    rows=traffic(), config=schedulers(), latency=latencies,
    phase=st.sampled_from([Phase.queued, Phase.stalled, Phase.prefill_wait]), modulo=st.integers(1, 3),
)  # fmt: skip
def test_lost_time_is_the_overlap_of_waits_and_iterations(
    rows: list[Row], config: SchedulerConfig, latency: Latency, phase: Phase, modulo: int
) -> None:
    told = prepared(rows, config, latency)
    mine = np.arange(len(rows)) % modulo == 0
    lost = waiting(told, mine, phases=(phase,))
    iterations, spans = told.tables["iterations"], told.tables["spans"]
    expected = np.zeros(len(iterations))
    for span in spans[(spans["phase"] == phase) & (spans["request"] % modulo == 0)]:
        ends = np.minimum(iterations["start_ns"] + iterations["duration_ns"], span["end_ns"])
        expected += np.maximum(ends - np.maximum(iterations["start_ns"], span["start_ns"]), 0)
    assert np.allclose(lost.per_iteration, expected, atol=1e-3)
    part = {"queued": ("queue", "under_way")}.get(phase.name, (phase.name,))
    assert lost.total_ns == sum(int(told.within().of(name)[mine].sum()) for name in part)


@SOME
@given(rows=traffic(), config=schedulers(), latency=latencies, phase=st.sampled_from([Phase.queued, Phase.decode]))
def test_lost_time_is_shared_out_without_loss(rows: list[Row], config: SchedulerConfig, latency: Latency, phase: Phase) -> None:
    told = prepared(rows, config, latency)
    lost = waiting(told, np.ones(len(rows), bool), phases=(phase,))
    iterations = told.tables["iterations"]
    computing = iterations["prefill_tokens"] + iterations["decode_seqs"] > 0
    budget, seats = budget_holders(told, lost), seat_holders(told, lost)
    held = budget.held_ns.sum() + budget.others_ns
    # a decode that missed an iteration is served beside the standing ones, and its entry is not logged
    assert abs(held - lost.per_iteration[computing].sum()) <= 1 + len(rows)
    if not config.async_scheduling:  # else a seat is given up one plan later than its request ends
        running = iterations["running"] > 0
        assert seats.held_ns.sum() <= lost.per_iteration[running].sum() + len(rows)
    assert (np.diff(budget.held_ns) <= 0).all() and (np.diff(seats.held_ns) <= 0).all()
    if phase == Phase.decode:
        assert lost.total_ns == int(told.within().of("interference").sum())
        assert abs(interference_holders(told, lost).held_ns.sum() - lost.in_iterations_ns) <= 1 + len(rows)


def test_by_value_one_long_prompt_holds_the_budget_and_the_blocks() -> None:
    config = knobs(max_num_batched_tokens=64)
    # the long prompt (320 tokens) takes five iterations; three short ones wait for the last four of them and a bit
    told = prepared([Row(0, 320, 2), *(Row(MILLISECOND // 2 if k == 0 else 0, 10, 2) for k in range(3))], config)
    lost = waiting(told, np.arange(4) > 0)
    assert lost.total_ns == 3 * (4 * MILLISECOND + MILLISECOND // 2) == lost.in_iterations_ns
    budget = budget_holders(told, lost)
    assert budget.requests.tolist() == [0] and budget.shares.tolist() == [1.0] and budget.others_ns == 0
    assert budget.fewest(0.9).tolist() == [0]
    assert budget.by(np.array([1, 0, 0, 0]), ["short", "long"]) == {"long": 1.0}
    share, time = inside(told, lost, np.array([0]))
    assert share == 1.0 and time == pytest.approx(5 / 7)
    assert block_holders(told, lost, 4).shares.tolist() == pytest.approx([1.0])
    refused = waiting(told, np.arange(4) > 0, reasons=(Refusal.token_budget,))
    assert head_holders(told, refused).requests.tolist() == [1]
    assert refused.total_ns == 3 * 4 * MILLISECOND  # the iteration that was under way when they came refused nobody


def test_by_value_seats_and_blocks_of_those_that_decode() -> None:
    config = knobs(max_num_seqs=2)
    # two run, 20 and 40 prompt tokens, from 0 to 20 ms; the third waits until the first seat is free
    told = prepared([Row(0, 20, 20), Row(0, 40, 30), Row(MILLISECOND, 8, 2)], config)
    lost = waiting(told, np.arange(3) == 2)
    assert lost.total_ns == 19 * MILLISECOND
    seats = seat_holders(told, lost)
    assert sorted(seats.requests.tolist()) == [0, 1] and seats.shares.tolist() == [0.5, 0.5]
    blocks = block_holders(told, lost, 4)
    assert blocks.requests.tolist() == [1, 0]
    # after k decodes they hold 20 + k and 40 + k tokens, and as many blocks as hold these
    exact = sum(-(-(40 + k) // 4) / (-(-(40 + k) // 4) + -(-(20 + k) // 4)) for k in range(1, 20)) / 19
    assert blocks.shares[0] == pytest.approx(exact, rel=0.05)
