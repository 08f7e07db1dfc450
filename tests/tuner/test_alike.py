"""What a replay proves of configurations that were not replayed: they give the same bytes, and few that do are missed."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from replay_engine.config import ConfigError, SchedulerConfig
from replay_engine.loop import Replay
from replay_engine.policy import apply_set, build_policy
from replay_engine.profile import Latency, load_profile
from replay_engine.simulator import SimExecutor
from replay_engine.sinks import MemorySink
from tests.engine.traffic import Row, RowSource, latencies, schedulers, traffic
from tuner.alike import KNOBS, HighWater, Traffic, alike, limits_of, rest_of

__all__: list[str] = []

DECIDED = ("iteration", "start_ns", "duration_ns", "prefill_tokens", "decode_seqs", "running", "kv_used")


def replayed(rows: list[Row], config: SchedulerConfig, latency: Latency) -> tuple[Replay, MemorySink, HighWater]:
    sink = MemorySink()
    high = HighWater(sink)
    run = Replay(RowSource(rows), config, SimExecutor(latency, asynchronous=config.async_scheduling), high)
    run.run()
    return run, sink, high


def facts(rows: list[Row]) -> Traffic:
    return Traffic(prompt=max(r.prompt for r in rows), tokens=max(r.prompt + r.output for r in rows),
                   shares=any(r.shared for r in rows))  # fmt: skip


@st.composite
def near(draw: st.DrawFn, marks: dict[str, Any], config: SchedulerConfig) -> SchedulerConfig:
    """The same with limits around the marks of its replay."""
    step = st.integers(-1, 2)
    seqs = max(marks["running"] + draw(step), 1)
    budget = max(marks["tokens"] + draw(st.integers(-1, 40)), seqs, 1)
    cap = draw(st.sampled_from([0, 0, max(marks["chunk"] + draw(step), 1)]))
    blocks = max(marks["blocks"], marks["kept"]) + draw(step) + draw(st.sampled_from([0, 1, 30]))
    moved: dict[str, Any] = dict(zip(KNOBS, (budget, seqs, cap, blocks), strict=True))
    kept = draw(st.sets(st.sampled_from(KNOBS), max_size=3))
    return replace(config, **{name: value for name, value in moved.items() if name not in kept})


def test_what_is_proved_alike_replays_to_the_same_outcomes() -> None:
    """And each limit is moved and proved not to matter, often enough: it would say little where hardly anything is proved."""
    seen: Counter[str] = Counter()

    @settings(max_examples=400, deadline=None)
    @given(rows=traffic(cancels=True), config=schedulers(), latency=latencies, data=st.data())
    def check(rows: list[Row], config: SchedulerConfig, latency: Latency, data: st.DataObject) -> None:
        seen.update(_moved_and_proved(rows, config, latency, data))

    check()
    if not os.environ.get("TRACEKIT_EXPLORE"):  # other examples draw less evenly
        assert min(seen[knob] for knob in KNOBS) >= 10 and seen["not proved"] >= 20, seen


def _moved_and_proved(rows: list[Row], config: SchedulerConfig, latency: Latency, data: st.DataObject) -> list[str]:
    """Replays, and once more where a configuration near it is proved alike; the limits in which that one differs."""
    config = replace(config, enable_chunked_prefill=True)
    if data.draw(st.integers(0, 3)):
        cap = data.draw(st.sampled_from([0, config.long_prefill_token_threshold, 100]))
        config = replace(config, max_num_batched_tokens=data.draw(st.sampled_from([90, 1000])), max_num_seqs=50,
                         long_prefill_token_threshold=cap, num_gpu_blocks=config.num_gpu_blocks + 2000)  # fmt: skip
    run, sink, high = replayed(rows, config, latency)
    marks = high.marks(run.totals, config, facts(rows))
    try:
        other = data.draw(near(marks, config))
    except ConfigError:
        assume(False)
    assert limits_of(other) == tuple(getattr(other, knob) for knob in KNOBS)
    if other == config or not alike(marks, limits_of(config), limits_of(other), config.watermark):
        return ["not proved"]
    _, its, _ = replayed(rows, other, latency)
    assert sink.table("outcomes").tobytes() == its.table("outcomes").tobytes()
    ours, theirs = sink.table("iterations"), its.table("iterations")
    for name in DECIDED:
        assert ours[name].tobytes() == theirs[name].tobytes(), name
    return [knob for knob in KNOBS if getattr(other, knob) != getattr(config, knob)]


def test_a_limit_must_lie_above_its_mark() -> None:
    marks = {"tokens": 100, "chunk": 50, "running": 8, "blocks": 40, "kept": 60, "evicted": False, "sound": True}
    one = (200, 16, 0, 100)
    assert alike(marks, one, (101, 9, 51, 61), 0.0)
    for other in ((100, 16, 0, 100), (200, 8, 0, 100), (200, 16, 50, 100), (200, 16, 0, 60)):
        assert not alike(marks, one, other, 0.0) and not alike(marks, other, one, 0.0), other
    assert not alike({**marks, "sound": False}, one, (201, 16, 0, 100), 0.0)
    assert not alike({**marks, "evicted": True}, one, (200, 16, 0, 101), 0.0)
    assert alike({**marks, "evicted": True}, one, (201, 16, 0, 100), 0.0)
    assert alike({**marks, "kept": 0}, one, (200, 16, 0, 41), 0.0) and not alike({**marks, "kept": 0}, one, (200, 16, 0, 40), 0.0)
    assert not alike({**marks, "kept": 0}, one, (200, 16, 0, 50), 0.2)


def test_a_rule_that_looks_at_a_limit_in_another_way_proves_nothing() -> None:
    profile = load_profile("h100")
    policy = build_policy(profile)
    same = rest_of(apply_set(policy, ["max_num_batched_tokens=2048", "max_num_seqs=64"], profile))
    assert same is not None and same == rest_of(policy)
    for change in (
        "enable_chunked_prefill=false", "long_prefill_token_threshold_adaptive=true", "max_num_active_seqs=8",
        "batching.decode_reserve=64", "front_door.reject_above_kv=0.9", "fleet.replicas=2", "preemption.to_admit=true",
    ):  # fmt: skip
        needs = {"enable_chunked": "max_num_batched_tokens=131072", "preemption.to_": "order.by=priority"}
        sets = [change, *(need for start, need in needs.items() if change.startswith(start))]
        assert rest_of(apply_set(policy, sets, profile)) is None, change
    assert rest_of(apply_set(policy, ["block_size=32"], profile)) != same
