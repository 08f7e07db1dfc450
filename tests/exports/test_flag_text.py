"""Flags to paste: what is exported and read back by our own readers of command lines is the policy that was exported."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replay_engine.config import ConfigError
from replay_engine.policy import Policy, build_policy, default_policy, parse_vllm_command
from replay_engine.profile import load_profile
from replay_engine.sglang_flags import split_sglang
from tests.exports.conftest import Runs
from tracekit.cli.main import main
from tracekit.errors import UsageError
from tracekit.exports.command_diff import command_diff
from tracekit.exports.export import export
from tracekit.exports.flag_text import FLAG_FORMATS, flag_text
from tracekit.exports.wanted import fewest_settings, wanted_by_run, wanted_by_tuner
from tracekit.policy_source import policy_from

H100 = load_profile("h100")
VLLM = [each for each, engine in FLAG_FORMATS.items() if engine == "vllm"]
SETS: dict[str, list[str]] = {
    "max_num_batched_tokens": ["2048", "4096", "8192", "16384"], "max_num_seqs": ["16", "128", "256", "1024"],
    "max_model_len": ["16384", "131072"], "num_gpu_blocks": ["9001", "28718"], "block_size": ["16", "32"],
    "policy": ["priority", "fcfs"], "enable_prefix_caching": ["false", "true"], "long_prefill_token_threshold": ["0", "512"],
    "scheduler_reserve_full_isl": ["false", "true"], "watermark": ["0.0", "0.05"], "prefill_schedule_interval": ["1", "3"],
    "async_scheduling": ["false", "true"], "gpu_memory_utilization": ["0.8", "0.92"], "max_num_active_seqs": ["none", "12"],
    "front_door.max_queued_reqs": ["50", "200"],
}  # fmt: skip


QUIET = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def row_of(policy: Policy) -> dict[str, Any]:
    """A ``runs`` row with what an export of flags reads."""
    return {"run": 7, "trace_name": "monday", "policy": policy.to_dict(), "setup": {"profile": H100.to_toml()}}


def policy_or_none(sets: dict[str, str]) -> Policy | None:
    try:
        return build_policy(H100, None, [f"{knob}={value}" for knob, value in sets.items()])
    except ConfigError:
        return None


POLICIES = (
    st.lists(st.sampled_from(sorted(SETS)), unique=True, max_size=6)
    .flatmap(lambda knobs: st.fixed_dictionaries({knob: st.sampled_from(SETS[knob]) for knob in knobs}))
    .map(policy_or_none)
    .filter(lambda policy: policy is not None)
)


def read_back(kind: str, text: str, folder: Path) -> Policy:
    path = folder / "back.yaml"
    match kind:
        case "vllm-args":
            flags = " ".join(line for line in text.splitlines() if not line.startswith("#"))
            return policy_from(H100, f"vllm serve model {flags}")
        case "env":
            (line,) = [line for line in text.splitlines() if not line.startswith("#")]
            ((variable, flags),) = [word.split("=", 1) for word in shlex.split(line)]
            assert variable == "VLLM_ARGS"
            return policy_from(H100, f"vllm serve model {flags}")
        case _:
            path.write_text(text if text.strip() and yaml.safe_load(text) else text + "port: 8000\n")
            return policy_from(H100, str(path))


def same(one: Policy, other: Policy) -> bool:
    doors = [(each.rules.front_door.max_queued_reqs, each.rules.front_door.max_queued_tokens) for each in (one, other)]
    return one.scheduler == other.scheduler and doors[0] == doors[1]


@pytest.mark.parametrize("kind", VLLM)
@QUIET
@given(policy=POLICIES)
def test_what_is_read_back_is_the_policy(kind: str, tmp_path_factory: pytest.TempPathFactory, policy: Policy) -> None:
    found = flag_text(wanted_by_run(row_of(policy)), kind)
    assert same(read_back(kind, found.text, tmp_path_factory.mktemp("back")), policy)


@QUIET
@given(policy=POLICIES)
def test_only_what_changes_is_set(policy: Policy) -> None:
    fewest = fewest_settings(policy, H100)
    for knob in fewest:
        others = [f"{name}={'none' if value is None else value}" for name, value in fewest.items() if name != knob]
        try:
            assert build_policy(H100, None, others).scheduler != policy.scheduler, knob
        except ConfigError:
            pass
    assert flag_text(wanted_by_run(row_of(default_policy(H100))), "vllm-args").flags == ()


@QUIET
@given(today=POLICIES, target=POLICIES)
def test_a_changed_line_runs_the_policy(today: Policy, target: Policy) -> None:
    flags = " ".join(flag_text(wanted_by_run(row_of(today)), "vllm-args").flags)
    line = f"LOG=1 vllm serve org/Llama-3.1-8B --port 8000 {flags} --enforce-eager"
    found = command_diff(wanted_by_run(row_of(target)), line)
    assert same(parse_vllm_command(found.command, H100), target)
    assert found.command.startswith("LOG=1 vllm serve org/Llama-3.1-8B --port 8000") and "--enforce-eager" in found.command
    if same(today, target):
        assert shlex.split(found.command) == shlex.split(line)
        assert found.out == found.into == ()


def test_sglang_reads_its_own() -> None:
    policy = build_policy(H100, None, ["max_num_batched_tokens=4096", "max_num_seqs=64", "batching.step=prefill_first",
                                       "batching.max_partial_prefills=1", "order.by=shortest_first"])  # fmt: skip
    found = flag_text(wanted_by_run(row_of(policy)), "sglang-args")
    read = split_sglang(f"python -m sglang.launch_server --model-path m {' '.join(found.flags)}", H100)
    assert read.settings["max_num_batched_tokens"] == 4096 and read.settings["max_num_seqs"] == 64
    assert read.rules["order"]["by"] == "shortest_first" and read.rules["batching"]["step"] == "prefill_first"
    assert "no flag: its default" in found.text and "SGLang 0.5.23" in found.text


@pytest.mark.parametrize(
    ("sets", "kind", "version", "reason"),
    [
        (["watermark=0.05"], "vllm-args", "0.20.0", "vLLM 0.20.0 does not have it; 0.24.0 does"),
        (["prefill_schedule_interval=4"], "env", "0.30.0", "0.33.0 does"),
        (["max_num_active_seqs=64"], "helm-values", "0.24.0", "does not have it"),
        (["batching.decode_reserve=256"], "vllm-args", None, "no part of the token budget"),
        (["batching.max_partial_prefills=2"], "vllm-yaml", None, "V1's scheduler ignores it"),
        (["order.by=deadline"], "vllm-args", None, "fcfs and priority only"),
        (["long_prefill_token_threshold=512"], "sglang-args", None, "no cap on one prompt's share"),
        (["scheduler_reserve_full_isl=false"], "sglang-args", None, "counts the whole prompt"),
        (["preemption.victim=most_kv"], "vllm-args", None, "preemption.victim"),
        ([], "vllm-args", "0.99.0", "--engine-version"),
    ],
)
def test_what_an_engine_ignores_is_refused(sets: list[str], kind: str, version: str | None, reason: str) -> None:
    wanted = wanted_by_run(row_of(build_policy(H100, None, sets)))
    with pytest.raises(UsageError, match=reason) as error:
        flag_text(wanted, kind, version)
    assert error.value.exit_code == 2


def test_what_is_no_engines_is_said_beside_it() -> None:
    policy = build_policy(H100, None, ["fleet.replicas=3", "max_num_seqs=64", "batching.step=decode_first"])
    found = flag_text(wanted_by_run(row_of(policy)), "helm-values")
    assert found.flags == ("--max-num-seqs 64",)
    values = yaml.safe_load(found.text)["servingEngineSpec"]["modelSpec"][0]
    assert values == {"name": "llama-3.1-8b", "replicaCount": 3, "vllmConfig": {"extraArgs": ["--max-num-seqs", "64"]}}
    assert "# fleet.replicas = 3: default 1 (no flag: set where the replicas are deployed" in found.text
    assert "# batching.step = decode_first: default mixed (no flag: it mixes prefill and decode" in found.text


def test_versions_are_those_that_have_all_flags() -> None:
    told = [flag_text(wanted_by_run(row_of(build_policy(H100, None, [pair]))), "vllm-args").versions
            for pair in ("max_num_seqs=64", "watermark=0.05", "prefill_schedule_interval=2")]  # fmt: skip
    assert told == ["vLLM 0.20.0 to 0.33.0 (the newest checked)", "vLLM 0.24.0 to 0.33.0 (the newest checked)",
                    "vLLM 0.33.0 (older ones lack a flag)"]  # fmt: skip


def test_separate_pools_are_exported_one_at_a_time(runs: Runs) -> None:
    with pytest.raises(UsageError, match="--pool prefill or --pool decode"):
        export(str(runs.pools), to="vllm-args", db=runs.path)
    assert export(str(runs.pools), to="vllm-args", pool="decode", db=runs.path).figures["flags"] == ["--max-num-seqs 16"]
    assert export(str(runs.pools), to="vllm-args", pool="prefill", db=runs.path).figures["flags"] == []
    with pytest.raises(UsageError, match="no separate pools"):
        export(str(runs.tight), to="vllm-args", pool="decode", db=runs.path)


def test_a_finding_gives_what_was_confirmed_and_nothing_else(runs: Runs) -> None:
    with runs.store.read() as con:
        (text,) = con.execute("SELECT document FROM findings WHERE run = ? AND rank = 0", [runs.tight]).fetchall()[0]
    first = json.loads(text)["findings"][0]
    assert first["confirmed_by_replay"] is True
    (advice,) = first["recommend"]
    report = export("tight", to="vllm-args", finding=first["id"], db=runs.path)
    assert report.figures["flags"] == advice["flags"]["vllm"] and report.figures["sets"] == advice["set"]
    assert f"confirmed by replay: {advice['replayed']['reason']}"[:60] in str(report.text)
    assert export("tight", to="vllm-args", finding="1", db=runs.path).text == report.text
    line = "vllm serve Llama-3.1-8B --max-num-seqs 4 --max-num-batched-tokens 4096"
    command = export("tight", to="vllm-args", finding="1", diff=line, db=runs.path).figures["command"]
    changed = parse_vllm_command(command, H100).scheduler
    assert changed.max_num_batched_tokens == 4096 and f"max_num_seqs={changed.max_num_seqs}" in advice["set"]


def test_what_no_replay_confirmed_is_not_exported(runs: Runs) -> None:
    with pytest.raises(UsageError, match="no such finding"):
        export("tight", to="env", finding="NOTHING", db=runs.path)
    with pytest.raises(UsageError, match="no recorded diagnosis"):
        export(str(runs.preempting), to="env", finding="1", db=runs.path)
    with runs.store.read() as con:
        (text,) = con.execute("SELECT document FROM findings WHERE run = ? AND rank = 0", [runs.tight]).fetchall()[0]
    from tracekit.exports.wanted import wanted_by_finding
    from tracekit.store import load_run

    document = json.loads(text)
    for outcome in ("refuted", "within noise", None):
        advice = document["findings"][0]["recommend"][0]
        advice["replayed"] = None if outcome is None else advice["replayed"] | {"outcome": outcome}
        with pytest.raises(UsageError, match="no replay confirmed"):
            wanted_by_finding(load_run(runs.store, runs.tight), document, "1")


TUNED = {
    "schema": "tracekit.tune/1", "recommended": True, "why": "12 % more requests meet the SLO", "trace": "monday",
    "profile": H100.name, "sets": ["max_num_seqs=64", "max_num_batched_tokens=4096"],
    "changes": [{"knob": "max_num_seqs", "old": 256, "new": 64, "derived": False},
                {"knob": "num_gpu_blocks", "old": 1, "new": 2, "derived": True}],
    "gain": {"estimate": 0.12, "low": 0.08, "high": 0.16, "n": 4, "requests": 4000},
}  # fmt: skip


def test_a_tuners_answer(tmp_path: Path) -> None:
    path = tmp_path / "answer.json"
    path.write_text(json.dumps(TUNED))
    report = export(str(path), to="vllm-args", db=tmp_path / "none.duckdb")
    assert report.figures["flags"] == ["--max-num-seqs 64", "--max-num-batched-tokens 4096"]
    assert "# max_num_seqs = 64: 256 today" in str(report.text) and "+12.0 % [+8.0, +16.0]" in str(report.text)
    line = export(str(path), to="vllm-args", diff="vllm serve m --max-num-seqs 256 -tp 1", db=tmp_path / "x").figures["command"]
    assert line == "vllm serve m -tp 1 --max-num-seqs 64 --max-num-batched-tokens 4096"
    with pytest.raises(UsageError, match="no run"):
        export(str(path), to="perfetto", db=tmp_path / "none.duckdb")
    with pytest.raises(UsageError, match="recommends no change: noise"):
        wanted_by_tuner({**TUNED, "recommended": False, "why": "noise"})
    with pytest.raises(UsageError, match="no answer of a tuner yet"):
        export("tune", to="env", db=tmp_path / "none.duckdb")
    path.write_text('{"schema": "tracekit.tune/1", "dry_run": true}')
    with pytest.raises(UsageError, match="no answer of a tuner"):
        export(str(path), to="env", db=tmp_path / "none.duckdb")


def test_no_text_gets_out_of_its_comment(runs: Runs) -> None:
    for title in ("x\nmax-num-seqs: 1", "x\r--max-num-seqs 1", "x\u2028y", "x\x1b[2J"):
        row = row_of(build_policy(H100, None, ["max_num_seqs=64"])) | {"trace_name": title}
        for kind in FLAG_FORMATS:
            lines = flag_text(wanted_by_run(row), kind).text.splitlines()
            assert sum("max-num-seqs" in line or "running-requests" in line for line in lines if not line.startswith("#")) == 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--to", "vllm-args"], 0),
        (["--to", "vllm-args", "--json"], 0),
        (["--to", "markdown"], 0),
        (["--to", "vllm-args", "--finding", "NOTHING"], 2),
        (["--to", "vllm-args", "--diff", "python serve.py"], 2),
        (["--to", "perfetto", "--json", "--out", "-"], 2),
        (["--to", "everything"], 2),
        ([], 2),
    ],
)
def test_the_command(runs: Runs, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int) -> None:
    assert main(["export", "tight", "--db", str(runs.path), *arguments]) == code
    said = capsys.readouterr()
    if code:
        assert said.err.count("\n") == 1 and said.err.startswith("tracekit: ")
    elif "--json" in arguments:
        assert json.loads(said.out)["flags"] == ["--max-num-seqs 4"]
    else:
        assert "max" in said.out and not said.err


def test_a_tuners_answer_knows_its_own_profile(tmp_path: Path) -> None:
    """A profile that is none of ours stands in the plan beside the answer: a line that runs today is read by it."""
    own = H100.to_toml().replace(H100.name, "ours")
    (tmp_path / "answer.json").write_text(json.dumps({**TUNED, "profile": "ours"}))
    line = "vllm serve m --max-num-seqs 256"
    with pytest.raises(UsageError, match="not one of those shipped"):
        export(str(tmp_path / "answer.json"), to="vllm-args", diff=line, db=tmp_path / "x")
    (tmp_path / "plan.json").write_text(json.dumps({"profile_text": H100.to_toml()}))
    with pytest.raises(UsageError, match="not one of those shipped"):  # somebody else's plan
        export(str(tmp_path / "answer.json"), to="vllm-args", diff=line, db=tmp_path / "x")
    (tmp_path / "plan.json").write_text(json.dumps({"profile_text": own}))
    report = export(str(tmp_path / "answer.json"), to="vllm-args", diff=line, db=tmp_path / "x")
    assert report.figures["command"] == "vllm serve m --max-num-seqs 64 --max-num-batched-tokens 4096"


def test_the_latest_answer_of_a_database(tmp_path: Path) -> None:
    for number, (key, seats) in enumerate((("b", 8), ("a", 16))):
        folder = tmp_path / "t.duckdb.d" / "tune" / key
        folder.mkdir(parents=True)
        (folder / "answer.json").write_text(json.dumps({**TUNED, "sets": [f"max_num_seqs={seats}"]}))
        os.utime(folder / "answer.json", ns=(number, number))
    assert export("tune", to="vllm-args", db=tmp_path / "t.duckdb").figures["flags"] == ["--max-num-seqs 16"]
