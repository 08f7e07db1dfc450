"""Settings out of a log of vLLM: wherever a policy is taken, and what is said where there are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from replay_engine.profile import load_profile
from tracekit.errors import UsageError
from tracekit.logged_args import logged_sets
from tracekit.policy_source import policy_from

LINE = "(APIServer pid=1) INFO 04-21 05:13:00 [utils.py:233] non-default args: {'model': 'm', 'max_num_seqs': 48, 'seed': 1}"
HEAD = [
    "INFO 04-21 05:13:00 [core.py:93] Initializing a V1 LLM engine (v0.19.1) with config: model='m'",
    "INFO 04-21 05:13:20 [kv_cache_utils.py:1087] GPU KV cache size: 41,408 tokens",
]


def test_a_whole_log_says_flags_release_and_blocks(tmp_path: Path) -> None:
    log = tmp_path / "serve.log"
    log.write_text("\n".join([LINE.replace("48", "7"), "noise", LINE, *HEAD, "Iteration(1): ..."]) + "\n", encoding="utf-8")
    policy = policy_from(load_profile("h100"), str(log), ["max_num_batched_tokens=1024"])
    scheduler = policy.scheduler
    assert (scheduler.max_num_seqs, scheduler.num_gpu_blocks, scheduler.max_num_batched_tokens) == (48, 2588, 1024)
    assert scheduler.engine_version == "0.20.0", "0.19.1 as the nearest one"
    assert "max_num_seqs=48, num_gpu_blocks=2588, engine_version=0.19.1: what vLLM logged at its start" in policy.notes


def test_its_line_alone_and_what_is_set_over_it() -> None:
    policy = policy_from(load_profile("h100"), LINE, ["max_num_seqs=9"])
    assert policy.scheduler.max_num_seqs == 9
    assert logged_sets("vllm serve m --max-num-seqs 3") is None and logged_sets("no such file") is None


def test_other_files_are_left_to_those_who_read_them(tmp_path: Path) -> None:
    for name, text in (("p.toml", f"# {LINE}\n"), ("p.txt", "max_num_seqs = 3\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert logged_sets(str(tmp_path / name)) is None
    (tmp_path / "cut.log").write_text("non-default args: {'max_num_seqs': 4\n8}\n", encoding="utf-8")
    with pytest.raises(UsageError, match="not whole"):
        logged_sets(str(tmp_path / "cut.log"))


def test_what_is_said_of_a_trace_is_no_setting_of_a_replay() -> None:
    with pytest.raises(UsageError, match="says something of the trace, for a fit"):
        policy_from(load_profile("h100"), None, ["trace.shared_prefix=64"])
