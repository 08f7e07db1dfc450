"""Three ways to starve: each happens without its guard, and its guard ends it."""

from __future__ import annotations

import numpy as np
import pytest

from replay_engine.rules import Batching, Order, Rules, Tier
from replay_engine.types import Phase
from tests.engine.policy_runs import MILLISECOND, Told, knobs, tell
from tests.engine.traffic import Row

LATE = 3 * MILLISECOND


def queue_ms(told: Told, requests: list[int]) -> list[int]:
    return [int(ns) // MILLISECOND for ns in told.outcomes["queue_ns"][requests]]


# Urgent requests keep both seats busy for as long as they come: one every 3 ms, each needs 8 ms of one of two seats. -----------


def urgent_stream(normal: int) -> tuple[list[Row], list[int]]:
    rows = [Row(LATE, 8, 8, priority=0) for _ in range(100)]
    at = list(range(10, 10 + 2 * normal, 2))
    for i in at:
        rows.insert(i, Row(0, 8, 8, priority=1))
    return rows, at


URGENT_ENGINE = knobs(max_num_seqs=2)


def by_priority(aging_s: float | None = None, reserved: tuple[Tier, ...] = ()) -> Rules:
    return Rules(order=Order(by="priority", aging_s=aging_s, reserved=reserved))


def test_normal_requests_starve_under_urgent_ones_and_aging_ends_it() -> None:
    rows, normal = urgent_stream(3)
    urgent = [i for i in range(len(rows)) if i not in normal]
    starved = tell(rows, URGENT_ENGINE, by_priority())
    order = starved.admission_order()
    assert order[-3:] == normal  # after every urgent one, even those that came 270 ms later
    assert min(queue_ms(starved, normal)) > 300
    # one level is worth 40 ms of waiting: whoever came 40 ms after a normal request or later comes after it
    aged = tell(rows, URGENT_ENGINE, by_priority(aging_s=0.04))
    place = {request: at for at, request in enumerate(aged.admission_order())}
    arrival = aged.outcomes["arrival_ns"]
    for request in normal:
        later = [i for i in urgent if arrival[i] > arrival[request] + 40 * MILLISECOND]
        assert later
        assert all(place[i] > place[request] for i in later)
    assert max(queue_ms(aged, normal)) < 80
    assert np.mean(queue_ms(aged, urgent)) < np.mean(queue_ms(starved, urgent)) + 20  # what it costs the urgent ones


def test_seats_kept_for_the_urgent_end_their_starving_the_other_way_round() -> None:
    # normal requests of 200 ms hold every seat; an urgent one does not preempt and waits for the first of them to end
    rows = [Row(0, 8, 200, priority=1)] * 6 + [Row(5 * MILLISECOND, 8, 8, priority=0)] * 4
    config = knobs(max_num_seqs=3)
    shut_out = tell(rows, config, by_priority())
    assert queue_ms(shut_out, [6]) == [195]
    kept = tell(rows, config, by_priority(reserved=(Tier(priority=0, seqs=1),)))
    assert queue_ms(kept, [6, 7, 8, 9]) == [0, 3, 6, 9]  # one seat for all four, 8 ms each, 5 ms apart
    running = [span for span in kept.spans() if span["phase"] in (Phase.prefill, Phase.decode) and span["request"] < 6]
    at_once = max(sum(s["start_ns"] <= t["start_ns"] < s["end_ns"] for s in running) for t in running)
    assert at_once == 2  # what the kept seat costs: normal ones never have it


def test_blocks_kept_for_the_urgent() -> None:
    # normal requests of 25 blocks and 92 ms fill the 50; an urgent one needs 4
    rows = [Row(0, 8, 92, priority=1, limit=92)] * 6 + [Row(5 * MILLISECOND, 8, 8, priority=0, limit=8)]
    config, whole = knobs(max_num_seqs=8, num_gpu_blocks=51, max_model_len=200), Batching(kv_allocation="contiguous")
    shut_out = tell(rows, config, Rules(batching=whole, order=Order(by="priority")))
    assert queue_ms(shut_out, [0, 1, 2, 6]) == [0, 0, 92, 87]
    kept = tell(rows, config, Rules(batching=whole, order=Order(by="priority", reserved=(Tier(priority=0, blocks=4),))))
    assert queue_ms(kept, [0, 1, 6]) == [0, 92, 0]


# Long requests are passed over by short ones ------------------------------------------------------------------------------------


def short_stream() -> tuple[list[Row], int]:
    rows = [Row(6 * MILLISECOND, 10, 8) for _ in range(120)]
    rows.insert(20, Row(0, 300, 8))
    return rows, 20


@pytest.mark.parametrize("size", ["prompt", "total"])
def test_a_long_one_is_passed_over_by_short_ones_and_aging_ends_it(size: str) -> None:
    rows, long_one = short_stream()  # one seat, 8 ms each, one every 6 ms: some always wait
    config = knobs(max_num_seqs=1, max_num_batched_tokens=400)
    passed = tell(rows, config, Rules(order=Order(by="shortest_first", size=size)))  # type: ignore[arg-type]
    assert passed.admission_order()[-1] == long_one
    assert queue_ms(passed, [long_one])[0] > 800
    # 290 tokens more are worth 290 / 1000 of aging_s: who comes 29 ms later or more comes after it
    aged = tell(rows, config, Rules(order=Order(by="shortest_first", size=size, aging_s=0.1)))  # type: ignore[arg-type]
    order = aged.admission_order()
    arrival = aged.outcomes["arrival_ns"]
    before = [i for i in order[: order.index(long_one)] if arrival[i] > arrival[long_one] + 29 * MILLISECOND]
    assert before == []
    assert queue_ms(aged, [long_one])[0] < 100
    assert np.median(aged.outcomes["queue_ns"]) < 1.1 * np.median(passed.outcomes["queue_ns"]) + 10 * MILLISECOND


# Prefill is never drained: decode is protected too much -------------------------------------------------------------------------


def protected(rules: Rules, **change: int) -> Told:
    """Decodes without end in sight (4 of 300 tokens), then prompts of 100 tokens one every 10 ms, 20 of them."""
    rows = [Row(0, 4, 300)] * 4 + [Row(10 * MILLISECOND, 100, 2)] * 20
    return tell(rows, knobs(max_num_seqs=24, **change), rules)


def worst_ttft_ms(told: Told) -> float:
    return float(told.outcomes["ttft_ns"][4:].max()) / MILLISECOND


def longest_gap_ms(told: Told) -> float:
    return float(told.outcomes["max_gap_ns"][:4].max()) / MILLISECOND


def test_a_decode_reserve_near_the_budget_starves_prefill_and_a_smaller_one_ends_it() -> None:
    # budget 64, 100 prompt tokens every 10 ms: what the reserve leaves must be above 10 tokens an iteration
    starving = protected(Rules(batching=Batching(decode_reserve=62)))
    assert worst_ttft_ms(starving) > 600  # 2 tokens an iteration: the queue grows as long as prompts come
    ttft = starving.outcomes["ttft_ns"][4:]
    assert (np.diff(ttft) > 0).all()
    eased = protected(Rules(batching=Batching(decode_reserve=48)))
    assert worst_ttft_ms(eased) < 10  # 16 tokens an iteration: a prompt is done before the next one comes
    assert longest_gap_ms(eased) == longest_gap_ms(starving) == 1  # and decodes still get a token in every iteration


def test_aging_is_no_guard_against_a_decode_reserve() -> None:
    plain = protected(Rules(batching=Batching(decode_reserve=62)))
    aged = protected(Rules(batching=Batching(decode_reserve=62), order=Order(by="priority", aging_s=0.001)))
    assert aged.outcomes["ttft_ns"].tolist() == plain.outcomes["ttft_ns"].tolist()


def test_many_decode_turns_to_one_starve_prefill_and_fewer_end_it() -> None:
    starving = protected(Rules(batching=Batching(step="interleave", interleave="1:30")))
    assert worst_ttft_ms(starving) > 150
    while_they_come = starving.iterations["start_ns"] < 200 * MILLISECOND
    assert starving.iterations["prefill_tokens"][while_they_come].sum() <= 64 * 8  # a budget every 31 ms; 310 tokens come
    eased = protected(Rules(batching=Batching(step="interleave", interleave="1:3")))
    assert worst_ttft_ms(eased) <= 12
    assert longest_gap_ms(eased) == longest_gap_ms(starving) == 2  # the price is the same: one iteration passed over at a time


def test_a_small_cap_per_prompt_starves_prefill_and_the_adaptive_form_ends_it() -> None:
    rows = [Row(0, 4, 390)] * 2 + [Row(0, 380, 2)]
    capped = tell(rows, knobs(long_prefill_token_threshold=2))
    assert capped.outcomes["ttft_ns"][2] == 190 * MILLISECOND  # two tokens an iteration of a budget of 64
    eased = tell(rows, knobs(long_prefill_token_threshold=2, long_prefill_token_threshold_adaptive=True))
    assert eased.outcomes["ttft_ns"][2] == -(-380 // (64 // 3)) * MILLISECOND  # the budget shared by three
    assert longest_gap_ms(capped) == longest_gap_ms(eased) == 1


def test_prefill_at_long_intervals_starves_it_and_shorter_ones_end_it() -> None:
    starving = protected(Rules(), prefill_schedule_interval=60)
    eased = protected(Rules(), prefill_schedule_interval=2)
    assert worst_ttft_ms(starving) > 50 > 10 * worst_ttft_ms(eased) / 2
