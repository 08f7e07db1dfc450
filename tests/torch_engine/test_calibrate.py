"""Exact batches on a small model: they compute what they say, and from them comes a profile that the simulator takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from replay_engine.calibration.cases import parse_case, parse_cases
from replay_engine.config import ConfigError
from replay_engine.profile import parse_profile
from replay_engine.simulator import SimExecutor
from replay_engine.torch_engine.calibrate import Plan, calibrate_model
from replay_engine.torch_engine.engine import EngineOptions
from replay_engine.torch_engine.measure import BLOCK, BatchBench, Groups, measure_batches, measure_replay
from tests.torch_engine.engines import config_of, small_model

CASES = "decode=1@20 decode=3*1@40 prefill=5 prefill=40 chunk=9@30c chunk=2*20@50 mix=7,12@20c,2*1@33"


@pytest.mark.parametrize("text", CASES.split())
@pytest.mark.parametrize("graphs", [False, True])
def test_a_batch_writes_the_kv_of_its_tokens_and_nothing_else(text: str, graphs: bool) -> None:
    case = parse_case(text)
    bench = BatchBench(small_model(), parse_cases([CASES]), graphs=graphs)
    assert bench.prepare(case)() > 0
    written = bench.kv.abs().sum((1, 2, 4, 5)) > 0  # [blocks, block_size]
    expected = np.zeros(written.shape, dtype=bool)
    first = 1
    for query, kv in [*((1, kv) for kv in case.decodes), *case.entries]:
        for position in range(kv - query, kv):
            expected[first + position // BLOCK, position % BLOCK] = True
        first += -(-kv // BLOCK)
    assert (written.numpy() == expected).all()


def test_every_batch_is_measured_and_says_how_it_ran() -> None:
    cases = parse_cases(["decode=3*1@40 prefill=8 prefill=600"])
    found = measure_batches(small_model(), cases, repeats=3, graphs=True)
    assert [each.case for each in found] == cases
    assert [(each.mode, each.padded) for each in found] == [("padded", 1), ("eager", 0), ("eager", 0)]
    assert found[2].device_ns > 2 * found[1].device_ns > 0


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"5,000 tokens: small has 1,024 positions"):
        BatchBench(small_model(), [parse_case("prefill=5000")])
    with pytest.raises(ConfigError, match=r"GiB of KV do not fit on cpu"):
        BatchBench(small_model(), [parse_case("decode=1000000*1@1000")])


def test_a_replay_tells_host_times_and_changes() -> None:
    groups = Groups(sizes=(1, 3), prompt=100, output=6, gap_ns=1000, seed=2)
    batch = next(groups.batches())
    config = config_of(enable_prefix_caching=False)
    found = measure_replay(small_model(), groups, config, EngineOptions(model="small", device="cpu"))
    assert found.tokens.sum() == batch.prompt_tokens.sum()
    assert found.seqs.sum() == (batch.output_tokens - 1).sum()
    assert (found.host_ns > 0).all()
    decoding = int((batch.output_tokens > 1).sum())
    assert decoding <= found.changes.sum() <= 2 * decoding, "each joins once, and leaves unless nothing follows"


def test_a_calibrated_profile_predicts_the_batches_it_came_from() -> None:
    cases = parse_cases([CASES, "prefill=200 prefill=700 decode=8*1@300 decode=8*1@20 chunk=100@200c"])
    plan = Plan(cases=cases, repeats=3, prompt=60, output=6, seats=8, budget=64, groups=(1, 4), asynchronous=False)
    found = calibrate_model(small_model(), EngineOptions(model="small", device="cpu"), plan)
    profile = parse_profile(found.profile.to_toml())
    assert profile == found.profile
    assert profile.synthetic
    assert profile.model is not None
    assert profile.model.name == "small"
    executor = SimExecutor(replace(profile.latency, h0_ns=0.0, h1_ns=0.0, h2_ns=0.0), asynchronous=False)
    slow = next(each for each in found.measured if each.case.name == "prefill=700")
    quick = next(each for each in found.measured if each.case.name == "prefill=5")
    times = [executor.predict(c.tokens, c.qk, 0, 0, 1, 0)[1] for c in (slow.case, quick.case)]
    assert times[0] > 2 * times[1] > 0
    assert found.found.factor is not None
    assert found.found.factor > 0
