"""Fair sharing keeps the service of backlogged tenants within the published bound (VTC, Sheng et al., OSDI 2024)."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_engine.config import SchedulerConfig, cdiv
from replay_engine.rules import Batching, Order, Preemption, Rules
from tests.engine.policy_runs import Told, knobs, tell
from tests.engine.traffic import Row

FAIR = Rules(order=Order(by="fair"))


def bound(rows: list[Row], config: SchedulerConfig, order: Order, *, reserved: bool) -> float:
    """``2 x max(w_p x L_input, w_q x M)``; ``M``: the most tokens that the members of a batch come to hold, each at its end.

    That is what the seats hold. Where admission keeps room for all output (``reserved``), it is no more than the KV cache
    holds; where it does not, members end one after the other or are preempted, and together write more than fits at once.
    """
    longest = max(row.prompt + row.output for row in rows)
    most = config.max_num_seqs * longest
    if reserved:
        most = min(most, config.usable_blocks * config.block_size)
    return 2 * max(order.prompt_weight * max(row.prompt for row in rows), order.output_weight * most)


def widest_gap(told: Told, order: Order) -> float:
    """The largest difference of service of two tenants over any interval in which both always have somebody waiting."""
    served = {tenant: np.cumsum(each) for tenant, each in told.service(order.prompt_weight, order.output_weight).items()}
    waits = told.backlogged()
    widest = 0.0
    for first, second in combinations(sorted(served), 2):
        both = np.flatnonzero(waits[first] & waits[second])
        ahead = served[first] - served[second]
        for run in np.split(both, np.flatnonzero(np.diff(both) != 1) + 1):
            if run.size:
                widest = max(widest, float(np.ptp(ahead[run])))
    return widest


@st.composite
def backlogs(draw: st.DrawFn) -> list[Row]:
    """Two or three tenants, each with its own lengths, most requests at the start and some later."""
    rows = []
    for tenant in range(draw(st.integers(2, 3))):
        prompts = draw(st.sampled_from([(1, 4), (5, 60), (80, 90)]))
        outputs = draw(st.sampled_from([(1, 3), (4, 60)]))
        own = st.builds(
            Row, gap=st.just(0), prompt=st.integers(*prompts), output=st.integers(*outputs), tenant=st.just(tenant),
        )  # fmt: skip
        rows += draw(st.lists(own, min_size=8, max_size=25))
    rows = [replace(row, limit=row.output) for row in rows]
    rows = draw(st.permutations(rows))
    late = draw(st.integers(0, len(rows) // 2))
    return rows[late:] + [replace(row, gap=40_000) for row in rows[:late]]


@st.composite
def engines(draw: st.DrawFn) -> SchedulerConfig:
    """Seats or blocks bind; chunks are short or whole."""
    size = draw(st.sampled_from([1, 4, 16]))
    return knobs(
        max_num_seqs=draw(st.integers(1, 12)),
        max_num_batched_tokens=draw(st.sampled_from([12, 40, 200])),
        max_model_len=160,
        block_size=size,
        num_gpu_blocks=cdiv(160, size) + 1 + draw(st.sampled_from([0, 8, 600])),
        async_scheduling=draw(st.booleans()),
        enable_prefix_caching=draw(st.booleans()),
    )


@settings(max_examples=250, deadline=None)
@given(
    rows=backlogs(), config=engines(), weights=st.sampled_from([(1.0, 2.0), (1.0, 1.0), (0.5, 4.0)]), reserved=st.booleans()
)  # fmt: skip
def test_the_service_gap_stays_under_the_published_bound(
    rows: list[Row], config: SchedulerConfig, weights: tuple[float, float], reserved: bool
) -> None:
    order = Order(by="fair", prompt_weight=weights[0], output_weight=weights[1])
    batching = Batching(output_reserve="max_tokens" if reserved else "none")
    told = tell(rows, config, Rules(batching=batching, order=order))
    assert told.how == "finished"
    assert sum(each.sum() for each in told.service(0, 1).values()) == told.outcomes["output_tokens"].sum()
    assert widest_gap(told, order) <= bound(rows, config, order, reserved=reserved)


def test_a_gap_is_measured_as_written() -> None:
    # one seat: a (prompt 6, 2 outputs) has iterations 0 and 1, b (prompt 4, 3 outputs) 2 to 4; a second one of each waits on
    rows = [Row(0, 6, 2, tenant=0), Row(0, 4, 3, tenant=1), Row(0, 5, 1, tenant=0), Row(0, 5, 1, tenant=1)]
    told = tell(rows, knobs(max_num_seqs=1), Rules(order=Order(by="fcfs")))
    served = told.service(1.0, 2.0)
    assert served[0][:6].tolist() == [6 + 2, 2, 0, 0, 0, 5 + 2]
    assert served[1][:7].tolist() == [0, 0, 4 + 2, 2, 2, 0, 5 + 2]
    waits = told.backlogged()
    assert waits[0][:6].tolist() == [True] * 5 + [False]
    assert waits[1][:7].tolist() == [True] * 6 + [False]
    assert widest_gap(told, Order()) == 10  # a is 10 ahead after iteration 1, 0 after iteration 4


HEAVY_FIRST = [Row(0, 20, 20, tenant=0)] * 60 + [Row(0, 20, 20, tenant=1)] * 20


@pytest.mark.parametrize("blocks", [1001, 101])
def test_first_come_first_served_breaks_the_bound_where_fair_keeps_it(blocks: int) -> None:
    config = knobs(num_gpu_blocks=blocks, max_num_seqs=12, max_model_len=200)
    limit = bound(HEAVY_FIRST, config, FAIR.order, reserved=False)
    plain = tell(HEAVY_FIRST, config, Rules(order=Order(by="fcfs")))
    fair = tell(HEAVY_FIRST, config, FAIR)
    assert widest_gap(plain, FAIR.order) > limit > 3 * widest_gap(fair, FAIR.order)
    if blocks == 101:
        assert fair.outcomes["preemptions"].sum() > 0
    light = slice(60, 80)
    assert fair.outcomes["ttft_ns"][light].max() < plain.outcomes["ttft_ns"][light].min()


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_tokens_computed_again_are_not_charged_again(mode: str) -> None:
    rows = [Row(0, 20, 60, tenant=7)] * 24
    preemption = Preemption(mode=mode, host_blocks=400 if mode == "swap" else 0)  # type: ignore[arg-type]
    told = tell(rows, knobs(num_gpu_blocks=61, max_model_len=200, max_num_seqs=8), Rules(order=FAIR.order, preemption=preemption))
    assert told.outcomes["preemptions"].sum() > 10
    shares = told.replay.scheduler.state.shares
    assert shares is not None
    assert shares.counter(7) == told.service(1.0, 2.0)[7].sum() == 24 * (20 + 2 * 60)


def test_a_tenant_that_was_away_keeps_no_credit() -> None:
    # tenant 0 is served alone for long; when tenant 1 comes they take turns from there on
    rows = [Row(0, 8, 8, tenant=0)] * 30 + [Row(100 * 1_000_000, 8, 8, tenant=1)] + [Row(0, 8, 8, tenant=1)] * 19
    told = tell(rows, knobs(max_num_seqs=1), FAIR)
    order = told.admission_order()
    came = next(i for i, request in enumerate(order) if rows[request].tenant == 1)
    turns = [rows[request].tenant for request in order[came : came + 30]]
    assert turns.count(0) == turns.count(1) == 15


def test_weights_decide_what_is_fair() -> None:
    # tenant 0 reads much and writes little, tenant 1 the other way round; who is served more requests depends on what counts
    rows = [Row(0, 40, 4, tenant=0)] * 20 + [Row(0, 4, 40, tenant=1)] * 20
    shares = {}
    for prompt_weight, output_weight in ((1.0, 0.0), (0.0, 1.0)):
        rules = Rules(order=Order(by="fair", prompt_weight=prompt_weight, output_weight=output_weight))
        order = tell(rows, knobs(max_num_seqs=1), rules).admission_order()
        shares[prompt_weight] = sum(rows[request].tenant for request in order[:11])
    assert shares == {1.0: 10, 0.0: 1}
