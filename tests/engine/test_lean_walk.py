"""The benchmark's reference loop is fast, but not at the price of other decisions than the oracle's."""

from __future__ import annotations

import random
from typing import Any

from benchmarks.lean_walk import lean_replay
from tests.oracle.plain_run import run_case

__all__: list[str] = []


def test_lean_walk_decides_as_the_oracle() -> None:
    preemptions = 0
    for seed in range(150):
        rng = random.Random(seed)
        size, count = rng.choice((1, 2, 16)), rng.randint(2, 20)
        arrivals = sorted(rng.randint(0, 60) for _ in range(count))
        prompts = [rng.randint(1, 40) for _ in range(count)]
        outputs = [rng.choice((1, rng.randint(1, 60))) for _ in range(count)]
        blocks = -(-101 // size) + rng.randint(0, 80 // size)
        knobs: dict[str, Any] = {
            "max_num_batched_tokens": rng.choice((24, 64)),
            "max_num_seqs": rng.choice((3, 24)),
            "max_model_len": 101,
            "block_size": size,
            "num_gpu_blocks": blocks + 1,
            "enable_prefix_caching": False,
            "async_scheduling": False,
        }
        requests = [
            {"id": str(i), "arrival_step": a, "arrival_time": a, "prompt_segments": [[i, p]], "output_len": o, "output_seed": 0}
            for i, (a, p, o) in enumerate(zip(arrivals, prompts, outputs, strict=True))
        ]
        first, end = [0] * count, [0] * count
        records = list(run_case(knobs, requests))
        for record in records:
            preemptions += len(record.get("preempted", []))
            for request_id in record.get("first_token", []):
                first[int(request_id)] = record["step"] + 1
            for request_id in record.get("finished", []):
                end[int(request_id)] = record["step"] + 1
        # With iterations of 1 ns the clock counts steps.
        got = lean_replay(
            arrivals, prompts, outputs, budget=knobs["max_num_batched_tokens"], max_seqs=knobs["max_num_seqs"],
            blocks=blocks, block_size=size, latency=lambda *_: 1,
        )  # fmt: skip
        assert got == (first, end, len(records)), f"seed {seed}"
    assert preemptions > 100
