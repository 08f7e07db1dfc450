"""All policy dimensions at once: nothing is lost, nothing leaks, each request ends once, whatever the rules are."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from replay_engine.combinations import check
from replay_engine.config import ConfigError, SchedulerConfig
from replay_engine.front_door import DoorFacts
from replay_engine.loop import Replay
from replay_engine.profile import Latency
from replay_engine.recorder import EventMode
from replay_engine.rules import Batching, Client, FrontDoorRules, Link, Order, Preemption, Rules, Tier
from replay_engine.simulator import SimExecutor
from replay_engine.sinks import MemorySink
from replay_engine.tables import TABLES
from replay_engine.types import RequestState
from tests.engine.test_front_door import NAMES, Asked, AskedSource, asked, clients, doors
from tests.engine.traffic import latencies, schedulers

MANY = settings(max_examples=2000, deadline=None)
Pair = tuple[SchedulerConfig, Rules]

batchings = st.builds(
    Batching,
    mode=st.sampled_from(["continuous", "continuous", "continuous", "dynamic", "static"]),
    size=st.integers(1, 6),
    window_s=st.sampled_from([0.0, 3e-6, 1e-3]),
    answers=st.sampled_from(["own", "own", "batch"]),
    kv_allocation=st.sampled_from(["paged", "paged", "contiguous"]),
    step=st.sampled_from(["mixed", "mixed", "decode_first", "prefill_first", "interleave"]),
    interleave=st.sampled_from(["1:1", "2:3", "1:5"]),
    decode_reserve=st.sampled_from([0, 0, 2]),
    chunk_align=st.sampled_from([1, 1, 4]),
    max_partial_prefills=st.sampled_from([None, None, 1, 2]),
    output_reserve=st.sampled_from(["none", "none", "max_tokens", "predicted"]),
    output_reserve_clip=st.sampled_from([None, 10]),
    output_reserve_ratio=st.sampled_from([1.0, 0.4]),
)
orders = st.builds(
    Order,
    by=st.sampled_from(["engine", "fcfs", "priority", "deadline", "shortest_first", "fair"]),
    size=st.sampled_from(["prompt", "output", "predicted", "total"]),
    aging_s=st.sampled_from([None, 1e-6, 1e-3]),
    reserved=st.sampled_from([(), (), (Tier(priority=0, seqs=1, blocks=2),)]),
)
preemptions = st.builds(
    Preemption,
    mode=st.sampled_from(["recompute", "swap", "pause"]),
    victim=st.sampled_from(["engine", "last", "lowest_priority", "least_progress", "most_kv"]),
    to_admit=st.booleans(),
    host_blocks=st.sampled_from([0, 10, 1000]),
)
rule_sets = st.builds(
    Rules,
    batching=batchings,
    order=orders,
    preemption=preemptions,
    link=st.just(Link(gb_per_s=2000.0, latency_s=1e-7)),
    front_door=st.one_of(st.just(FrontDoorRules()), doors),
    client=st.one_of(st.just(Client()), clients),
)


def run(
    rows: list[Asked], config: SchedulerConfig, rules: Rules, latency: Latency, *, coast: bool = True, mode: EventMode = "full"
) -> tuple[Replay, MemorySink, str]:
    sink = MemorySink()
    executor = SimExecutor(latency, asynchronous=config.async_scheduling)
    facts = DoorFacts(latency=latency, ttft_slo_ns=20_000, tenants=NAMES)
    source = AskedSource(list(rows))
    replay = Replay(source, config, executor, sink, rules=rules, facts=facts, coast=coast, kv_block_bytes=4096, mode=mode)
    return replay, sink, replay.run()


MENDS: tuple[tuple[str, str, object], ...] = (
    ("scheduler", "async_scheduling", False), ("scheduler", "enable_prefix_caching", False),
    ("scheduler", "prefill_schedule_interval", 1), ("scheduler", "policy", "fcfs"),
    ("batching", "answers", "own"), ("batching", "kv_allocation", "paged"), ("batching", "step", "mixed"),
    ("batching", "mode", "continuous"), ("batching", "chunk_align", 1), ("batching", "decode_reserve", 0),
    ("batching", "output_reserve", "none"), ("order", "by", "priority"), ("order", "reserved", ()), ("order", "by", "fcfs"),
    ("preemption", "to_admit", True), ("preemption", "mode", "recompute"), ("preemption", "to_admit", False),
    ("batching", "max_partial_prefills", None),
)  # fmt: skip


def mended(pair: Pair, table: str, knob: str, value: object) -> Pair | None:
    """``pair`` with one knob set, ``None`` where it is set so already."""
    config, rules = pair
    own = config if table == "scheduler" else getattr(rules, table)
    if getattr(own, knob) == value:
        return None
    changed = replace(own, **{knob: value})
    return (changed, rules) if table == "scheduler" else (config, replace(rules, **{table: changed}))


def allowed(config: SchedulerConfig, rules: Rules) -> Pair:
    """The first combination that is not refused among those that change as little as possible."""
    found = [((config, rules), 0)]
    for _ in range(5):
        for pair, _ in found:
            with suppress(ConfigError):
                check(*pair)
                return pair
        found = [
            (changed, at + 1)
            for pair, first in found
            for at in range(first, len(MENDS))
            if (changed := mended(pair, *MENDS[at])) is not None
        ]
    assume(False)
    raise AssertionError


@pytest.mark.timeout(900)
@MANY
@given(rows=asked, config=schedulers(), rules=rule_sets, latency=latencies)
def test_nothing_is_lost_or_leaks(rows: list[Asked], config: SchedulerConfig, rules: Rules, latency: Latency) -> None:
    config, rules = allowed(config, rules)
    replay, sink, how = run(rows, config, rules, latency)
    outcomes, spans, iterations = (sink.table(t) for t in ("outcomes", "spans", "iterations"))
    assert sorted(outcomes["request"].tolist()) == list(range(len(rows)))
    state = replay.scheduler.state
    if how == "finished":
        assert state.pool.free == config.usable_blocks
        assert state.host.free == state.host.total
        assert not state.running and not len(state.waiting) and not state.paused and not state.loading and not state.expected
    else:
        assert how == "no_progress"
    by_request = defaultdict(list)
    for span in spans:
        by_request[int(span["request"])].append(span)
    for outcome in outcomes[outcomes["state"] == RequestState.finished]:
        own = by_request[int(outcome["request"])]
        assert own[0]["start_ns"] == outcome["arrival_ns"]
        assert all(a["end_ns"] == b["start_ns"] for a, b in zip(own, own[1:], strict=False))
        assert own[-1]["end_ns"] == outcome["arrival_ns"] + outcome["e2e_ns"]
        assert 0 <= outcome["queue_ns"] <= outcome["ttft_ns"] <= outcome["e2e_ns"]
        asked_for = min(rows[outcome["request"]].output, config.max_model_len - int(outcome["prompt_tokens"]))
        most = min(asked_for, rules.front_door.degrade_to_tokens) if outcome["degraded"] else asked_for
        assert outcome["output_tokens"] == most
    assert (iterations["prefill_tokens"] + iterations["decode_seqs"] <= config.token_budget).all()
    assert (iterations["running"] <= config.max_num_seqs).all()
    assert (iterations["kv_used"] >= 0).all()
    assert (iterations["kv_used"] + iterations["kv_cached"] <= config.usable_blocks).all()


@settings(max_examples=150, deadline=None)
@given(rows=asked, config=schedulers(), rules=rule_sets, latency=latencies)
def test_stretches_write_the_same_bytes_under_every_policy(
    rows: list[Asked], config: SchedulerConfig, rules: Rules, latency: Latency
) -> None:
    config, rules = allowed(config, rules)
    _, fast, _ = run(rows, config, rules, latency)
    _, slow, _ = run(rows, config, rules, latency, coast=False)
    for table in TABLES:
        assert fast.table(table).tobytes() == slow.table(table).tobytes(), table


@settings(max_examples=150, deadline=None)
@given(rows=asked, config=schedulers(), rules=rule_sets, latency=latencies)
def test_computed_tokens_add_up(rows: list[Asked], config: SchedulerConfig, rules: Rules, latency: Latency) -> None:
    rows = [replace(row, cancel=-1) for row in rows]
    config, rules = allowed(config, rules)
    _, sink, how = run(rows, config, rules, latency)
    outcomes, iterations = sink.table("outcomes"), sink.table("iterations")
    # who left early computed an amount that no outcome tells
    assume(how == "finished" and set(outcomes["state"]) <= {RequestState.finished, RequestState.rejected})
    done = outcomes[outcomes["state"] == RequestState.finished]
    prompts, outputs = done["prompt_tokens"].astype(np.int64), done["output_tokens"]
    computed = prompts + outputs - 1 - done["cached_tokens"] + done["recomputed_tokens"]
    assert iterations["prefill_tokens"].sum() + iterations["decode_seqs"].sum() == computed.sum()


@pytest.mark.parametrize("mode", ["swap", "pause"])
def test_the_rare_ways_do_happen(mode: str) -> None:
    """So that the invariants above are not about nothing."""
    config = SchedulerConfig(
        max_num_batched_tokens=64, max_num_seqs=4, max_model_len=160, block_size=4, num_gpu_blocks=60, async_scheduling=False,
        enable_prefix_caching=False, policy="priority",
    )  # fmt: skip
    preemption = Preemption(mode=mode, to_admit=True, host_blocks=100)  # type: ignore[arg-type]
    rows = [Asked(300 * i, 30, 40, priority=2 - i % 3) for i in range(30)]
    _, sink, how = run(rows, config, Rules(preemption=preemption), Latency(floor_ns=100.0, b_ns=1.0))
    assert how == "finished"
    kinds = set(sink.table("preemptions")["kind"].tolist())
    assert {"swap": 1, "pause": 2}[mode] in kinds
    phases = set(sink.table("spans")["phase"].tolist())
    assert ({8, 11} if mode == "swap" else {9}) <= phases


@pytest.mark.parametrize("cancel", [-1, 60_000])
def test_who_gave_up_a_held_place_is_answered_however_its_batch_ends(cancel: int) -> None:
    """The pool is too small for both, so the first to end gives up its place; the other ends, or its client goes."""
    rows = [Asked(gap=0, prompt=1, output=21), Asked(gap=0, prompt=96, output=80, cancel=cancel)]
    config = SchedulerConfig(
        max_num_batched_tokens=160, max_num_seqs=2, max_model_len=180, num_gpu_blocks=181, block_size=1,
        enable_prefix_caching=False, async_scheduling=False,
    )  # fmt: skip
    rules = Rules(batching=Batching(mode="dynamic", size=2, window_s=0.0, answers="batch"))
    latency = Latency(floor_ns=500.0, a_ns=100.0, b_ns=1.0, c_ns=0.0, d_ns=0.0, e_ns=0.0, h0_ns=700.0, h1_ns=0.0, h2_ns=0.0)
    _, sink, how = run(rows, config, rules, latency)
    outcomes = sink.table("outcomes")
    assert how == "finished" and sorted(outcomes["request"].tolist()) == [0, 1]
    first, other = sorted(outcomes, key=lambda row: int(row["request"]))
    assert first["e2e_ns"] == (other["e2e_ns"] if cancel == -1 else 60_000)
