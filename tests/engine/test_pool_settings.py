"""Prefill and decode pools in a policy: what either sets over ``[scheduler]``, from a file, a command line, and back."""

from __future__ import annotations

import pytest

from replay_engine.config import ConfigError
from replay_engine.policy import Policy, apply_set, build_policy, load_policy
from replay_engine.profile import Latency, Profile, load_profile

PLANTED = Profile(name="planted", latency=Latency(a_ns=1e6, b_ns=2e4, d_ns=1e4), synthetic=True)
TEXT = """
[scheduler]
max_num_seqs = 64
num_gpu_blocks = 1000
[pd]
prefill = 2
decode = 3
[pools.prefill]
max_num_batched_tokens = 16384
[pools.decode]
num_gpu_blocks = 500
"""


def test_each_pool_has_its_own_budget_and_the_rest_of_the_scheduler() -> None:
    policy = load_policy(TEXT, PLANTED)
    prefill, decode = policy.engines["prefill"], policy.engines["decode"]
    assert (prefill.max_num_batched_tokens, prefill.max_num_seqs, prefill.num_gpu_blocks) == (16384, 64, 1000)
    assert (decode.max_num_batched_tokens, decode.max_num_seqs, decode.num_gpu_blocks) == (8192, 64, 500)
    assert prefill.max_model_len == decode.max_model_len == 499 * 16  # what the smaller pool can hold
    again = Policy.from_dict(policy.to_dict())
    assert again.engines == policy.engines and again.rules == policy.rules
    assert load_policy(policy.to_toml(), PLANTED).engines == policy.engines


def test_a_command_line_sets_a_knob_of_one_pool() -> None:
    policy = build_policy(PLANTED, TEXT, ["decode.max_num_seqs=256", "pools.prefill.max_num_seqs=8", "pd.decode=4"])
    assert (policy.engines["prefill"].max_num_seqs, policy.engines["decode"].max_num_seqs) == (8, 256)
    assert policy.rules.pd.decode == 4
    changed = apply_set(policy, ["max_num_seqs=32"], PLANTED)
    assert (changed.engines["prefill"].max_num_seqs, changed.engines["decode"].max_num_seqs) == (8, 256)


def test_without_separate_pools_there_are_none() -> None:
    assert build_policy(PLANTED).engines == {}
    estimated = build_policy(load_profile("h100"), None, ["pd.prefill=1", "pd.decode=1", "prefill.max_num_batched_tokens=32768"])
    prefill, decode = estimated.engines["prefill"], estimated.engines["decode"]
    assert prefill.num_gpu_blocks < decode.num_gpu_blocks  # a larger budget takes more memory for activations


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["decode.max_num_seq=1"], r"pools\.decode\.max_num_seq: unknown knob; did you mean max_num_seqs"),
        (["pools.both.max_num_seqs=1"], r"pools\.both: unknown pool; expected pools\.prefill or pools\.decode"),
        (["decode.block_size=32"], r"pools\.decode\.block_size: both pools hold the same KV of the same prompts"),
        (["decode.max_num_seqs=0"], r"pools\.decode\.max_num_seqs = 0: "),
        (["pd.prefill=0"], r"pd\.prefill = 0: a request needs an engine of either pool"),
    ],
)
def test_a_pool_without_sense_is_refused(sets: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_policy(PLANTED, TEXT, sets)
