"""A change touches what it names, tells what follows from it, and leaves the run itself alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from replay_engine.config import ConfigError
from tests.diagnosis.loads import CHAT, setup_of_recipe
from tracekit.diagnosis import RunData
from tracekit.diagnosis.changes import changed_setup
from tracekit.errors import UsageError
from tracekit.replay import Setup


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    return setup_of_recipe(CHAT, tmp_path_factory.mktemp("chat"))


def test_a_knob_moves_alone(setup: Setup) -> None:
    changed = changed_setup(setup, ["max_num_seqs=16"])
    assert changed.named == (("max_num_seqs", "4", "16"),)
    assert changed.besides == ()
    assert (setup.policy.scheduler.max_num_seqs, changed.setup.policy.scheduler.max_num_seqs) == (4, 16)
    assert changed.setup.source is not setup.source
    again = changed_setup(changed.setup, ["max_num_seqs=4"])
    one, other = RunData.replayed(setup), RunData.replayed(again.setup)
    assert np.array_equal(one.outcomes, other.outcomes) and np.array_equal(one.iterations, other.iterations)


@pytest.mark.parametrize(
    ("sets", "knobs"),
    [
        (["batching.step=interleave", "batching.interleave=2:1"], {"batching.step", "batching.interleave"}),
        (["client.max_in_flight=100"], {"client.max_in_flight"}),
        (["fleet.replicas=2", "fleet.router=least_tokens"], {"fleet.replicas", "fleet.router"}),
        (["scheduler.max_num_batched_tokens=8192"], {"max_num_batched_tokens"}),
    ],
)
def test_what_was_asked_for_is_named(setup: Setup, sets: list[str], knobs: set[str]) -> None:
    changed = changed_setup(setup, sets)
    assert {name for name, _, _ in changed.named} == knobs
    assert RunData.replayed(changed.setup).state == "finished"


def test_what_follows_is_told(tmp_path: Path) -> None:
    """Without a number of blocks of its own, more budget leaves fewer of them."""
    from replay_engine.policy import build_policy
    from replay_engine.profile import DEFAULT_PROFILE, load_profile

    made = setup_of_recipe(CHAT, tmp_path)
    profile = load_profile(DEFAULT_PROFILE)
    made.profile, made.policy = profile, build_policy(profile)
    changed = changed_setup(made, ["max_num_batched_tokens=65536"])
    assert [name for name, _, _ in changed.named] == ["max_num_batched_tokens"]
    assert "num_gpu_blocks" in {name for name, _, _ in changed.besides}


def test_traffic_moves_and_the_run_stays(setup: Setup) -> None:
    before = setup.source.arrival_ns.copy()
    even = changed_setup(setup, ["traffic.burst_scale=0"])
    gaps = np.diff(even.setup.source.arrival_ns)
    assert gaps.max() - gaps.min() <= 1
    assert even.setup.source.arrival_ns[0] >= 0 and even.setup.source.arrival_ns[-1] <= before[-1]
    slower = changed_setup(setup, ["traffic.rate_scale=0.5", "max_num_seqs=8"])
    assert np.array_equal(slower.setup.source.arrival_ns, 2 * before)
    assert slower.named == (("max_num_seqs", "4", "8"), ("traffic.rate_scale", "1", "0.5"))
    assert np.array_equal(setup.source.arrival_ns, before)


def test_what_cannot_be_is_refused(setup: Setup) -> None:
    with pytest.raises(UsageError, match="changes nothing"):
        changed_setup(setup, ["max_num_seqs=4"])
    with pytest.raises(UsageError, match=r"traffic\.speed=2: unknown"):
        changed_setup(setup, ["traffic.speed=2"])
    refused = (("rate_scale=0", "a number above 0"), ("rate_scale=fast", "a number"), ("burst_scale=-1", "0 .even arrivals."))
    for pair, expected in refused:
        with pytest.raises(UsageError, match=f"expected {expected}"):
            changed_setup(setup, [f"traffic.{pair}"])
    with pytest.raises(ConfigError):
        changed_setup(setup, ["max_num_seqs=none"])
