"""Prefill and decode on separate schedulers, without a driver: KV held on one side, fetched by the other, at hand-made times."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_engine.config import SchedulerConfig
from replay_engine.fetching import blocks_by_holder
from replay_engine.handover import Handover
from replay_engine.pools import PoolKind, make_pool
from replay_engine.scheduler import Scheduler
from replay_engine.types import BatchPlan, PrefillEntry, Refusal, Request, SeqState, Sequence


def knobs(**change: Any) -> SchedulerConfig:
    plain: dict[str, Any] = {
        "max_num_batched_tokens": 64, "max_num_seqs": 4, "max_model_len": 400, "block_size": 4, "num_gpu_blocks": 101,
        "enable_prefix_caching": False, "async_scheduling": False,
    }  # fmt: skip
    plain |= change
    plain["max_model_len"] = min(plain["max_model_len"], (plain["num_gpu_blocks"] - 1) * plain["block_size"])
    return SchedulerConfig(**plain)


def request(index: int, prompt: int, output: int) -> Request:
    return Request(index=index, request_id=str(index), arrival_ns=0, prompt_tokens=prompt, output_tokens=output)


def prefill_side(kind: PoolKind = "auto", *, token_known: bool = False, **change: Any) -> Scheduler:
    config = knobs(**change)
    return Scheduler(config, make_pool(config, kind), handover=Handover(decode=False, token_known=token_known))


def decode_side(kind: PoolKind = "auto", *, token_known: bool = False, **change: Any) -> Scheduler:
    config = knobs(**change)
    return Scheduler(config, make_pool(config, kind), handover=Handover(decode=True, token_known=token_known))


def steps(scheduler: Scheduler, n: int) -> list[BatchPlan]:
    plans = []
    for _ in range(n):
        plans.append(scheduler.schedule())
        scheduler.update(plans[-1])
    return plans


def shapes(plan: BatchPlan) -> list[tuple[int, int, int, bool]]:
    return [(e.seq.index, e.query_len, e.kv_len, e.decode) for e in plan.prefill]


def test_the_prefill_side_keeps_blocks_but_no_seat() -> None:
    scheduler = prefill_side(max_num_seqs=1)
    first, second = (scheduler.add(request(i, 30, 9), []) for i in range(2))
    plan = scheduler.schedule()
    assert shapes(plan) == [(0, 30, 30, False)] and list(plan.finishing) == [first]
    assert scheduler.update(plan) == [first]
    assert first.state == SeqState.HELD and not scheduler.state.running
    assert blocks_by_holder(scheduler.state)["awaiting_transfer"] == 8
    plan = scheduler.schedule()  # the seat is free although the KV is not
    assert scheduler.update(plan) == [second]
    assert scheduler.state.pool.free == 100 - 16
    assert scheduler.release_transferred(first) and not scheduler.release_transferred(first)
    assert scheduler.release_transferred(second)
    assert scheduler.state.pool.free == 100


def test_a_full_prefill_side_waits_for_its_transfers() -> None:
    scheduler = prefill_side(num_gpu_blocks=13)  # 12 blocks of 4 tokens
    held = scheduler.add(request(0, 32, 2), [])
    scheduler.add(request(1, 24, 2), [])
    first, blocked = steps(scheduler, 2)
    assert [seq.index for seq in first.finishing] == [0]
    assert (blocked.refused_by, blocked.refused_need) == (Refusal.kv_full_isl, 6) and not blocked.prefill
    scheduler.release_transferred(held)
    (after,) = steps(scheduler, 1)
    assert shapes(after) == [(1, 24, 24, False)]


@pytest.mark.parametrize("kind", ["traced", "identified"])
def test_the_prefill_side_still_hits_what_it_has_handed_over(kind: PoolKind) -> None:
    scheduler = prefill_side(kind, enable_prefix_caching=True)
    keys = list(range(100, 107))
    first = scheduler.add(request(0, 30, 5), keys)
    steps(scheduler, 1)
    scheduler.add(request(1, 30, 5), keys)
    (plan,) = steps(scheduler, 1)  # while its blocks are held
    assert plan.hit_tokens == 28
    scheduler.release_transferred(first)
    scheduler.add(request(2, 30, 5), keys)
    (plan,) = steps(scheduler, 1)
    assert plan.hit_tokens == 28


def test_the_decode_side_takes_blocks_first_and_a_seat_when_the_kv_has_come() -> None:
    scheduler = decode_side(max_num_seqs=1)
    one, two = (scheduler.add(request(i, 30, 3), []) for i in range(2))
    (plan,) = steps(scheduler, 1)
    assert list(plan.fetching) == [one, two]  # neither holds the one seat
    assert not plan.admitted and not scheduler.state.running and not scheduler.state.waiting
    assert blocks_by_holder(scheduler.state)["transfer"] == 16
    scheduler.fetched(two)
    scheduler.fetched(one)
    plans = steps(scheduler, 3)
    assert [shapes(p) for p in plans] == [[(1, 1, 30, False)], [], []]  # its last prompt token, then decodes
    assert [p.decode_seqs for p in plans] == [0, 1, 1]
    assert plans[0].refused is one and plans[0].refused_by == Refusal.max_num_seqs
    assert list(plans[2].finishing) == [two]
    plans = steps(scheduler, 3)
    assert shapes(plans[0]) == [(0, 1, 30, False)] and list(plans[2].finishing) == [one]
    assert scheduler.state.pool.free == 100


def test_with_the_first_token_from_the_prefill_side_decoding_goes_on_with_the_second() -> None:
    scheduler = decode_side(token_known=True)
    seq = scheduler.add(request(0, 32, 3), [])
    steps(scheduler, 1)
    assert blocks_by_holder(scheduler.state)["transfer"] == 9  # 32 prompt tokens, and the one that is known
    scheduler.fetched(seq)
    plans = steps(scheduler, 2)
    assert [shapes(p) for p in plans] == [[(0, 1, 33, True)], []]
    assert list(plans[1].finishing) == [seq]  # three tokens in all: one on the other side, two here
    alone = prefill_side(token_known=True)
    alone.add(request(0, 32, 1), [])
    (plan,) = steps(alone, 1)
    assert len(plan.finishing) == 1 and alone.state.pool.free == 100  # its only token came from here: nothing to hand over


def test_a_seat_must_be_free_when_blocks_are_taken_for_a_fetch() -> None:
    scheduler = decode_side(max_num_seqs=1)
    seq = scheduler.add(request(0, 8, 5), [])
    steps(scheduler, 1)
    scheduler.fetched(seq)
    steps(scheduler, 1)
    scheduler.add(request(1, 8, 5), [])
    (plan,) = steps(scheduler, 1)
    assert not plan.fetching and plan.refused_by == Refusal.max_num_seqs


def test_a_full_decode_side_does_not_fetch() -> None:
    scheduler = decode_side(num_gpu_blocks=13)
    seq = scheduler.add(request(0, 32, 3), [])
    scheduler.add(request(1, 24, 3), [])
    (plan,) = steps(scheduler, 1)
    assert list(plan.fetching) == [seq] and (plan.refused_by, plan.refused_need) == (Refusal.kv_full_isl, 6)
    scheduler.fetched(seq)
    plans = steps(scheduler, 4)
    assert [[s.index for s in p.fetching] for p in plans] == [[], [], [], [1]]


@pytest.mark.parametrize("kind", ["traced", "identified"])
def test_what_the_decode_side_has_cached_is_not_fetched(kind: PoolKind) -> None:
    scheduler = decode_side(kind, enable_prefix_caching=True)
    keys = list(range(100, 107))
    one = scheduler.add(request(0, 30, 2), keys)
    steps(scheduler, 1)
    assert (one.fetch_hit, one.nblocks) == (0, 8)
    early = scheduler.add(request(1, 30, 2), keys)
    steps(scheduler, 1)
    assert early.fetch_hit == 0  # the KV of the first has not come yet: there is nothing to hit
    scheduler.fetched(one)
    late = scheduler.add(request(2, 30, 2), keys)
    steps(scheduler, 1)
    assert late.fetch_hit == 7 and late.nblocks == 8


def test_preempted_on_the_decode_side_it_is_computed_again_there() -> None:
    scheduler = decode_side(num_gpu_blocks=7, max_num_seqs=2)  # 6 blocks of 4 tokens
    first, second = (scheduler.add(request(i, 11, 9), []) for i in range(2))
    steps(scheduler, 1)
    scheduler.fetched(first)
    scheduler.fetched(second)
    plans = steps(scheduler, 3)
    assert [seq for p in plans for seq, _ in p.preempted] == [second]
    assert second.handover == 0 and second.state == SeqState.WAIT
    seen: list[PrefillEntry] = []
    for plan in steps(scheduler, 30):
        seen += plan.prefill
    assert [(e.seq.index, e.query_len, e.recompute) for e in seen] == [(1, 13, 12)]
    assert scheduler.state.pool.free == 6


def test_kv_that_is_lost_is_computed_here_or_fetched_again() -> None:
    scheduler = decode_side()
    one, two = (scheduler.add(request(i, 30, 2), []) for i in range(2))
    steps(scheduler, 1)
    scheduler.fetch_failed(one, again=False)
    scheduler.fetch_failed(two, again=True)
    assert scheduler.state.pool.free == 100 and list(scheduler.state.waiting.in_order()) == [two, one]
    (plan,) = steps(scheduler, 1)
    assert list(plan.fetching) == [two] and shapes(plan) == [(0, 30, 30, False)]


@pytest.mark.parametrize("state", ["waiting", "fetching", "fetched", "held"])
def test_whoever_gives_up_gives_back_what_it_holds(state: str) -> None:
    scheduler = prefill_side() if state == "held" else decode_side()
    seq = scheduler.add(request(0, 30, 2), [])
    if state != "waiting":
        steps(scheduler, 1)
    if state == "fetched":
        scheduler.fetched(seq)
    assert scheduler.abort(seq) and not scheduler.abort(seq)
    assert scheduler.state.pool.free == 100 and not scheduler.state.waiting
    handover = scheduler.state.handover
    assert handover is not None and not handover.held and not handover.fetching


def _pair(draw: st.DrawFn) -> tuple[Scheduler, Scheduler, bool]:
    known, caching, kind = draw(st.booleans()), draw(st.booleans()), draw(st.sampled_from(["auto", "identified"]))
    sides = []
    for decode in (False, True):
        config = knobs(
            enable_prefix_caching=caching, async_scheduling=draw(st.booleans()), max_num_seqs=draw(st.integers(1, 5)),
            num_gpu_blocks=draw(st.sampled_from([26, 30, 60])), block_size=draw(st.sampled_from([2, 4])), max_model_len=50,
            policy=draw(st.sampled_from(["fcfs", "priority"])), watermark=draw(st.sampled_from([0.0, 0.1])),
            max_num_batched_tokens=draw(st.integers(8, 64)), scheduler_reserve_full_isl=draw(st.booleans()),
        )  # fmt: skip
        sides.append(Scheduler(config, make_pool(config, kind), handover=Handover(decode=decode, token_known=known)))
    return sides[0], sides[1], known


class _Engine:
    """One scheduler stepped by hand; asynchronous: the outcome of a plan is told after the next one is made."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._before: BatchPlan | None = None

    def step(self) -> tuple[BatchPlan, list[Sequence]]:
        plan = self.scheduler.schedule()
        state = self.scheduler.state
        assert plan.total_tokens <= state.budget and len(state.running) <= state.seats
        told, self._before = (self._before, plan) if state.lag else (plan, None)
        return plan, self.scheduler.update(told) if told is not None else []


@settings(max_examples=200)
@given(data=st.data())
def test_every_request_ends_once_and_no_block_is_lost(data: st.DataObject) -> None:
    prefill, decode, known = data.draw(st.composite(_pair)())
    rows = data.draw(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9), st.integers(0, 2)), min_size=1, max_size=12))
    sides = _Engine(prefill), _Engine(decode)
    keys = {group: [1000 * group + i for i in range(25)] for group in range(3)}
    held: dict[int, Sequence] = {}
    here: dict[int, Sequence] = {}
    moving: deque[Sequence] = deque()
    computed, ended = [0] * len(rows), []
    for index, (prompt, output, group) in enumerate(rows):
        prefill.add(request(index, prompt, output), keys[group][: prompt // prefill.config.block_size])
    for turn in range(4000):
        _, finished = sides[0].step()
        for seq in finished:
            if seq.state == SeqState.HELD:
                held[seq.index] = seq
                size, group = decode.config.block_size, rows[seq.index][2]
                here[seq.index] = decode.add(seq.request, [7 + k for k in keys[group]][: seq.prompt_tokens // size])
            else:
                assert known and rows[seq.index][1] == 1
                ended.append(seq.index)
        plan, finished = sides[1].step()
        moving.extend(plan.fetching)
        ended += [seq.index for seq in finished]
        for entry in plan.prefill:
            computed[entry.seq.index] += entry.query_len
        if moving and turn % data.draw(st.integers(1, 3)) == 0:
            seq = moving.popleft()
            what = data.draw(st.sampled_from(["come", "come", "come", "again", "here"]))
            if what == "come":
                decode.fetched(seq)
            else:
                decode.fetch_failed(seq, again=what == "again")
            if what != "again":
                assert prefill.release_transferred(held.pop(seq.index))
        if len(ended) == len(rows) and not held:
            break
    assert sorted(ended) == list(range(len(rows)))
    for _ in range(2):
        for side in sides:
            side.step()
    for scheduler in (prefill, decode):
        found = blocks_by_holder(scheduler.state)
        assert found["free"] + found["cached"] == scheduler.state.usable == scheduler.state.pool.free, found
        assert not scheduler.has_requests()
    if not decode.config.enable_prefix_caching:
        for index, seq in here.items():
            if not seq.num_preemptions and not seq.recomputed_tokens:
                assert computed[index] in (1, rows[index][0] + known)  # its last known token, or its whole prompt
