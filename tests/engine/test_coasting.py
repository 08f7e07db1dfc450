"""Coasted iterations under pressure, in every order and way of preempting: byte for byte the rows of the plan-by-plan loop."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from replay_engine import chunk_pass, coast, walk
from replay_engine.chunk_stretch import ChunkStretch
from replay_engine.coast import Coaster
from replay_engine.combinations import check
from replay_engine.config import ConfigError, SchedulerConfig
from replay_engine.kv_counted import Grant
from replay_engine.profile import Latency
from replay_engine.queues import FairQueue
from replay_engine.rules import Client, FrontDoorRules, Link, Order, Preemption, Rules
from replay_engine.state import State
from replay_engine.tables import TABLES
from replay_engine.types import Displaced, Sequence
from tests.engine.test_front_door import Asked
from tests.engine.test_policies import run
from tests.engine.test_resuming import in_pieces

__all__: list[str] = []

Case = tuple[list[Asked], SchedulerConfig, Rules, Latency]
LATENCIES = (
    Latency(floor_ns=100.0, b_ns=1.0),
    Latency(floor_ns=50.0, a_ns=20.0, b_ns=2.0, c_ns=0.01, d_ns=1.0, e_ns=0.3, h0_ns=20.0),
    Latency(floor_ns=50.0, a_ns=20.0, b_ns=2.0, c_ns=0.01, d_ns=1.0, e_ns=0.3, h0_ns=20.0, h1_ns=1.5, h2_ns=2.5),
    Latency(floor_ns=50.0, a_ns=20.0, b_ns=2.0, c_ns=0.01, d_ns=1.0, e_ns=0.3, h0_ns=20.0, p_ns=7.3),
    Latency(floor_ns=50.0, a_ns=20.0, b_ns=2.0, c_ns=0.01, d_ns=1.0, e_ns=0.3, h0_ns=20.0, s_ns=3.7),
    Latency(floor_ns=50.0, a_ns=20.0, b_ns=2.0, c_ns=0.01, d_ns=1.1, e_ns=0.3, h1_ns=1.5, h2_ns=2.5, p_ns=7.3, s_ns=0.31),
)


def engine(rng: random.Random) -> SchedulerConfig:
    """Few blocks beyond what the longest request needs."""
    size, longest = rng.choice([1, 2, 4, 16]), rng.choice([40, 160, 400])
    budget = rng.choice([4, 8, 16, 64, 400])
    return SchedulerConfig(
        max_num_batched_tokens=budget, max_num_seqs=min(rng.choice([2, 4, 8, 64]), budget), max_model_len=longest,
        block_size=size,
        num_gpu_blocks=1 - -longest // size + rng.choice([1, 3, 10, 40]) * (1 if size > 2 else 4),
        async_scheduling=rng.random() < 0.5, enable_prefix_caching=rng.random() < 0.4,
        policy=rng.choice(["fcfs", "fcfs", "priority"]), watermark=rng.choice([0.0, 0.0, 0.05]),
        scheduler_reserve_full_isl=rng.random() < 0.7, enable_chunked_prefill=rng.random() < 0.85,
        prefill_schedule_interval=rng.choice([1] * 9 + [3]), long_prefill_token_threshold=rng.choice([0, 0, 0, 1, 3, 8]),
        long_prefill_token_threshold_adaptive=rng.random() < 0.1,
    )  # fmt: skip


def rule_set(rng: random.Random) -> Rules:
    mode = rng.choice(["recompute", "swap", "swap", "pause"])
    weights = rng.choice([(1.0, 2.0), (1.0, 2.0), (0.3, 0.7), (0.0, 0.1), (1.0, 0.0)])
    by = rng.choice(["engine", "fcfs", "priority", "fair", "fair", "shortest_first", "deadline"])
    victim = rng.choice(["engine", "engine", "last", "lowest_priority", "most_kv", "least_progress"])
    doors = (
        FrontDoorRules(), FrontDoorRules(quota_tokens_per_s=1e9, quota_concurrent=100_000), FrontDoorRules(timeout_s=1e-5),
        FrontDoorRules(max_queued_reqs=6),
    )  # fmt: skip
    return Rules(
        order=Order(by=by, aging_s=rng.choice([None, None, 1e-6, 1e-3]), prompt_weight=weights[0], output_weight=weights[1]),
        preemption=Preemption(
            mode=mode, victim=victim, to_admit=rng.random() < 0.1, host_blocks=rng.choice([5, 1000]) if mode == "swap" else 0  # type: ignore[arg-type]
        ),
        link=Link(gb_per_s=rng.choice([2000.0, 20.0]), latency_s=rng.choice([0.0, 1e-7, 1e-5])),
        front_door=rng.choice(doors),
        client=rng.choice([Client(), Client(), Client(max_in_flight=9)]),
    )  # fmt: skip


def traffic(rng: random.Random, longest: int) -> list[Asked]:
    gap, at, rows = rng.choice([0, 30, 300, 2000]), 0, []
    for _ in range(rng.randint(5, 40)):
        at += rng.randint(0, 2 * gap)
        prompt = rng.randint(1, longest - 1 if rng.random() < 0.2 else max(longest // 3, 2) - 1)
        output = rng.randint(1, max(2, min(longest - prompt, rng.choice([3, 20, longest]))))
        row = Asked(at, prompt, output, priority=rng.randint(0, 2), tenant=rng.choice([0, 0, 0, 1, 1, 2, 3, -1]))
        rows.append(replace(row, cancel=at + rng.randint(0, 3000)) if rng.random() < 0.1 else row)
    return rows


def cases(first: int, count: int) -> list[Case]:
    found: list[Case] = []
    for seed in range(first, first + 10 * count):
        rng = random.Random(seed)
        try:
            config, rules = engine(rng), rule_set(rng)
            check(config, rules)
        except ConfigError:
            continue
        found.append((traffic(rng, config.max_model_len), config, rules, rng.choice(LATENCIES)))
        if len(found) == count:
            break
    return found


def test_the_fair_head_that_is_kept_is_the_least_one(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, kept = FairQueue.head, FairQueue.first_until
    seen: Counter[str] = Counter()

    def least(queue: FairQueue) -> Sequence:
        return next(queue.in_order())

    def head(queue: FairQueue) -> Sequence:
        found = looks(queue)
        assert found is least(queue)
        seen["heads"] += len(queue.shares.waiting) > 1
        return found

    def first_until(queue: FairQueue, index: int) -> int:
        until, now = kept(queue, index), queue.shares.tick
        for queue.shares.tick in range(now, min(until, now + 40) + 1):
            assert least(queue).index == index
            seen["ahead"] += len(queue.shares.waiting) > 1 and queue.shares.tick > now
        queue.shares.tick = now
        return until

    monkeypatch.setattr(FairQueue, "head", head)
    monkeypatch.setattr(FairQueue, "first_until", first_until)
    for rows, config, rules, latency in cases(2_000_000, 150):
        fair = replace(rules, order=replace(rules.order, by="fair"))
        with contextlib.suppress(ConfigError):
            check(config, fair)
            run(rows, config, fair, latency)
    assert seen["heads"] > 1000 and seen["ahead"] > 500, seen


def test_the_walk_over_growth_alone_decides_as_the_walk_over_all(monkeypatch: pytest.MonkeyPatch) -> None:
    may, explicit = walk._only_growth, Counter[bool]()

    def counted(state: State) -> bool:
        alone = may(state)
        explicit[bool(state.loose)] += alone
        return alone

    monkeypatch.setattr(walk, "_only_growth", counted)
    for seed in range(250):
        rng = random.Random(seed)
        size = rng.choice([1, 2, 4, 16])
        config = SchedulerConfig(
            max_num_batched_tokens=400, max_num_seqs=16, max_model_len=160, block_size=size, num_gpu_blocks=1 + 400 // size,
            async_scheduling=rng.random() < 0.5, enable_prefix_caching=rng.random() < 0.4, watermark=rng.choice([0.0, 0.05]),
        )  # fmt: skip
        rules = Rules(
            order=Order(by=rng.choice(["fcfs", "fair", "shortest_first"])),
            preemption=Preemption(mode=rng.choice(["swap", "swap", "recompute"]), victim="last", host_blocks=1000),
            link=Link(gb_per_s=2000.0, latency_s=rng.choice([0.0, 1e-7])),
        )  # fmt: skip
        rows = [Asked(rng.choice([0, 50]), rng.randint(1, 40), rng.randint(1, 100), tenant=rng.randint(0, 2)) for _ in range(40)]
        latency = rng.choice(LATENCIES)
        _, short, how = run(rows, config, rules, latency)
        with pytest.MonkeyPatch.context() as literal:
            literal.setattr(walk, "_only_growth", lambda state: False)
            _, full, same = run(rows, config, rules, latency)
        assert how == same
        for table in TABLES:
            assert short.table(table).tobytes() == full.table(table).tobytes(), table
    assert explicit[True] > 50 and explicit[False] > 500, explicit


def test_pieces_under_pressure_write_the_same_bytes() -> None:
    for number, (rows, config, rules, latency) in enumerate(cases(1_000_000, 100)):
        rules = replace(rules, client=Client())
        _, whole, how = run(rows, config, rules, latency)
        pieces, ended = in_pieces(rows, config, rules, latency, [*[0, -1, 700][number % 3 :], 0], coast=True)
        assert ended == how, number
        for table in TABLES:
            assert pieces.table(table).tobytes() == whole.table(table).tobytes(), (number, table)


@pytest.mark.parametrize("part", range(4))
def test_coasting_writes_the_same_bytes_under_pressure(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter[str] = Counter()
    coasted, chunked = Coaster.run, ChunkStretch.run

    def counting(self: Coaster, *given: object) -> bool:
        ran = coasted(self, *given)  # type: ignore[arg-type]
        seen["coasted"] += ran
        return ran

    def chunking(self: ChunkStretch, *given: Any) -> tuple[int, int] | None:
        moved = chunked(self, *given)
        seen["chunked"] += moved is not None
        seen["head waits"] += moved is not None and self.row[0] > 0
        return moved

    def granting(state: State, growing: dict[int, Sequence]) -> tuple[list[Grant] | None, int]:
        taken, spare = chunk_pass.grant_chunks(state, growing)
        seen["granted"] += taken is not None
        seen["granted as one ends"] += taken is not None and state.it in state.decodes.calendar
        return taken, spare

    monkeypatch.setattr(Coaster, "run", counting)
    monkeypatch.setattr(ChunkStretch, "run", chunking)
    monkeypatch.setattr(coast, "grant_chunks", granting)
    for number, (rows, config, rules, latency) in enumerate(cases(100_000 * part, 100)):
        (one, fast, how), (two, slow, how_too) = (run(rows, config, rules, latency, coast=coast) for coast in (True, False))
        assert how == how_too, number
        for table in TABLES:
            assert fast.table(table).tobytes() == slow.table(table).tobytes(), (part, number, table)
        assert one.totals == two.totals, number
        three, lean, _ = run(rows, config, rules, latency, mode="iterations")
        assert three.totals == two.totals, number
        for table in ("iterations", "outcomes"):
            assert lean.table(table).tobytes() == slow.table(table).tobytes(), (part, number, table)
        seen["plain"] += one.scheduler.state.plain
        for kind in set(fast.table("preemptions")["kind"].tolist()):
            seen[Displaced(kind).name] += 1
    assert seen["coasted"] > 200 and seen["plain"] > 40, seen
    assert seen["chunked"] > 100 and seen["head waits"] > 50, seen
    assert seen["granted"] > 500 and seen["granted as one ends"] > 50, seen
    assert seen["recompute"] > 10 and seen["swap"] > 2, seen
