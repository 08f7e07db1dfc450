"""The whole loop from outside: what a replay writes adds up, to the token and to the nanosecond."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_engine.config import SchedulerConfig
from replay_engine.profile import Latency
from replay_engine.tables import TABLES, OutcomeReason
from replay_engine.types import Phase, RequestState
from tests.engine.traffic import Row, latencies, replay, schedulers, traffic

MANY = settings(max_examples=120, deadline=None)


@MANY
@given(rows=traffic(cancels=True), config=schedulers(), latency=latencies, stall=st.sampled_from([None, 0, 2000]))
def test_stretches_write_the_same_bytes_as_plan_by_plan(
    rows: list[Row], config: SchedulerConfig, latency: Latency, stall: int | None
) -> None:
    one, fast, how = replay(rows, config, latency, stall_ns=stall)
    two, slow, how_too = replay(rows, config, latency, coast=False, stall_ns=stall)
    assert how == how_too
    for table in TABLES:
        left, right = fast.table(table), slow.table(table)
        if any(r.cancel >= 0 for r in rows) and table != "iterations":
            # a client that leaves in the moment it comes is written before or after the iteration that is under way
            left, right = np.sort(left), np.sort(right)
        assert left.tobytes() == right.tobytes(), table
    one.totals.walked = two.totals.walked = 0
    assert one.totals == two.totals


@MANY
@given(rows=traffic(cancels=True), config=schedulers(), latency=latencies)
def test_every_request_ends_once_and_spans_partition_its_life(rows: list[Row], config: SchedulerConfig, latency: Latency) -> None:
    _, sink, how = replay(rows, config, latency)
    outcomes, spans = sink.table("outcomes"), sink.table("spans")
    assert sorted(outcomes["request"].tolist()) == list(range(len(rows)))
    by_request = defaultdict(list)
    for span in spans:
        by_request[int(span["request"])].append(span)
    for outcome in outcomes:
        own = by_request[int(outcome["request"])]
        if outcome["state"] == RequestState.rejected:
            assert not own
            continue
        assert own[0]["start_ns"] == outcome["arrival_ns"]
        for left, right in zip(own, own[1:], strict=False):
            assert left["end_ns"] == right["start_ns"]
            assert left["start_ns"] <= left["end_ns"]
        if outcome["state"] == RequestState.finished:
            assert own[-1]["end_ns"] == outcome["last_token_ns"] == outcome["arrival_ns"] + outcome["e2e_ns"]
            assert sum(int(s["end_ns"] - s["start_ns"]) for s in own) == outcome["e2e_ns"]
            assert 0 <= outcome["queue_ns"] <= outcome["ttft_ns"] <= outcome["e2e_ns"]
    assert how == "finished" or set(outcomes["reason"]) & {int(OutcomeReason.no_progress)}


@MANY
@given(rows=traffic(), config=schedulers(), latency=latencies)
def test_computed_tokens_add_up(rows: list[Row], config: SchedulerConfig, latency: Latency) -> None:
    _, sink, how = replay(rows, config, latency)
    if how != "finished":
        return
    outcomes, iterations, entries = (sink.table(t) for t in ("outcomes", "iterations", "prefill_entries"))
    done = outcomes[outcomes["state"] == RequestState.finished]
    expected = sum(
        int(o["prompt_tokens"]) + min(rows[o["request"]].output, config.max_model_len - int(o["prompt_tokens"])) - 1
        - int(o["cached_tokens"]) + int(o["recomputed_tokens"])
        for o in done
    )  # fmt: skip
    assert iterations["prefill_tokens"].sum() + iterations["decode_seqs"].sum() == expected
    assert entries["query_len"].sum() == iterations["prefill_tokens"].sum()
    assert (iterations["prefill_tokens"] + iterations["decode_seqs"] <= config.token_budget).all()
    assert (iterations["running"] <= config.max_num_seqs).all()
    assert (iterations["kv_used"] + iterations["kv_cached"] <= config.usable_blocks).all()
    assert (iterations["kv_used"] >= 0).all()
    preemptions = sink.table("preemptions")
    assert iterations["preempted"].sum() == len(preemptions)
    # a victim whose last token is in flight ends all the same
    assert done["preemptions"].sum() == (preemptions["resumed_iteration"] >= 0).sum()
    assert preemptions["recomputed_tokens"].sum() == iterations["recomputed_tokens"].sum()
    assert entries["recompute"].sum() == iterations["recomputed_tokens"].sum()


@MANY
@given(rows=traffic(), config=schedulers(), latency=latencies)
def test_iterations_never_overlap_and_gaps_come_from_them(rows: list[Row], config: SchedulerConfig, latency: Latency) -> None:
    _, sink, how = replay(rows, config, latency, stall_ns=1500)
    iterations = sink.table("iterations")
    ends = iterations["start_ns"] + iterations["duration_ns"]
    assert (iterations["start_ns"][1:] >= ends[:-1]).all()
    tokens = _token_times(sink.table("spans"), iterations)
    for outcome in sink.table("outcomes"):
        if outcome["state"] != RequestState.finished or how != "finished":
            continue
        times = tokens[int(outcome["request"])]
        gaps = np.diff(times)
        assert len(times) == outcome["output_tokens"]
        assert times[0] == outcome["arrival_ns"] + outcome["ttft_ns"]
        assert outcome["max_gap_ns"] == (gaps.max() if len(gaps) else -1)
        assert outcome["stalled_ns"] == np.maximum(gaps - 1500, 0).sum()


def _token_times(spans: np.ndarray, iterations: np.ndarray) -> dict[int, list[int]]:
    """Token times by brute force from the tables: the end of every prefill that completes, and of every iteration of a decode
    span."""
    ends = {int(r["iteration"]): int(r["start_ns"] + r["duration_ns"]) for r in iterations}
    by_request = defaultdict(list)
    for span in spans:
        by_request[int(span["request"])].append(span)
    out: dict[int, list[int]] = {}
    for request, own in by_request.items():
        times = []
        for i, span in enumerate(own):
            last = i == len(own) - 1 or own[i + 1]["phase"] == Phase.decode
            if span["phase"] == Phase.prefill and last:
                times.append(int(span["end_ns"]))
            elif span["phase"] == Phase.decode:
                times += [ends[n] for n in range(span["start_iteration"], span["end_iteration"] + 1)]
        out[request] = times
    return out


@settings(max_examples=60, deadline=None)
@given(rows=traffic(), latency=latencies, config=schedulers())
def test_asynchronous_is_no_slower_where_nothing_binds(rows: list[Row], latency: Latency, config: SchedulerConfig) -> None:
    """All arrive at once and seats, blocks and budget suffice: the same iterations, each no longer."""
    rows = [Row(0, r.prompt, r.output) for r in rows]
    ends = {}
    for asynchronous in (False, True):
        knobs = SchedulerConfig(
            max_num_batched_tokens=8192, max_num_seqs=64, max_model_len=160, block_size=4, num_gpu_blocks=4000,
            async_scheduling=asynchronous, enable_prefix_caching=config.enable_prefix_caching,
        )  # fmt: skip
        _, sink, _ = replay(rows, knobs, latency)
        ends[asynchronous] = int(sink.table("outcomes")["last_token_ns"].max())
    assert ends[True] <= ends[False]


def test_the_same_inputs_write_the_same_bytes() -> None:
    rows = [Row(1000 * (i % 7), 20 + i, 5 + i % 9, group=i % 3, shared=2) for i in range(60)]
    config = SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=8, max_model_len=160, num_gpu_blocks=40)
    latency = Latency(floor_ns=500.0, a_ns=100.0, b_ns=7.0, e_ns=0.3)
    runs = [replay(rows, config, latency)[1] for _ in range(2)]
    for table in TABLES:
        assert runs[0].table(table).tobytes() == runs[1].table(table).tobytes()
