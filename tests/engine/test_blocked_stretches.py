"""Decoding under a head that stays refused is replayed without a plan for each iteration, to the same bytes."""

from __future__ import annotations

import random

import pytest

from replay_engine.config import SchedulerConfig
from replay_engine.loop import Replay
from replay_engine.profile import Latency
from replay_engine.scheduler import Scheduler
from replay_engine.simulator import SimExecutor
from replay_engine.sinks import MemorySink
from replay_engine.tables import TABLES
from replay_engine.types import BatchPlan, Refusal
from tests.engine.traffic import Row, RowSource

__all__: list[str] = []

CONFIG = SchedulerConfig(max_num_batched_tokens=512, max_num_seqs=64, max_model_len=600, block_size=4, num_gpu_blocks=500)


def rows() -> list[Row]:
    rng = random.Random(5)
    return [
        Row(rng.randint(0, 900), rng.randint(150, 300), rng.randint(30, 200), group=rng.randint(0, 3), shared=rng.randint(0, 9))
        for _ in range(60)
    ]


@pytest.mark.parametrize(
    ("seats", "asynchronous", "reason"),
    [(64, True, Refusal.kv_full_isl), (64, False, Refusal.kv_full_isl), (2, True, Refusal.max_num_seqs)],
)
def test_same_bytes_and_few_plans(monkeypatch: pytest.MonkeyPatch, seats: int, asynchronous: bool, reason: Refusal) -> None:
    plans = 0
    schedule = Scheduler.schedule

    def counted(self: Scheduler, now: int = 0) -> BatchPlan:
        nonlocal plans
        plans += 1
        return schedule(self, now)

    monkeypatch.setattr(Scheduler, "schedule", counted)
    fields = {name: getattr(CONFIG, name) for name in CONFIG.__dataclass_fields__}
    config = SchedulerConfig(**(fields | {"max_num_seqs": seats, "async_scheduling": asynchronous}))
    sinks = []
    for coast in (True, False):
        sink, before = MemorySink(), plans
        executor = SimExecutor(Latency(floor_ns=100.0, b_ns=1.0), asynchronous=asynchronous)
        assert Replay(RowSource(rows()), config, executor, sink, coast=coast).run() == "finished"
        sinks.append((sink, plans - before))
    (fast, few), (slow, many) = sinks
    for table in TABLES:
        assert fast.table(table).tobytes() == slow.table(table).tobytes(), table
    iterations = fast.table("iterations")
    refused = (iterations["head_refused_by"] == reason) & (iterations["prefill_tokens"] == 0)
    assert refused.sum() > len(iterations) / 2
    assert few < many / 3
