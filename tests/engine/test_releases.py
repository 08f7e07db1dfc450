"""A release that is not known here is taken as the nearest one, said once, wherever settings come from."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay_engine.config import ENGINE_VERSIONS, ConfigError
from replay_engine.policy import apply_set, build_policy, load_policy
from replay_engine.profile import load_profile
from replay_engine.releases import nearest_release

PROFILE = load_profile("h100")


def assumed(notes: tuple[str, ...]) -> list[str]:
    return [note for note in notes if " is assumed for vLLM " in note]


@pytest.mark.parametrize(
    ("text", "release"),
    [("0.19.0", "0.20.0"), ("v0.11.2", "0.20.0"), ("0.24.0", "0.24.0"), ("0.25.1", "0.24.0"), ("0.33.0+cu128", "0.33.0"),
     ("1.2", "0.33.0"), ("0.20", "0.20.0")],
)  # fmt: skip
def test_the_nearest_release_is_taken_and_said(text: str, release: str, tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(f'[scheduler]\nengine_version = "{text}"\n', encoding="utf-8")
    for policy in (build_policy(PROFILE, None, [f"engine_version={text}"]), load_policy(str(file), PROFILE)):
        assert policy.scheduler.engine_version == policy.settings["engine_version"] == release
        same = tuple(map(int, text.removeprefix("v").split("+")[0].split("."))) in (tuple(map(int, release.split("."))), (0, 20))
        assert len(assumed(policy.notes)) == (0 if same else 1)


def test_what_is_assumed_stays_said_until_another_release_is_given() -> None:
    policy = build_policy(PROFILE, None, ["engine_version=0.19.0"])
    assert len(assumed(apply_set(policy, ["max_num_seqs=64"], PROFILE).notes)) == 1
    later = apply_set(policy, ["scheduler.engine_version=0.33.0"], PROFILE)
    assert later.scheduler.engine_version == "0.33.0" and not assumed(later.notes)


@given(st.integers(0, 3), st.integers(0, 60), st.integers(0, 9))
def test_no_release_is_refused_and_order_is_kept(major: int, minor: int, patch: int) -> None:
    chosen, note = nearest_release(f"{major}.{minor}.{patch}")
    asked, taken = (major, minor, patch), tuple(map(int, chosen.split(".")))
    assert chosen in ENGINE_VERSIONS
    assert (note is None) == (asked == taken)
    assert taken <= asked or chosen == ENGINE_VERSIONS[0]
    assert not any(taken < each <= asked for each in (tuple(map(int, known.split("."))) for known in ENGINE_VERSIONS))


@pytest.mark.parametrize("text", ["latest", "", "x0.19", "0"])
def test_what_is_no_release_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected a release of vLLM"):
        nearest_release(text)
