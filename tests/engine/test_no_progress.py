"""Requests that evict each other for ever: the replay ends with a named outcome, exactly where the oracle never ends."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import replay_engine.loop
from replay_engine.config import SchedulerConfig
from replay_engine.sinks import MemorySink
from replay_engine.tables import OutcomeReason
from replay_engine.types import BatchPlan, IterationResult, RequestBatch, RequestState
from tests.oracle.mutants import load
from tests.oracle.plain_run import LivelockError, run_case

__all__: list[str] = []

Numbers = list[tuple[int, int, int]]
"""(prompt tokens, output tokens, priority) of requests that arrive together."""


class OneBatch:
    """A request source of requests that all arrive at 0."""

    def __init__(self, numbers: Numbers) -> None:
        self.numbers = numbers
        self.total = len(numbers)

    def batches(self) -> Iterator[RequestBatch]:
        columns = np.array(self.numbers, dtype=np.int64).T.copy()
        zero = np.zeros(self.total, dtype=np.int64)
        yield RequestBatch(
            index=np.arange(self.total), arrival_ns=zero, prompt_tokens=columns[0], output_tokens=columns[1],
            priority=columns[2], max_tokens=zero - 1, request_id=[f"r{i}" for i in range(self.total)],
        )  # fmt: skip


class EndlessError(Exception):
    pass


class Limited:
    """An executor whose iterations take 1 ns, and of which only so many are allowed."""

    def __init__(self, most: int) -> None:
        self.left = most
        self.result = IterationResult(1, 1, 0)

    def submit(self, plan: BatchPlan, running: int = 0) -> Limited:
        if self.left == 0:
            raise EndlessError
        self.left -= 1
        return self

    def wait(self) -> IterationResult:
        return self.result


def make_case(seed: int) -> tuple[dict[str, Any], Numbers]:
    """Priority order, admission by first chunk and a threshold: the setting in which sequences evict each other."""
    rng = random.Random(seed)
    size, longest = rng.choice((1, 2, 16)), rng.choice((40, 80))
    knobs = {
        "policy": "priority",
        "max_model_len": longest,
        "block_size": size,
        "enable_prefix_caching": False,
        "async_scheduling": bool(seed % 2),
        "scheduler_reserve_full_isl": False,
        "long_prefill_token_threshold": rng.randint(1, 8),
        "max_num_seqs": 8,
        "max_num_batched_tokens": rng.choice((8, 16, 32)),
        "num_gpu_blocks": -(-longest // size) + 1 + rng.randint(0, 1),
    }
    return knobs, [(rng.randint(1, longest - 5), rng.randint(1, 5), rng.randint(0, 2)) for _ in range(rng.randint(2, 6))]


def ends(knobs: dict[str, Any], numbers: Numbers) -> bool:
    """Whether the plain walk comes to an end."""
    requests = [
        {"id": f"r{i}", "arrival_step": 0, "arrival_time": 0.0, "prompt_segments": [[i, p]], "output_len": o, "output_seed": 0,
         "priority": priority}
        for i, (p, o, priority) in enumerate(numbers)
    ]  # fmt: skip
    try:
        return all(True for _ in run_case(knobs, requests, max_steps=2_500))
    except LivelockError:
        return False


def replay(loop: ModuleType, knobs: dict[str, Any], numbers: Numbers, most: int = 20_000) -> tuple[str, MemorySink]:
    sink = MemorySink()
    state = loop.Replay(OneBatch(numbers), SchedulerConfig(**knobs), Limited(most), sink, mode="outcomes").run()
    return state, sink


def test_no_progress_is_told_exactly_where_the_oracle_never_ends() -> None:
    seen = set()
    for seed in range(60):
        knobs, numbers = make_case(seed)
        wanted = "finished" if ends(knobs, numbers) else "no_progress"
        state, sink = replay(replay_engine.loop, knobs, numbers)
        assert state == wanted, f"seed {seed}"
        outcomes = sink.table("outcomes")
        assert len(outcomes) == len(numbers)
        failed = outcomes[outcomes["state"] == int(RequestState.failed)]
        assert bool(len(failed)) == (wanted == "no_progress")
        assert (failed["reason"] == int(OutcomeReason.no_progress)).all()
        seen.add(wanted)
    assert len(seen) == 2


def test_without_the_detector_it_never_ends(tmp_path: Path) -> None:
    knobs, numbers = next(case for case in map(make_case, range(60)) if not ends(*case))
    detector = (("replica", "return state.stuck > 1000 + 10 * len(engine.intake.live)", "return False"),)
    with pytest.raises(EndlessError):
        replay(load(tmp_path, "mutant_endless", "loop", detector), knobs, numbers)
