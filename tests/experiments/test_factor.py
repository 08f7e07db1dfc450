"""One factor at a time: what is refused, with both values and the setting that helps; what ``pin`` holds."""

from __future__ import annotations

import re

import pytest

from replay_engine.config import ConfigError
from replay_engine.policy import build_policy
from replay_engine.profile import load_profile
from tracekit.errors import UsageError
from tracekit.experiments.factor import parse_vary, resolve_factor
from tracekit.experiments.knobs import differing, flat_policy, knob_text


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("max_num_seqs=64,128, 256", "max_num_seqs", ["64", "128", "256"]),
        ("scheduler.max_num_seqs=1,2", "max_num_seqs", ["1", "2"]),
        ("router=round_robin,weighted(1,2)", "router", ["round_robin", "weighted(1,2)"]),
        ("order.reserved='priority=0 seqs=8, priority=1 seqs=2',none", "order.reserved",
         ["priority=0 seqs=8, priority=1 seqs=2", "none"]),
    ],
)  # fmt: skip
def test_levels_are_split_at_commas_outside_brackets(text: str, name: str, values: list[str]) -> None:
    assert parse_vary(text) == (name, values)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("max_num_seqs", "expected KNOB=VALUE"),
        ("=1,2", "expected KNOB=VALUE"),
        ("max_num_seqs=8", "1 level"),
        ("max_num_seqs=8,9,8", "8 stands there twice"),
        ("max_num_seqs=8,008", "lead to the same configuration"),
        ("slo.ttft=1s,2s", "the SLO says what is good"),
        ("pd=1,2", "expected P:D"),
        ("max_num_seq=1,2", "did you mean max_num_seqs"),
        ("batching.mode=continuous,warp", "expected one of continuous, dynamic, static"),
    ],
)
def test_what_is_no_factor_is_refused_in_one_line(text: str, reason: str) -> None:
    with pytest.raises((UsageError, ConfigError), match=re.escape(reason)) as caught:
        resolve_factor(text)
    assert "\n" not in str(caught.value)


def test_the_factor_is_not_set_as_well() -> None:
    with pytest.raises(UsageError, match="--set gives max_num_seqs too"):
        resolve_factor("max_num_seqs=8,9", sets=["scheduler.max_num_seqs=4"])


SECOND_KNOBS = [
    ("max_num_batched_tokens=8192,512", "max_num_seqs", "1024", "512"),
    ("enable_chunked_prefill=true,false", "max_num_batched_tokens", "8192", "131072"),
    ("batching.mode=continuous,static", "async_scheduling", "true", "false"),
    ("profile=h100,a100", "max_num_batched_tokens", "8192", "2048"),
]


@pytest.mark.parametrize(("vary", "second", "one", "other"), SECOND_KNOBS)
def test_a_factor_that_moves_a_second_knob_is_refused_with_what_pins_it(vary: str, second: str, one: str, other: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_factor(vary)
    text = str(caught.value)
    assert f"{second} moves too, {one} at " in text and f" and {other} at " in text
    cures = re.findall(r"--set (\S+?)(?=[ ,])", text)
    pinned = resolve_factor(vary, sets=cures)
    assert pinned.pinned == ()
    by_flag = resolve_factor(vary, pin=True)
    assert list(by_flag.pinned) == cures
    assert [level.policy.scheduler for level in by_flag.levels] == [level.policy.scheduler for level in pinned.levels]


@pytest.mark.parametrize(
    "vary", [each[0] for each in SECOND_KNOBS] + ["max_num_seqs=64,1024", "watermark=0,0.01", "order.by=fcfs,fair"]
)
def test_only_the_factor_differs_between_levels(vary: str) -> None:
    factor = resolve_factor(vary, pin=True)
    flats = [flat_policy(level.policy.to_dict()) for level in factor.levels]
    for flat in flats[1:]:
        assert differing(flats[0], flat) == ([] if factor.name == "profile" else [factor.name])


@pytest.mark.parametrize("vary", ["pd=1:1,2:2", "pd=0:0,1:2,1:1", "pd.decode=1,2", "kv_link.gb_per_s=10,50"])
def test_pools_are_one_factor(vary: str) -> None:
    sets = [] if vary.startswith("pd=") else ["pd.prefill=1", *(["pd.decode=1"] if "kv_link" in vary else [])]
    factor = resolve_factor(vary, sets=sets)
    pairs = [(level.policy.rules.pd.prefill, level.policy.rules.pd.decode) for level in factor.levels]
    assert len(set(pairs)) == (1 if "kv_link" in vary else len(factor.levels))


def test_a_knob_of_all_engines_is_one_factor_in_the_pools_too() -> None:
    factor = resolve_factor("max_num_seqs=64,128", sets=["pd.prefill=1", "pd.decode=1"])
    assert [level.policy.engines["decode"].max_num_seqs for level in factor.levels] == [64, 128]


def test_memory_share_is_a_factor_by_the_blocks_it_leaves() -> None:
    factor = resolve_factor("gpu_memory_utilization=0.9,0.5")
    blocks = [level.policy.scheduler.num_gpu_blocks for level in factor.levels]
    assert blocks[0] > blocks[1]


def test_knobs_are_written_as_they_are_set() -> None:
    profile = load_profile("h100")
    sets = ["order.by=priority", "order.reserved=priority=0 seqs=8;priority=1 seqs=2 blocks=4", "client.max_in_flight=none",
            "front_door.quotas.acme.quota_concurrent=3", "async_scheduling=false"]  # fmt: skip
    flat = flat_policy(build_policy(profile, None, sets).to_dict())
    names = ["order.by", "order.reserved", "client.max_in_flight", "front_door.quotas.acme.quota_concurrent", "async_scheduling",
             "watermark", "max_num_batched_tokens"]  # fmt: skip
    again = build_policy(profile, None, [f"{name}={knob_text(flat[name])}" for name in names])
    assert flat_policy(again.to_dict()) == flat
