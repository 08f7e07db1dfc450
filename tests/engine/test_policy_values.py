"""Each policy dimension by value: small replays whose times can be worked out by hand. An iteration takes 1 ms where not said."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from replay_engine.profile import Latency
from replay_engine.rules import Batching, Link, Order, Preemption, Rules
from replay_engine.types import Displaced, Phase, Refusal
from tests.engine.policy_runs import MILLISECOND, knobs, tell
from tests.engine.traffic import Row

MS = MILLISECOND


def ms(column: np.ndarray) -> list[float]:
    return [float(value) / MS for value in column]


# How batches form ---------------------------------------------------------------------------------------------------------------


def test_static_waits_for_its_size_and_the_wait_is_in_ttft() -> None:
    rows = [Row(0, 8, 4), Row(7 * MS, 8, 4), Row(5 * MS, 8, 4), Row(30 * MS, 8, 4)]
    told = tell(rows, knobs(), Rules(batching=Batching(mode="static", size=3)))
    assert ms(told.outcomes["queue_ns"]) == [12, 5, 0, 0]  # the last one is alone: nobody else will come
    assert ms(told.outcomes["ttft_ns"]) == [13, 6, 1, 1]
    assert told.spans(0, Phase.queued)["reason"].tolist() == [Refusal.batch_window]


def test_dynamic_closes_by_size_or_by_window() -> None:
    rows = [Row(0, 8, 4), Row(7 * MS, 8, 4), Row(5 * MS, 8, 4), Row(30 * MS, 8, 4), Row(1 * MS, 8, 4), Row(40 * MS, 8, 4)]
    told = tell(rows, knobs(), Rules(batching=Batching(mode="dynamic", size=2, window_s=0.010)))
    # 0 and 1 by size at 7; 2 by its window at 22; 3 and 4 by size at 43; 5 is the last that comes
    assert ms(told.outcomes["queue_ns"]) == [7, 0, 10, 1, 0, 0]
    assert ms(told.outcomes["ttft_ns"] - told.outcomes["queue_ns"]) == [1] * 6


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_a_batch_holds_seats_and_blocks_until_its_longest_ends(mode: str) -> None:
    rows = [Row(0, 8, 2), Row(0, 8, 10), Row(0, 8, 2), Row(0, 8, 2)]
    told = tell(rows, knobs(), Rules(batching=Batching(mode=mode, size=2)))  # type: ignore[arg-type]
    assert ms(told.outcomes["queue_ns"]) == [0, 0, 10, 10]  # seats would be free at 2 ms
    first = told.iterations[told.iterations["start_ns"] < 10 * MS]
    assert (first["running"] == 2).all()
    assert first["kv_used"][-1] == -(-9 // 4) + -(-17 // 4)  # 8 + 2 - 1 tokens of the ended one, 8 + 9 of the other
    assert ms(told.outcomes["e2e_ns"][:2]) == [2, 10]  # answered at its own end
    assert ms(tell(rows, knobs()).outcomes["queue_ns"]) == [0, 0, 0, 0]


def test_answers_with_the_batch() -> None:
    rows = [Row(0, 8, 2), Row(0, 8, 10)]
    told = tell(rows, knobs(), Rules(batching=Batching(mode="static", size=2, answers="batch")))
    assert ms(told.outcomes["e2e_ns"]) == [10, 10]
    assert ms(told.outcomes["ttft_ns"]) == [10, 10]
    assert told.outcomes["max_gap_ns"].tolist() == [0, 0]
    assert told.phases(0)[-1] == "batch_hold"
    hold = told.spans(0, Phase.batch_hold)
    assert ms(hold["end_ns"] - hold["start_ns"]) == [8]


def test_static_pays_the_scheduling_cost_once_a_batch() -> None:
    rows = [Row(0, 8, 10)] * 2
    latency = Latency(floor_ns=1.0 * MS, h0_ns=0.5 * MS)
    times = {
        mode: ms(tell(rows, knobs(), Rules(batching=Batching(mode=mode, size=2)), latency).outcomes["e2e_ns"])  # type: ignore[arg-type]
        for mode in ("static", "continuous")
    }
    assert times == {"static": [10.5, 10.5], "continuous": [15, 15]}


# KV in one piece ----------------------------------------------------------------------------------------------------------------


def test_contiguous_reserves_the_longest_there_may_be() -> None:
    rows = [Row(0, 8, 4, limit=72)] * 6  # 3 blocks are written, 20 reserved
    config = knobs(max_num_seqs=6, num_gpu_blocks=61, max_model_len=200)
    whole = tell(rows, config, Rules(batching=Batching(kv_allocation="contiguous")))
    paged = tell(rows, config)
    assert whole.iterations["kv_used"].max() == 60
    assert whole.iterations["running"].max() == 3
    assert paged.iterations["running"].max() == 6
    assert ms(whole.outcomes["queue_ns"]) == [0, 0, 0, 4, 4, 4]
    unknown = tell([Row(0, 8, 4)] * 6, config, Rules(batching=Batching(kv_allocation="contiguous")))
    assert unknown.iterations["kv_used"].max() == 50  # max_model_len where max_tokens is not known: one at a time


def test_fragmentation_refuses_what_would_fit_in_pieces() -> None:
    # 60 blocks: 20 + 20 + 20 are taken, the first and the last end: 40 are free, in two pieces of 20
    rows = [Row(0, 8, 4, limit=72), Row(0, 8, 40, limit=72), Row(0, 8, 4, limit=72), Row(1 * MS, 8, 4, limit=112)]
    told = tell(rows, knobs(num_gpu_blocks=61, max_model_len=200), Rules(batching=Batching(kv_allocation="contiguous")))
    assert ms(told.outcomes["queue_ns"]) == [0, 0, 0, 39]
    refused = told.iterations[(told.iterations["start_ns"] >= 4 * MS) & (told.iterations["start_ns"] < 40 * MS)]
    assert set(refused["head_refused_by"].tolist()) == {Refusal.kv_free}
    assert set(refused["head_need_blocks"].tolist()) == {30}
    assert set((60 - refused["kv_used"]).tolist()) == {40}


# Prefill against decode ---------------------------------------------------------------------------------------------------------

DECODING = [Row(0, 4, 60)] * 3
LONG = [Row(5 * MS, 200, 2)] * 2


def test_decode_first_gives_every_decode_its_token() -> None:
    # a prompt admitted before others decode stands before them in the list: with mixed it may take their tokens
    rows = [Row(0, 120, 20), Row(0, 4, 60), *LONG]
    told = tell(rows, knobs(), Rules(batching=Batching(step="decode_first")))
    assert len(told.spans(phase=Phase.stalled)) == 0
    assert ms(told.outcomes["max_gap_ns"]) == [1] * 4
    assert (told.iterations["prefill_tokens"] + told.iterations["decode_seqs"]).max() == 64


def test_prefill_first_never_mixes() -> None:
    told = tell([*DECODING, *LONG], knobs(max_num_seqs=5), Rules(batching=Batching(step="prefill_first")))
    assert not ((told.iterations["prefill_tokens"] > 0) & (told.iterations["decode_seqs"] > 0)).any()
    assert ms(told.outcomes["max_gap_ns"][:3]) == [5.0] * 3  # four prefills of 64, 64, 64 and 8 tokens stand between two tokens
    assert told.outcomes["ttft_ns"][3] == 4 * MS


@pytest.mark.parametrize(("turns", "prefill", "decode"), [("1:1", 1, 1), ("2:3", 2, 3), ("1:5", 1, 5)])
def test_interleave_takes_turns_as_written(turns: str, prefill: int, decode: int) -> None:
    rows = [*DECODING, Row(5 * MS, 390, 2)]
    told = tell(rows, knobs(), Rules(batching=Batching(step="interleave", interleave=turns)))
    busy = told.iterations[(told.iterations["start_ns"] >= 5 * MS)]
    kinds = "".join("p" if row["prefill_tokens"] else "d" for row in busy)
    kinds = kinds[: kinds.rindex("p") + 1]
    cycle = "p" * prefill + "d" * decode
    assert kinds.count("p") == 7  # 390 tokens, 64 at a time
    assert (cycle * 8).startswith(kinds)
    assert not ((told.iterations["prefill_tokens"] > 0) & (told.iterations["decode_seqs"] > 0)).any()


def test_a_decode_reserve_is_never_given_to_prefill() -> None:
    told = tell([*DECODING, *LONG], knobs(max_num_seqs=8), Rules(batching=Batching(decode_reserve=40)))
    assert told.iterations["prefill_tokens"].max() == 64 - 40
    many = tell([Row(0, 1, 60)] * 50 + LONG, knobs(max_num_seqs=60), Rules(batching=Batching(decode_reserve=40)))
    later = many.iterations[many.iterations["start_ns"] >= 5 * MS]
    assert later["prefill_tokens"].max() == 64 - 50  # decodes take more than the reserve: what they leave


def test_chunks_are_whole_multiples_but_for_the_last() -> None:
    told = tell([*DECODING, Row(5 * MS, 203, 2)], knobs(), Rules(batching=Batching(chunk_align=16)))
    chunks = told.entries[told.entries["request"] == 3]["query_len"].tolist()
    assert chunks == [48, 48, 48, 59]  # 61 tokens are left beside three decodes
    plain = tell([*DECODING, Row(5 * MS, 203, 2)], knobs())
    assert plain.entries[plain.entries["request"] == 3]["query_len"].tolist() == [61, 61, 61, 20]


@pytest.mark.parametrize("most", [1, 2])
def test_at_most_so_many_prompts_are_partly_done(most: int) -> None:
    rows = [Row(0, 100, 2)] * 5
    config = knobs(long_prefill_token_threshold=16, max_num_seqs=5)
    told = tell(rows, config, Rules(batching=Batching(max_partial_prefills=most)))
    done = np.zeros(5)
    partly = []
    for iteration in np.unique(told.entries["iteration"]):
        for entry in told.entries[told.entries["iteration"] == iteration]:
            done[entry["request"]] = entry["kv_len"]
        partly.append(int(((done > 0) & (done < 100)).sum()))
    assert max(partly) == most
    refused = told.iterations["head_refused_by"]
    assert (refused == Refusal.prefill_limit).sum() > 0


# Order --------------------------------------------------------------------------------------------------------------------------


def one_by_one(rows: list[Row], order: Order) -> list[int]:
    return tell(rows, knobs(max_num_seqs=1, max_num_batched_tokens=400), Rules(order=order)).admission_order()


def test_earliest_deadline_first() -> None:
    rows = [Row(0, 8, 4, due=due * MS) for due in (90, 40, 60)] + [Row(0, 8, 4)]
    assert one_by_one(rows, Order(by="deadline")) == [1, 2, 0, 3]
    assert one_by_one(rows, Order(by="deadline", aging_s=0.05)) == [1, 0, 2, 3]  # nobody is due later than at 50 ms


def test_shortest_first_by_each_size() -> None:
    rows = [Row(0, 30, 6, predicted=50), Row(0, 10, 40, predicted=20), Row(0, 20, 5, predicted=30), Row(0, 5, 90)]
    assert one_by_one(rows, Order(by="shortest_first", size="prompt")) == [3, 1, 2, 0]
    assert one_by_one(rows, Order(by="shortest_first", size="output")) == [2, 0, 1, 3]
    assert one_by_one(rows, Order(by="shortest_first", size="total")) == [2, 0, 1, 3]
    assert one_by_one(rows, Order(by="shortest_first", size="predicted")) == [1, 2, 0, 3]  # not known: last


SIZES: tuple[Literal["output"], Literal["predicted"]] = ("output", "predicted")


def test_an_error_of_prediction_costs_what_it_costs() -> None:
    # outputs 40, 10, 20; predicted the other way round: the mean end is that of the wrong order
    outputs = (40, 10, 20)
    by_output, by_prediction = (Rules(order=Order(by="shortest_first", size=size)) for size in SIZES)
    true = tell([Row(0, 8, out) for out in outputs], knobs(max_num_seqs=1), by_output)
    exact, wrong = (
        tell([Row(0, 8, out, predicted=said) for out, said in zip(outputs, guess, strict=True)], knobs(max_num_seqs=1),
             by_prediction)
        for guess in (outputs, (10, 40, 20))
    )  # fmt: skip
    assert ms(true.outcomes["e2e_ns"]) == ms(exact.outcomes["e2e_ns"]) == [70, 10, 30]
    assert ms(wrong.outcomes["e2e_ns"]) == [40, 70, 60]


# Preemption ---------------------------------------------------------------------------------------------------------------------

URGENT = Order(by="priority")


def test_an_urgent_arrival_takes_a_seat_where_it_may() -> None:
    rows = [Row(0, 8, 40, priority=1), Row(0, 8, 40, priority=2), Row(5 * MS, 8, 4, priority=0)]
    config = knobs(max_num_seqs=2)
    waits = tell(rows, config, Rules(order=URGENT))
    assert ms(waits.outcomes["queue_ns"]) == [0, 0, 35]
    takes = tell(rows, config, Rules(order=URGENT, preemption=Preemption(to_admit=True)))
    assert ms(takes.outcomes["queue_ns"]) == [0, 0, 0]
    assert takes.outcomes["preemptions"].tolist() == [0, 1, 0]
    equal = tell([*rows[:2], Row(5 * MS, 8, 4, priority=2)], config, Rules(order=URGENT, preemption=Preemption(to_admit=True)))
    assert equal.outcomes["preemptions"].sum() == 0


def test_a_pause_keeps_kv_and_goes_on_where_it_stood() -> None:
    rows = [Row(0, 8, 40, priority=1), Row(5 * MS, 8, 4, priority=0)]
    paused, again = (
        tell(rows, knobs(max_num_seqs=1), Rules(order=URGENT, preemption=Preemption(mode=mode, to_admit=True)))  # type: ignore[arg-type]
        for mode in ("pause", "recompute")
    )
    assert paused.phases(0) == ["prefill", "decode", "paused", "prefill", "decode"]
    assert paused.outcomes["recomputed_tokens"].tolist() == [0, 0]
    assert again.outcomes["recomputed_tokens"].tolist() == [8 + 5 - 1, 0]
    event = paused.sink.table("preemptions")
    assert event["kind"].tolist() == [Displaced.pause]
    assert event["lost_tokens"].tolist() == [0]
    assert ms(event["restored_ns"] - event["preempted_ns"]) == [4 + 1]
    during = paused.iterations[(paused.iterations["start_ns"] >= 5 * MS) & (paused.iterations["start_ns"] < 9 * MS)]
    assert (during["kv_used"] == -(-12 // 4) + np.array([2, 3, 3, 3])).all()  # its 12 tokens stay beside the urgent one's


def test_paused_ones_lose_their_kv_before_anybody_running() -> None:
    # 20 blocks: the paused one keeps 16, the urgent one grows beyond the rest
    rows = [Row(0, 60, 12, priority=1), Row(3 * MS, 8, 60, priority=0)]
    told = tell(rows, knobs(max_num_seqs=1, num_gpu_blocks=21, max_model_len=80),
                Rules(order=URGENT, preemption=Preemption(mode="pause", to_admit=True)))  # fmt: skip
    assert told.how == "finished"
    assert told.phases(0)[:4] == ["prefill", "decode", "paused", "preempted"]
    assert told.outcomes["preemptions"].tolist() == [1, 0]
    assert told.outcomes["recomputed_tokens"][0] == 60 + 3 - 1


SWAP = Rules(
    order=URGENT, preemption=Preemption(mode="swap", to_admit=True, host_blocks=100), link=Link(gb_per_s=0.001, latency_s=0.0005)
)
"""A block of 1,000 bytes takes 1 ms, a transfer 0.5 ms more."""


def test_a_swap_costs_latency_and_bytes_over_bandwidth() -> None:
    rows = [Row(0, 8, 40, priority=1), Row(5 * MS, 8, 4, priority=0)]
    told = tell(rows, knobs(max_num_seqs=1), SWAP, block_bytes=1000)
    copy = 0.5 + 3 * 1.0  # 12 tokens are 3 blocks
    event = told.sink.table("preemptions")
    assert event["kind"].tolist() == [Displaced.swap]
    assert ms(event["link_ns"]) == [2 * copy]
    assert event["lost_tokens"].tolist() == [0]
    assert told.phases(0) == ["prefill", "decode", "swapped", "transfer", "prefill", "decode"]
    out, back = told.spans(0, Phase.swapped)[0], told.spans(0, Phase.transfer)[0]
    assert ms(np.array([out["end_ns"] - out["start_ns"]])) == [copy + 4]  # the urgent one waits for its blocks
    assert back["end_ns"] - back["start_ns"] >= copy * MS
    assert ms(told.outcomes["ttft_ns"][1:]) == [copy + 1]
    assert told.outcomes["recomputed_tokens"].sum() == 0


def test_a_full_host_pool_falls_back_to_recompute() -> None:
    rows = [Row(0, 8, 40, priority=1), Row(5 * MS, 8, 4, priority=0)]
    small = Rules(order=URGENT, preemption=Preemption(mode="swap", to_admit=True, host_blocks=2), link=SWAP.link)
    told = tell(rows, knobs(max_num_seqs=1), small, block_bytes=1000)
    assert told.sink.table("preemptions")["kind"].tolist() == [Displaced.recompute]
    assert told.outcomes["recomputed_tokens"].tolist() == [12, 0]
    assert told.phases(0) == ["prefill", "decode", "preempted", "prefill", "decode"]


@pytest.mark.parametrize(
    ("victim", "first"), [("last", 2), ("lowest_priority", 1), ("least_progress", 2), ("most_kv", 0), ("engine", 2)]
)
def test_who_goes_where_blocks_are_short(victim: str, first: int) -> None:
    # 40 blocks for three that grow: 0 holds most, 1 is least urgent, 2 came last and has the fewest outputs
    rows = [Row(0, 80, 60, priority=1), Row(0, 20, 60, priority=2), Row(3 * MS, 30, 60, priority=0)]
    config = knobs(num_gpu_blocks=41, max_model_len=160, max_num_batched_tokens=200)
    told = tell(rows, config, Rules(preemption=Preemption(victim=victim)))  # type: ignore[arg-type]
    events = told.sink.table("preemptions")
    assert events["request"][np.argsort(events["preempted_ns"], kind="stable")][0] == first


# Admission ----------------------------------------------------------------------------------------------------------------------


def test_output_reserve_defers_what_might_not_fit_later() -> None:
    # 40 blocks are 160 tokens; each prompt of 20 may write 60 more: two are expected to fill them
    rows = [Row(0, 20, 20, limit=60)] * 4
    config = knobs(num_gpu_blocks=41, max_model_len=160, max_num_batched_tokens=200)
    reserve = Batching(output_reserve="max_tokens")
    told = tell(rows, config, Rules(batching=reserve))
    assert ms(told.outcomes["queue_ns"]) == [0, 0, 20, 20]
    assert set(told.iterations["head_refused_by"][:20].tolist()) == {Refusal.kv_output_reserve}
    assert told.outcomes["preemptions"].sum() == 0
    assert ms(tell(rows, config).outcomes["queue_ns"]) == [0, 0, 0, 0]
    half = tell(rows, config, Rules(batching=Batching(output_reserve="max_tokens", output_reserve_ratio=0.5)))
    assert ms(half.outcomes["queue_ns"]) == [0, 0, 0, 20]  # 50 each: three
    clipped = tell(rows, config, Rules(batching=Batching(output_reserve="max_tokens", output_reserve_clip=20)))
    assert ms(clipped.outcomes["queue_ns"]) == [0, 0, 0, 0]


def test_output_reserve_by_prediction_and_what_a_low_one_costs() -> None:
    config = knobs(num_gpu_blocks=41, max_model_len=160, max_num_batched_tokens=200)
    reserve = Rules(batching=Batching(output_reserve="predicted"))
    right = tell([Row(0, 20, 60, limit=100, predicted=60)] * 4, config, reserve)
    low = tell([Row(0, 20, 60, limit=100, predicted=10)] * 4, config, reserve)
    assert (right.iterations["running"].max(), low.iterations["running"].max()) == (2, 4)
    assert (right.outcomes["preemptions"].sum(), low.outcomes["preemptions"].sum() > 0) == (0, True)
