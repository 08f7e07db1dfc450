"""Policies: defaults by hardware, TOML, vLLM's command line, set pairs; every refusal one line."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay_engine.config import ConfigError, SchedulerConfig
from replay_engine.policy import (
    Policy,
    apply_set,
    as_vllm_flags,
    build_policy,
    default_policy,
    load_policy,
    parse_vllm_command,
)
from replay_engine.profile import Latency, Profile, load_profile

H100 = load_profile("h100")
PLANTED = Profile(name="planted", latency=Latency(b_ns=1.0), synthetic=True)


@pytest.mark.parametrize(
    ("gpu", "tokens", "seqs"),
    [("h100", 8192, 1024), ("h200", 8192, 1024), ("b200", 16384, 1024), ("a100", 2048, 256), ("l40s", 2048, 256)],
)
def test_defaults_are_vllms_by_hardware(gpu: str, tokens: int, seqs: int) -> None:
    policy = default_policy(load_profile(gpu))
    scheduler = policy.scheduler
    assert (scheduler.max_num_batched_tokens, scheduler.max_num_seqs) == (tokens, seqs)
    assert scheduler.max_model_len == 131072
    assert scheduler.enable_prefix_caching
    assert scheduler.async_scheduling
    assert policy.estimated == ("num_gpu_blocks",)
    assert "an estimate from 0.92" in policy.notes[0]


def test_blocks_are_what_the_memory_leaves() -> None:
    assert H100.model is not None
    assert H100.hardware is not None
    blocks = default_policy(H100).scheduler.num_gpu_blocks
    free = 0.92 * H100.hardware.memory_bytes - H100.model.weight_bytes
    used = blocks * 16 * H100.model.kv_bytes_per_token
    assert 0.5 * 2**30 < free - used < 3 * 2**30
    less = apply_set(default_policy(H100), ["gpu_memory_utilization=0.5"], H100).scheduler.num_gpu_blocks
    assert blocks - less == pytest.approx(0.42 * H100.hardware.memory_bytes / (16 * 131072), abs=2)
    exact = apply_set(default_policy(H100), ["kv_cache_memory_bytes=8G"], H100).scheduler.num_gpu_blocks
    assert exact == 8 * 2**30 // (16 * 131072)
    assert apply_set(default_policy(H100), ["block_size=32"], H100).scheduler.num_gpu_blocks == blocks // 2


def test_what_is_not_given_follows_what_is() -> None:
    few = build_policy(H100, sets=["max_num_batched_tokens=512"]).scheduler
    assert few.max_num_seqs == 512
    whole = build_policy(H100, sets=["enable_chunked_prefill=false"]).scheduler
    assert whole.max_num_batched_tokens == whole.max_model_len == 131072
    small = build_policy(H100, sets=["num_gpu_blocks=65"])
    assert small.scheduler.max_model_len == 1024
    assert any("max_model_len = 1024" in note for note in small.notes)
    tiny = build_policy(H100, sets=["max_num_seqs=2", "max_model_len=100"]).scheduler
    assert tiny.max_num_batched_tokens == 200
    again = apply_set(build_policy(H100, sets=["max_num_batched_tokens=512"]), ["max_num_batched_tokens=4096"], H100)
    assert again.scheduler.max_num_seqs == 1024


def test_a_profile_without_facts_has_defaults_too() -> None:
    policy = default_policy(PLANTED)
    assert policy.scheduler.num_gpu_blocks == 16384
    assert "placeholder" in policy.notes[0]


def test_vllm_command_line() -> None:
    policy = load_policy(
        "CUDA_VISIBLE_DEVICES=0 vllm serve meta-llama/Llama-3.1-8B-Instruct --trust-remote-code --max-num-seqs 128 \\\n"
        "  --max_num_batched_tokens=8K --no-enable-prefix-caching --scheduling-policy priority --max-model-len 32k"
        " --async-scheduling --gpu-memory-utilization 0.9 --watermark=0.01 --dtype bfloat16 -tp 2 --num-gpu-blocks-override 4000",
        H100,
    )
    assert policy.settings == {
        "max_num_seqs": 128,
        "max_num_batched_tokens": 8192,
        "enable_prefix_caching": False,
        "policy": "priority",
        "max_model_len": 32000,
        "async_scheduling": True,
        "gpu_memory_utilization": 0.9,
        "watermark": 0.01,
        "num_gpu_blocks": 4000,
    }
    assert policy.estimated == ()
    assert "gpu_memory_utilization is not used: num_gpu_blocks is given" in policy.notes
    assert [note.split(" ")[0] for note in policy.notes if "ignored" in note] == ["--trust-remote-code", "--dtype"]
    assert any("tensor parallel 2" in note for note in policy.notes)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("vllm serve m --max-num-seqs many", r"--max-num-seqs: max_num_seqs = many: expected a whole number"),
        ("vllm serve m --max-num-seqs", r"--max-num-seqs: no value"),
        ("vllm serve m --max-num-batched-tokens 1.5K", r"expected a whole number"),
        ("vllm serve m --watermark=wet", r"--watermark: watermark = wet: expected a number"),
        ("vllm serve m --scheduling-policy lifo", r"policy = 'lifo': not a queue order"),
        ("vllm serve 'm", r"expected balanced quotes"),
        ("vllm serve m --max-num-seqs 0", r"max_num_seqs = 0: expected at least 1"),
    ],
)
def test_wrong_flag_values_are_refused(command: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        parse_vllm_command(command, H100)
    assert "\n" not in str(caught.value)


def test_a_misspelt_flag_gets_a_hint() -> None:
    policy = parse_vllm_command("python -m vllm.entrypoints.openai.api_server --model llama-3.1-8b --max-num-seq 3", H100)
    assert "--max-num-seq: did you mean --max-num-seqs?" in policy.notes
    assert policy.settings == {}


@pytest.mark.parametrize(("word", "value"), [("8k", 8000), ("8K", 8192), ("1.5k", 1500), ("16K", 16384), ("4096", 4096)])
def test_numbers_read_as_vllm_reads_them(word: str, value: int) -> None:
    assert build_policy(H100, f"vllm serve m --max-num-batched-tokens {word}").scheduler.max_num_batched_tokens == value


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        ("max_num_seq=3", r"max_num_seq: unknown knob; did you mean max_num_seqs"),
        ("scheduler.budget=3", r"budget: unknown knob"),
        ("fleet.router=best", r"fleet.router = best: unknown; expected one of round_robin"),
        ("front_door.max_queued=4", r"front_door\.max_queued: unknown knob; did you mean max_queued_reqs"),
        ("order.by=lifo", r"order\.by = 'lifo': expected one of engine, fcfs, .*or plugin:NAME"),
        ("batching.mode=plugin:mine", r"batching\.mode = 'plugin:mine': expected one of continuous, dynamic, static$"),
        ("aging_s=3", r"aging_s: unknown knob; did you mean order\.aging_s"),
        ("batching.window_s=soon", r"batching\.window_s = soon: expected seconds, or a time like 50ms"),
        ("batching.interleave=2", r"expected n:m, two whole numbers"),
        ("batching.chunk_align=1.5", r"batching\.chunk_align = 1\.5: expected a whole number"),
        ("order.reserved=gold", r"expected tiers like priority=0 seqs=8"),
        ("front_door.quotas.acme.rate=4", r"front_door\.quotas\.acme\.rate: unknown knob"),
        ("front_door.quotas=4", r"expected one knob of one tenant"),
        ("front_door.degrade_above_kv=1.5", r"expected a share, 0 to 1"),
        ("sceduler.max_num_seqs=3", r"unknown table; did you mean scheduler"),
        ("max_num_seqs", r"expected knob=value"),
        ("max_num_seqs=3.5", r"max_num_seqs = 3\.5: expected a whole number"),
        ("enable_chunked_prefill=maybe", r"expected true or false"),
        ("max_num_seqs=100000", r"expected at least max_num_seqs = 100000"),
        ("max_model_len=1m", r"one request of max_model_len = 1000000 tokens must fit"),
        ("gpu_memory_utilization=1.2", r"gpu_memory_utilization = 1\.2: expected a share"),
        ("gpu_memory_utilization=0.2", r"expected more memory"),
        ("engine_version=9", r"engine_version = 9: expected a release of vLLM"),
    ],
)
def test_wrong_set_pairs_are_refused(pair: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        build_policy(H100, sets=[pair])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[scheduler]\n\nmax_num_seq = 3\n", r"p\.toml, line 3: max_num_seq: unknown knob; did you mean max_num_seqs"),
        ("[scheduler]\nmax_num_seqs = 0\n", r"p\.toml, line 2: max_num_seqs = 0: expected at least 1"),
        ("[scheduler]\nmax_num_seqs = 2.5\n", r"p\.toml, line 2: max_num_seqs = 2\.5: expected a whole number"),
        ("[scheduler]\nmax_num_seqs = true\n", r"expected a whole number"),
        ("\n[fleet]\nreplicas = 0\n", r"p\.toml, line 3: fleet.replicas = 0: expected a number of at least 1"),
        ("max_num_seqs = 3\n", r"did you mean \[scheduler\] max_num_seqs"),
        ("slo = 3\n", r"slo = 3: expected a table \[slo\]"),
        ("[scheduler\n", r"p\.toml, line 1, column \d+: not TOML"),
    ],
)
def test_wrong_files_are_refused_with_the_line(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "p.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=reason) as caught:
        load_policy(path, H100)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r'policy nope\.toml: No such file.*expected a TOML file or "vllm serve'):
        load_policy("nope.toml", H100)


def test_files_set_pairs_and_slo(tmp_path: Path) -> None:
    path = tmp_path / "tight.toml"
    path.write_text('[scheduler]\nmax_num_seqs = 64\n[slo]\nttft = "500ms"\n[slo.tenant.acme]\ntpot = "40ms"\n')
    policy = build_policy(H100, str(path), ["slo.tenant.acme.tpot=30ms", "slo.e2e=9s", "watermark=0.02"])
    assert policy.name == "tight"
    assert policy.scheduler.max_num_seqs == 64
    assert policy.scheduler.watermark == 0.02
    assert policy.slo == {"ttft": "500ms", "e2e": "9s", "tenant": {"acme": {"tpot": "30ms"}}}


def test_flags_name_only_what_changed() -> None:
    default = default_policy(H100)
    changed = build_policy(H100, sets=["max_num_seqs=128", "enable_prefix_caching=false", "policy=priority"])
    assert as_vllm_flags(changed, default) == "--max-num-seqs 128 --scheduling-policy priority --no-enable-prefix-caching"
    assert as_vllm_flags(default, default) == ""
    back = parse_vllm_command(f"vllm serve m {as_vllm_flags(changed)}", H100)
    assert back.scheduler == changed.scheduler


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "max_num_batched_tokens": st.integers(1024, 65536),
            "max_num_seqs": st.integers(1, 1024),
            "block_size": st.sampled_from([8, 16, 32]),
            "num_gpu_blocks": st.integers(70000, 90000),
            "policy": st.sampled_from(["fcfs", "priority"]),
            "enable_prefix_caching": st.booleans(),
            "watermark": st.floats(0, 0.5),
            "long_prefill_token_threshold": st.integers(0, 4096),
            "max_num_active_seqs": st.none() | st.integers(1, 64),
        },
    )
)
def test_every_form_reads_back_as_itself(settings: dict[str, object]) -> None:
    policy = build_policy(H100, sets=[f"{knob}={value}" for knob, value in settings.items()])
    assert Policy.from_dict(json.loads(json.dumps(policy.to_dict()))) == policy
    assert load_policy(policy.to_toml(), H100).scheduler == policy.scheduler
    for each in fields(SchedulerConfig):
        if each.name in settings:
            assert getattr(policy.scheduler, each.name) == settings[each.name]
