"""Changes as other engines' flags: what we print, our own readers of those command lines read back; the rest is refused aloud."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from replay_engine.config import SchedulerConfig
from replay_engine.policy import load_policy
from replay_engine.profile import load_profile
from replay_engine.rule_tables import RULE_KNOBS
from replay_engine.sglang_flags import split_sglang
from replay_engine.vllm_flags import SIZING, split_command
from tracekit.diagnosis.finding import Change
from tracekit.errors import UsageError
from tracekit.flag_rows import ENGINES, ROWS
from tracekit.flags import flags_for

PROFILE = load_profile("h100")
VALUES: dict[str, Any] = {
    "max_num_batched_tokens": 4096, "max_num_scheduled_tokens": 2048, "max_num_seqs": 64, "max_num_active_seqs": 32,
    "max_model_len": 16384, "num_gpu_blocks": 9001, "block_size": 32, "policy": "priority", "enable_chunked_prefill": False,
    "enable_prefix_caching": False, "long_prefill_token_threshold": 1024, "long_prefill_token_threshold_adaptive": True,
    "scheduler_reserve_full_isl": False, "watermark": 0.05, "prefill_schedule_interval": 3, "async_scheduling": False,
    "gpu_memory_utilization": 0.8, "kv_cache_memory_bytes": 10**10,
}  # fmt: skip


def text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize("knob", [*(each.name for each in fields(SchedulerConfig) if each.name != "engine_version"), *SIZING])
def test_vllm_reads_what_we_print(knob: str) -> None:
    (flag,) = flags_for([f"{knob}={text(VALUES[knob])}"]).vllm
    assert split_command(f"vllm serve model {flag}").settings == {knob: VALUES[knob]}
    assert flags_for([f"scheduler.{knob}={text(VALUES[knob])}"]).vllm == (flag,)


@pytest.mark.parametrize(
    ("change", "where", "value"),
    [
        ("max_num_batched_tokens=4096", ("settings", "max_num_batched_tokens"), 4096),
        ("max_num_seqs=64", ("settings", "max_num_seqs"), 64),
        ("num_gpu_blocks=9001", ("settings", "num_gpu_blocks"), 9001),
        ("block_size=32", ("settings", "block_size"), 32),
        ("max_model_len=16384", ("settings", "max_model_len"), 16384),
        ("enable_prefix_caching=false", ("settings", "enable_prefix_caching"), False),
        ("enable_chunked_prefill=false", ("settings", "enable_chunked_prefill"), False),
        ("async_scheduling=false", ("settings", "async_scheduling"), False),
        ("batching.step=decode_first", ("batching", "step"), "decode_first"),
        ("batching.output_reserve_ratio=0.35", ("batching", "output_reserve_ratio"), 0.35),
        ("batching.output_reserve=none", ("batching", "output_reserve_ratio"), 0.0),
        ("order.by=priority", ("order", "by"), "priority"),
        ("policy=priority", ("order", "larger_first"), False),
        ("order.by=shortest_first", ("order", "by"), "shortest_first"),
        ("preemption.to_admit=true", ("preemption", "to_admit"), True),
        ("front_door.max_queued_reqs=50", ("front_door", "max_queued_reqs"), 50),
    ],
)
def test_sglang_reads_what_we_print(change: str, where: tuple[str, str], value: Any) -> None:
    flags = " ".join(flags_for([change], block_size=16).sglang)
    read = split_sglang(f"sglang --model-path m {flags}", PROFILE)
    tables = {"settings": read.settings, **read.rules}
    assert tables[where[0]][where[1]] == pytest.approx(value) if isinstance(value, float) else value == tables[where[0]][where[1]]
    assert not [note for note in read.notes if "ignored" in note]


def test_queue_bounds_and_policies_round_trip() -> None:
    found = flags_for(["front_door.max_queued_reqs=50", "front_door.max_queued_tokens=90000", "order.by=priority"])
    read = load_policy(f"vllm serve m {' '.join(found.vllm)}", PROFILE)
    assert (read.rules.front_door.max_queued_reqs, read.rules.front_door.max_queued_tokens) == (50, 90000)
    assert read.scheduler.policy == "priority"


def test_every_knob_has_a_flag_or_a_reason_everywhere() -> None:
    names = [*VALUES, *(f"{table}.{knob}" for table, knobs in RULE_KNOBS.items() for knob in knobs)]
    for name in names:
        value = text(VALUES.get(name, "true"))
        found = flags_for([f"{name}={value}"]) if "_ratio" not in name else flags_for([f"{name}=0.5"])
        for engine in ENGINES:
            assert bool(getattr(found, engine)) != bool(found.why_not(engine)), (name, engine)
            assert all(each.reason and each.knob == name for each in found.why_not(engine))
    known = {*VALUES, "engine_version", *names}
    assert {row.knob for row in ROWS} <= known
    assert all(row.flag or row.why for row in ROWS)


def test_what_a_version_ignores_or_lacks_is_refused_with_the_reason() -> None:
    for version in ("0.24.0", "0.33.0"):
        found = flags_for(["batching.max_partial_prefills=2"], version)
        assert not found.vllm and "ignores it" in found.why_not("vllm")[0].reason
    assert not flags_for(["watermark=0.05"], "0.20.0").vllm
    assert flags_for(["watermark=0.05"], "0.24.0").vllm == ("--watermark 0.05",)
    late = flags_for(["max_num_active_seqs=8", "max_num_seqs=8"], "0.30.0")
    assert late.vllm == ("--max-num-seqs 8",)
    assert late.why_not("vllm")[0].reason == "vLLM 0.30.0 does not have it; 0.33.0 does"
    seats = flags_for(["preemption.to_admit=true"])
    assert not seats.vllm and seats.sglang == ("--enable-priority-scheduling",)


def test_only_what_changes_is_set_and_each_thing_once() -> None:
    change = Change(knob="seats", old="1", new="4", sets=("max_num_seqs=2", "max_num_seqs=4"), why="")
    twice = Change(knob="order", old="fcfs", new="priority", sets=("order.by=priority", "preemption.to_admit=true"), why="")
    found = flags_for([change, twice])
    assert found.to_dict() == {
        "vllm": ["--max-num-seqs 4", "--scheduling-policy priority"],
        "sglang": [
            "--max-running-requests 4", "--enable-priority-scheduling --schedule-low-priority-values-first",
            "--enable-priority-scheduling",
        ],
        "tensorrt_llm": ["max_batch_size: 4"],
    }  # fmt: skip
    assert flags_for(["fleet.router=prefix_affinity", "client.max_in_flight=300"]).to_dict() == {engine: [] for engine in ENGINES}
    assert flags_for([]).to_dict() == {engine: [] for engine in ENGINES}


@pytest.mark.parametrize(("sets", "version"), [(["max_num_seqs"], "0.33.0"), (["watermark=0.1"], "latest")])
def test_nonsense_is_one_line(sets: list[str], version: str) -> None:
    with pytest.raises(UsageError, match="expected"):
        flags_for(sets, version)
