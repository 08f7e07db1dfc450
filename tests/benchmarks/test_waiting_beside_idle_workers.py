"""Case D10 with least outstanding tokens, by arithmetic alone: what five first-come workers make a prompt wait."""

from __future__ import annotations

import heapq
import math
import random

import pytest
import yaml

from benchmarks.case_judge import DATA

WORKERS, PER_S, PROMPTS = 5, 5.5, 1200
FIXED_S, PER_TOKEN_S, PER_PAIR_S, BUDGET = 7e-3, 1 / 32_000, 0.25e-9, 8192
LINK_S, LINK_BYTES_PER_S, KV_BYTES = 5e-3, 40e9, 131_072
ITERATION_S = 0.012
"""Of a decode engine: about what its fixed cost and some forty sequences take."""


def work_s(tokens: int) -> float:
    """A prompt's time alone on a worker, in prefill chunks of at most the budget."""
    spent = 0.0
    for done in range(0, tokens, BUDGET):
        chunk = min(BUDGET, tokens - done)
        spent += FIXED_S + chunk * PER_TOKEN_S + PER_PAIR_S * chunk * (done + chunk / 2)
    return spent


def mean_wait_s(seed: int, released: str) -> float:
    """The mean wait of one draw, each prompt going where the fewest tokens are outstanding."""
    rng, now, waited = random.Random(seed), 0.0, 0.0
    free, outstanding = [0.0] * WORKERS, [0] * WORKERS
    ends: list[tuple[float, int, int]] = []
    for _ in range(PROMPTS):
        now += rng.expovariate(PER_S)
        short = rng.random() < 0.8
        tokens = round(min(max(rng.lognormvariate(math.log(1500), 0.6), 200), 6000)) if short else rng.randint(16_000, 40_000)
        while ends and ends[0][0] <= now:
            _, worker, done = heapq.heappop(ends)
            outstanding[worker] -= done
        worker = min(range(WORKERS), key=outstanding.__getitem__)
        begins = max(now, free[worker])
        waited += begins - now
        end = free[worker] = begins + work_s(tokens)
        outstanding[worker] += tokens
        if released != "prefill":
            end += LINK_S + tokens * KV_BYTES / LINK_BYTES_PER_S
        if released == "decode":
            end += rng.randint(100, 300) * ITERATION_S
        heapq.heappush(ends, (end, worker, tokens))
    return waited / PROMPTS


@pytest.mark.parametrize(("released", "least", "most"), [("prefill", 0.94, 0.995), ("transfer", 0.9, 0.98), ("decode", 0.0, 0.0)])
def test_the_references_wait_is_a_rare_draw_unless_decoding_counts(released: str, least: float, most: float) -> None:
    figures = yaml.safe_load((DATA / "case_references" / "reference.yaml").read_text(encoding="utf-8"))
    reference = float(figures["D10"]["least outstanding tokens"]["p_queue_mean"])
    waits = [mean_wait_s(seed, released) for seed in range(200)]
    assert least <= sum(wait < reference for wait in waits) / len(waits) <= most
    if released == "decode":
        assert min(waits) > 2 * reference
