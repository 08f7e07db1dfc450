"""The table of combinations: every refused row is refused with its reason, every allowed row runs, the page says the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from replay_engine.combinations import TABLE, Combination, check
from replay_engine.config import ConfigError, SchedulerConfig
from replay_engine.fleet.pd_driver import PdReplay
from replay_engine.loop import Replay
from replay_engine.policy import build_policy
from replay_engine.policy_docs import policies_page
from replay_engine.profile import Latency, Profile
from replay_engine.rules import Batching, Order, Rules, Tier
from replay_engine.simulator import SimExecutor
from replay_engine.sinks import MemorySink
from replay_engine.types import RequestBatch, RequestState

PLANTED = Profile(name="planted", latency=Latency(a_ns=1e6, b_ns=2e4, d_ns=1e4), synthetic=True)
ROOM = ("num_gpu_blocks=400", "max_model_len=4096")


class Mixed:
    """A burst of requests of three tenants, two priorities, some with a deadline and a prediction."""

    total = 40

    def batches(self) -> Iterator[RequestBatch]:
        rng = np.random.default_rng(7)
        n = self.total
        arrival = np.sort(rng.integers(0, 2_000_000_000, n))
        output = rng.integers(1, 120, n)
        yield RequestBatch(
            index=np.arange(n),
            arrival_ns=arrival,
            prompt_tokens=rng.integers(1, 1500, n),
            output_tokens=output,
            priority=rng.integers(0, 2, n),
            max_tokens=output + rng.integers(0, 50, n),
            tenant=rng.integers(0, 3, n).astype(np.int32),
            deadline_ns=np.where(rng.random(n) < 0.5, arrival + 3_000_000_000, -1),
            predicted_tokens=output + rng.integers(0, 20, n),
        )


def label(row: Combination) -> str:
    return f"{row.first} with {row.second}"


@pytest.mark.parametrize("row", [row for row in TABLE if row.refused is not None], ids=label)
def test_a_refused_row_is_refused_with_its_reason(row: Combination) -> None:
    with pytest.raises(ConfigError) as caught:
        build_policy(PLANTED, sets=row.example)
    message = str(caught.value)
    assert f": {row.reason}; expected {row.expected}" in message
    assert message.startswith(row.first.split(" ")[0])
    assert "\n" not in message


@pytest.mark.parametrize("row", [row for row in TABLE if row.refused is None], ids=label)
def test_an_allowed_row_runs_and_loses_nobody(row: Combination) -> None:
    policy = build_policy(PLANTED, sets=(*ROOM, *row.example))
    sink = MemorySink()
    config = policy.scheduler
    executor = SimExecutor(PLANTED.latency, asynchronous=config.async_scheduling)
    if policy.rules.pd.prefill:
        configs = [policy.engines["prefill"]] * policy.rules.pd.prefill + [policy.engines["decode"]] * policy.rules.pd.decode
        executors = [SimExecutor(PLANTED.latency, asynchronous=each.async_scheduling) for each in configs]
        state = PdReplay(Mixed(), policy.engines, executors, sink, rules=policy.rules).run()
    else:
        state = Replay(Mixed(), config, executor, sink, rules=policy.rules).run()
    ended = sink.table("outcomes")
    assert state == "finished"
    assert sorted(ended["request"].tolist()) == list(range(Mixed.total))
    allowed = {RequestState.finished} | ({RequestState.rejected, RequestState.timed_out} if "front_door" in label(row) else set())
    assert set(ended["state"].tolist()) <= allowed


def test_the_default_rules_pass_with_any_scheduler() -> None:
    for config in (SchedulerConfig(), SchedulerConfig(policy="priority"), SchedulerConfig(engine_version="0.20.0")):
        check(config, Rules())
    check(SchedulerConfig(async_scheduling=False, prefill_schedule_interval=4, enable_chunked_prefill=True), Rules())


def test_a_tier_leaves_room_for_the_others() -> None:
    config = SchedulerConfig(max_num_seqs=8, policy="priority")
    check(config, Rules(order=Order(reserved=(Tier(priority=0, seqs=7, blocks=100),))))
    with pytest.raises(ConfigError, match=r"order\.reserved\.seqs = 8 with max_num_seqs = 8: .*expected fewer than 8"):
        check(config, Rules(order=Order(reserved=(Tier(priority=0, seqs=8),))))
    with pytest.raises(ConfigError, match=r"order\.reserved\.blocks = 16383 with num_gpu_blocks = 16384"):
        check(config, Rules(order=Order(reserved=(Tier(priority=3, blocks=16383),))))


def test_what_a_rule_leaves_one_value_for_is_implied_and_said() -> None:
    static = build_policy(PLANTED, sets=["batching.mode=static", "batching.kv_allocation=contiguous"])
    assert not static.scheduler.async_scheduling
    assert not static.scheduler.enable_prefix_caching
    assert any(note.startswith("async_scheduling = false: batching.mode = static") for note in static.notes)
    assert build_policy(PLANTED, sets=["batching.mode=continuous"]).scheduler.async_scheduling


@pytest.mark.parametrize(
    ("sets", "remark"),
    [
        (["batching.size=4"], "batching.size has no effect: batching.mode = continuous"),
        (["order.aging_s=3"], "order.aging_s has no effect: first come, first served"),
        (["order.by=deadline"], "requests without a deadline in the trace come last"),
        (["order.by=shortest_first", "order.size=predicted"], "order.size = predicted: it needs the trace's column"),
        (["client.arrival=slot"], "client.arrival has no effect: no max_in_flight"),
    ],
)
def test_what_has_no_effect_is_said(sets: list[str], remark: str) -> None:
    assert any(remark in note for note in build_policy(PLANTED, sets=sets).notes)


def test_an_error_of_two_settings_names_the_files_line(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text('[scheduler]\nasync_scheduling = true\n\n[batching]\nmode = "static"\n')
    with pytest.raises(ConfigError, match=r"p\.toml, line 5: batching\.mode = static with async_scheduling = true: a batch runs"):
        build_policy(PLANTED, path)
    assert build_policy(PLANTED, path, ["async_scheduling=false"]).rules.batching == Batching(mode="static")


def test_the_page_in_docs_is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "policies.md"
    assert page.read_text(encoding="utf-8") == policies_page()
