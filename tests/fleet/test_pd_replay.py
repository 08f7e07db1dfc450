"""Prefill and decode pools on one clock: by value where a hand can follow, and what must hold whatever the pools are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_engine.config import SchedulerConfig
from replay_engine.fetching import blocks_by_holder
from replay_engine.fleet.pd_driver import PdReplay
from replay_engine.pd_rules import KvLinkRules, Pd
from replay_engine.profile import Latency
from replay_engine.replica import Replica
from replay_engine.rules import FrontDoorRules, Rules
from replay_engine.tables import TABLES
from replay_engine.types import Phase, RequestState
from tests.engine.traffic import Row, RowSource, latencies, traffic
from tests.fleet.pools import BLOCK_BYTES, Pools, play

MS = 1_000_000
FLAT = Latency(floor_ns=1.0 * MS)
"""Every iteration takes a millisecond."""
QUEUED, PREFILL, WAIT, MOVE, STAND, DECODE = (
    int(p) for p in (Phase.queued, Phase.prefill, Phase.transfer_wait, Phase.transfer, Phase.decode_queue, Phase.decode)
)


def knobs(**change: Any) -> SchedulerConfig:
    plain: dict[str, Any] = {
        "max_num_batched_tokens": 64, "max_num_seqs": 4, "max_model_len": 400, "block_size": 4, "num_gpu_blocks": 1001,
        "enable_prefix_caching": False, "async_scheduling": False,
    }  # fmt: skip
    return SchedulerConfig(**(plain | change))


def both(**change: Any) -> dict[str, SchedulerConfig]:
    return {"prefill": knobs(**change), "decode": knobs(**change)}


def link(**change: Any) -> KvLinkRules:
    """A block takes a millisecond, nothing else takes time."""
    return KvLinkRules(**({"gb_per_s": BLOCK_BYTES / MS, "latency_s": 0.0} | change))


def test_one_request_goes_through_all_phases() -> None:
    pools = play(RowSource([Row(0, 30, 4)]), both(), Rules(pd=Pd(prefill=1, decode=1), kv_link=link()), FLAT)
    assert pools.how == "finished"
    assert pools.spans(0) == [
        (0, 0, QUEUED, 0), (0, MS, PREFILL, 0), (MS, MS, WAIT, 1), (MS, 9 * MS, MOVE, 1), (9 * MS, 9 * MS, STAND, 1),
        (9 * MS, 10 * MS, PREFILL, 1), (10 * MS, 13 * MS, DECODE, 1),
    ]  # fmt: skip
    (outcome,) = pools.outcomes
    # the client's first token is the decode engine's
    assert (outcome["ttft_ns"], outcome["e2e_ns"], outcome["tpot_ns"]) == (10 * MS, 13 * MS, MS)
    assert (outcome["output_tokens"], outcome["max_gap_ns"], outcome["state"]) == (4, MS, RequestState.finished)
    (moved,) = pools.table("transfers")
    assert moved["bytes"] == 8 * BLOCK_BYTES and (moved["asked_ns"], moved["start_ns"], moved["end_ns"]) == (MS, MS, 9 * MS)
    assert (moved["source"], moved["target"], moved["blocks"], moved["attempt"], moved["ended"]) == (0, 1, 8, 1, 0)


def test_the_first_token_may_come_from_the_prefill_engine() -> None:
    rules = Rules(pd=Pd(prefill=1, decode=1, first_token_from="prefill"), kv_link=link())
    pools = play(RowSource([Row(0, 30, 4), Row(100 * MS, 5, 1)]), both(), rules, FLAT)
    first, second = pools.outcomes
    # its KV takes 8 blocks (30 prompt tokens and the one that is known); the gap to its second token spans the transfer
    assert (first["ttft_ns"], first["e2e_ns"], first["max_gap_ns"]) == (MS, 12 * MS, 9 * MS)
    assert (second["ttft_ns"], second["e2e_ns"]) == (MS, MS)  # one token: it never leaves the prefill engine
    assert len(pools.table("transfers")) == 1


def test_requests_on_one_link_wait_for_each_other() -> None:
    rows = [Row(0, 32, 2), Row(0, 32, 2)]
    queue = play(RowSource(rows), both(), Rules(pd=Pd(prefill=1, decode=2), kv_link=link(concurrent=1)), FLAT)
    assert [(s[0], s[1]) for s in queue.spans(1) if s[2] in (WAIT, MOVE)] == [(MS, 9 * MS), (9 * MS, 17 * MS)]
    free = play(RowSource(rows), both(), Rules(pd=Pd(prefill=1, decode=2), kv_link=link()), FLAT)
    assert [(s[0], s[1]) for s in free.spans(1) if s[2] in (WAIT, MOVE)] == [(MS, MS), (MS, 9 * MS)]
    apart = play(RowSource(rows), both(), Rules(pd=Pd(prefill=2, decode=1), kv_link=link(concurrent=1)), FLAT)
    assert [(s[0], s[1]) for s in apart.spans(1) if s[2] in (WAIT, MOVE)] == [(MS, MS), (MS, 9 * MS)]  # a link of its own


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_full_decode_engine_holds_up_the_prefill_engine(asynchronous: bool) -> None:
    engines = {
        "prefill": knobs(num_gpu_blocks=21, max_model_len=60, async_scheduling=asynchronous),  # two prompts and a half
        "decode": knobs(num_gpu_blocks=16, max_model_len=60, async_scheduling=asynchronous),  # one prompt with its answer
    }
    rules = Rules(pd=Pd(prefill=1, decode=1), kv_link=KvLinkRules(preset="nvlink", latency_s=0.0))
    pools = play(RowSource([Row(0, 32, 20) for _ in range(4)]), engines, rules, FLAT)
    assert pools.how == "finished"
    ends = [int(o["last_token_ns"]) for o in pools.outcomes]
    waits = [next(s[1] - s[0] for s in pools.spans(i) if s[2] == WAIT) for i in range(4)]
    queued = [next(s[1] - s[0] for s in pools.spans(i) if s[2] == QUEUED) for i in range(4)]
    assert waits[0] < 2 * MS and waits[1] > 19 * MS  # the second waits for the first one's blocks on the decode engine
    assert queued[2] < 5 * MS and queued[3] > 19 * MS  # the fourth for the blocks of the second on the prefill engine
    assert ends == sorted(ends)


def test_what_the_decode_engine_has_cached_is_not_moved() -> None:
    rows = [Row(0, 40, 2, group=1, shared=4), Row(100 * MS, 40, 2, group=1, shared=4)]
    pools = play(RowSource(rows), both(enable_prefix_caching=True), Rules(pd=Pd(prefill=1, decode=1), kv_link=link()), FLAT)
    assert pools.table("transfers")["blocks"].tolist() == [10, 2]
    assert pools.table("transfers")["hit_blocks"].tolist() == [0, 8]
    assert pools.outcomes["cached_tokens"].tolist() == [0, 32]


def test_kv_moves_in_the_order_in_which_it_is_asked_for() -> None:
    rows = [Row(MS // 3, 10 + 7 * i % 50, 1 + i % 9) for i in range(40)]
    pd = Pd(prefill=2, decode=3, prefill_router="round_robin", decode_router="power_of_two")
    rules = Rules(pd=pd, kv_link=link(concurrent=2))
    pools = play(RowSource(rows), both(), rules, FLAT)
    moves = pools.table("transfers")
    for source in (0, 1):
        own = moves[moves["source"] == source]
        starts = own["start_ns"][np.lexsort((own["start_ns"], own["asked_ns"]))]
        assert len(own) and (np.diff(starts) >= 0).all()


@st.composite
def pool_setups(draw: st.DrawFn) -> tuple[dict[str, SchedulerConfig], Rules]:
    size = draw(st.sampled_from([2, 4, 16]))
    caching = draw(st.booleans())
    policy = draw(st.sampled_from(["fcfs", "priority"]))
    engines = {}
    for pool in ("prefill", "decode"):
        seqs = draw(st.integers(1, 8))
        engines[pool] = SchedulerConfig(
            max_num_batched_tokens=draw(st.integers(max(seqs, 4), 64)), max_num_seqs=seqs, max_model_len=160, block_size=size,
            num_gpu_blocks=-(-160 // size) + 1 + draw(st.sampled_from([0, 2, 20, 400])), policy=policy,
            enable_prefix_caching=caching, watermark=draw(st.sampled_from([0.0, 0.05])),
            scheduler_reserve_full_isl=draw(st.booleans()), async_scheduling=draw(st.booleans()),
        )  # fmt: skip
    routers = ["round_robin", "least_tokens", "power_of_two", "prefix_affinity"]
    rules = Rules(
        pd=Pd(
            prefill=draw(st.integers(1, 3)), decode=draw(st.integers(1, 3)), prefill_router=draw(st.sampled_from(routers)),
            decode_router=draw(st.sampled_from(routers)), first_token_from=draw(st.sampled_from(["decode", "prefill"])),
        ),
        kv_link=KvLinkRules(
            gb_per_s=draw(st.sampled_from([0.5, 40.0])), latency_s=draw(st.sampled_from([0.0, 1e-6, 1e-3])),
            concurrent=draw(st.sampled_from([0, 1, 2])),
        ),
        front_door=FrontDoorRules(timeout_s=draw(st.sampled_from([None, None, 1e-4]))),
    )  # fmt: skip
    return engines, rules


def check(pools: Pools, rows: list[Row], *, cancels: bool = False, failures: bool = False, whole: bool = True) -> None:
    """Every request ends once, its spans touch from arrival to last token, its tokens are all there, and all blocks are back."""
    outcomes = pools.outcomes
    assert outcomes["request"].tolist() == list(range(len(rows)))
    spoilt = cancels or pools.rules.front_door.timeout_s is not None
    for i, row in enumerate(rows):
        outcome, spans = outcomes[i], pools.spans(i)
        if outcome["state"] != RequestState.finished:
            assert spoilt or not whole
        if spans:
            assert spans[0][0] == outcome["arrival_ns"], (spans, outcome)
            assert all(a[1] == b[0] for a, b in zip(spans, spans[1:], strict=False)), spans
        if outcome["state"] == RequestState.finished:
            assert outcome["output_tokens"] == row.output
            assert spans[-1][1] == outcome["last_token_ns"]
            phases = [span[2] for span in spans]
            assert phases[0] == QUEUED or failures
            alone = row.output == 1 and pools.rules.pd.first_token_from == "prefill"
            assert alone or failures or [p for p in phases if p in (WAIT, MOVE, STAND)] == [WAIT, MOVE, STAND]
            assert 0 <= outcome["queue_ns"] <= outcome["ttft_ns"] <= outcome["e2e_ns"]
    for member in pools.replay.members:
        if not member.up:
            continue
        state = member.engine.scheduler.state
        found = blocks_by_holder(state)
        if whole:
            assert found["free"] + found["cached"] == state.usable, found
            assert state.handover is not None and not state.handover.held and not state.handover.fetching
    assert not any(len(each) for each in pools.replay.moves.links) or not whole


@settings(max_examples=250, deadline=None)
@given(rows=traffic(), setup=pool_setups(), latency=latencies)
def test_every_request_ends_once_and_nothing_is_lost(
    rows: list[Row], setup: tuple[dict[str, SchedulerConfig], Rules], latency: Latency
) -> None:
    pools = play(RowSource(rows), *setup, latency)
    assert pools.how == "finished"
    check(pools, rows)


@settings(max_examples=150, deadline=None)
@given(rows=traffic(cancels=True), setup=pool_setups(), latency=latencies)
def test_whoever_gives_up_leaves_nothing_behind(
    rows: list[Row], setup: tuple[dict[str, SchedulerConfig], Rules], latency: Latency
) -> None:
    pools = play(RowSource(rows), *setup, latency)
    assert pools.how == "finished"
    check(pools, rows, cancels=True)


class Cautious(PdReplay):
    """Lets an engine make one plan at a time, whatever is known of the others."""

    def _bound(self, engine: Replica) -> int:
        return 0


@settings(max_examples=100, deadline=None)
@given(rows=traffic(), setup=pool_setups(), latency=latencies)
def test_how_far_an_engine_is_let_go_on_changes_nothing(
    rows: list[Row], setup: tuple[dict[str, SchedulerConfig], Rules], latency: Latency
) -> None:
    far, near = (play(RowSource(rows), *setup, latency, kind=kind) for kind in (PdReplay, Cautious))
    for table in TABLES:
        for engine in range(-1, len(far.replay.members)):
            assert far.sink.bare(table, engine) == near.sink.bare(table, engine), (table, engine)


@settings(max_examples=100, deadline=None)
@given(rows=traffic(cancels=True), setup=pool_setups(), latency=latencies)
def test_coasting_or_not_the_rows_are_the_same(
    rows: list[Row], setup: tuple[dict[str, SchedulerConfig], Rules], latency: Latency
) -> None:
    coasted, planned = (play(RowSource(rows), *setup, latency, coast=coast) for coast in (True, False))
    for table in TABLES:
        for engine in range(-1, len(coasted.replay.members)):
            assert coasted.sink.bare(table, engine) == planned.sink.bare(table, engine), (table, engine)
