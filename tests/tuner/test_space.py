"""What may be tried: points, constraints, neighbours, conditions, and spaces from a file."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_engine.policy import Policy, apply_set, build_policy
from replay_engine.profile import load_profile
from tracekit.errors import UsageError
from tracekit.traces.load import read_trace
from tracekit.traces.source import TraceSource
from tuner.space import BUDGET, CHUNK, SEQS, Knob, Space, configuration_key
from tuner.space_choice import choose_space

PROFILE = load_profile("h100")
CURRENT = build_policy(PROFILE)


@pytest.fixture(scope="module")
def source(bursts: str) -> TraceSource:
    return TraceSource.from_loaded(read_trace(bursts))


@pytest.fixture(scope="module")
def scheduler(source: TraceSource) -> Space:
    return choose_space(None, CURRENT, PROFILE, source)


@pytest.fixture(scope="module")
def whole(source: TraceSource) -> Space:
    return choose_space("policy", CURRENT, PROFILE, source)


def test_three_knobs_and_more_than_a_thousand_points_each_once(scheduler: Space) -> None:
    points = [tuple(point.items()) for point in scheduler.points()]
    assert scheduler.names == (BUDGET, SEQS, CHUNK)
    assert len(points) == len(set(points)) > 1000
    for point in map(dict, points):
        assert point[SEQS] <= point[BUDGET] and point[CHUNK] < point[BUDGET]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_point_is_what_its_policy_says_and_its_neighbours_are_a_step_away(data: st.DataObject, scheduler: Space) -> None:
    point = data.draw(st.sampled_from(list(scheduler.points())))
    policy = scheduler.policy(CURRENT, point, PROFILE)
    assert scheduler.point_of(policy) == point
    config = policy.scheduler
    assert (config.max_num_batched_tokens, config.max_num_seqs) == (point[BUDGET], point[SEQS])
    assert config.long_prefill_token_threshold == point[CHUNK]
    for knob, step, moved in scheduler.neighbours(point):
        assert scheduler.distance(point, moved) == (1, 1)
        assert abs(step) == 1 and moved[knob] != point[knob]
        assert scheduler.broken(moved) is None
        back = [other for name, back, other in scheduler.neighbours(moved) if name == knob and back == -step]
        assert point in back


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_knob_that_depends_on_another_is_there_only_where_it_counts(data: st.DataObject, whole: Space) -> None:
    levels = {knob.name: data.draw(st.sampled_from(knob.levels)) for knob in whole.knobs}
    point = whole.active(levels)
    assert ("order.aging_s" in point) == (point["order.by"] == "shortest_first")
    assert whole.active(point) == point
    for _, _, moved in whole.neighbours(point):
        assert whole.active(moved) == moved
        assert ("order.aging_s" in moved) == (moved["order.by"] == "shortest_first")


def test_no_order_is_offered_that_the_trace_cannot_tell_apart(whole: Space) -> None:
    assert whole.knob("order.by").levels == ("engine", "shortest_first")
    assert "pd" not in whole.names


def test_several_engines_may_be_split_into_pools(source: TraceSource) -> None:
    current = build_policy(PROFILE, None, ["fleet.replicas=3"])
    space = choose_space("policy", current, PROFILE, source)
    assert space.knob("pd").levels == ("0:0", "1:2", "2:1")
    point = space.completed({**space.point_of(current), "pd": "1:2"}, {})
    policy = space.policy(current, point, PROFILE)
    assert (policy.rules.pd.prefill, policy.rules.pd.decode, policy.rules.fleet.replicas) == (1, 2, 1)
    assert space.point_of(policy)["pd"] == "1:2"
    together = space.policy(policy, {**point, "pd": "0:0"}, PROFILE)
    assert (together.rules.pd.prefill, together.rules.fleet.replicas) == (0, 3)


def test_values_of_the_current_policy_are_levels_in_their_place(source: TraceSource) -> None:
    current = build_policy(PROFILE, None, ["max_num_batched_tokens=5000", "max_num_seqs=200", "long_prefill_token_threshold=700"])
    space = choose_space(None, current, PROFILE, source)
    assert space.point_of(current) == {BUDGET: 5000, SEQS: 200, CHUNK: 700}
    for name in (BUDGET, SEQS):
        assert list(space.knob(name).levels) == sorted(space.knob(name).levels)
    assert space.knob(CHUNK).levels[-1] == 0 and 700 in space.knob(CHUNK).levels
    assert space.defaults(current, PROFILE) == {BUDGET: 8192, SEQS: 1024, CHUNK: 0}


def test_a_cap_that_nothing_reaches_is_none(scheduler: Space) -> None:
    policy = build_policy(PROFILE, None, ["max_num_batched_tokens=1024", "long_prefill_token_threshold=4096"])
    assert scheduler.point_of(policy)[CHUNK] == 0


def test_one_key_for_one_configuration_however_it_is_written() -> None:
    def key(*sets: str) -> str:
        return configuration_key(build_policy(PROFILE, None, sets))

    assert key() == key("max_num_batched_tokens=8192", "max_num_seqs=1024")
    assert len({key(), key("max_num_seqs=512"), key("order.by=shortest_first"), key("fleet.replicas=2")}) == 4


def test_a_space_survives_json(whole: Space) -> None:
    import json

    assert Space.from_dict(json.loads(json.dumps(whole.to_dict()))) == whole


FILE = """
[space]
max_num_batched_tokens = [1024, 8192]
"order.by" = { levels = ["engine", "shortest_first"], ordered = false }
"order.aging_s" = { levels = [1, 10], when = { "order.by" = ["shortest_first"] } }
"""


def read(text: str, tmp_path: Path, source: TraceSource, current: Policy = CURRENT) -> Space:
    path = tmp_path / "space.toml"
    path.write_text(text)
    return choose_space(str(path), current, PROFILE, source)


def test_a_space_from_a_file(tmp_path: Path, source: TraceSource) -> None:
    space = read(FILE, tmp_path, source)
    assert space.names == (BUDGET, "order.by", "order.aging_s")
    assert len(list(space.points())) == 2 * (1 + 2)
    assert not space.knob("order.by").ordered and space.knob("order.aging_s").ordered


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1", "has no table [space]"),
        ("[space]\nmax_num_batched_token = [1, 2]", "max_num_batched_tokens"),
        ("[space]\nmax_num_seqs = [1]", "at least two different levels"),
        ("[space]\nmax_num_seqs = [1, 1]", "at least two different levels"),
        ("[space]\nmax_num_seqs = {levels = [1, 2], when = 3}", "one other knob"),
        ('[space]\nmax_num_seqs = {levels = [1, 2], when = {watermark = [0.1]}}', "that one before it"),
        ("[space]\nmax_num_seqs = {level = [1, 2]}", "expected levels, ordered, when"),
        ("[space", "expected a TOML file"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file_is_said(text: str, expected: str, tmp_path: Path, source: TraceSource) -> None:
    with pytest.raises(UsageError) as refused:
        read(text, tmp_path, source)
    assert expected in str(refused.value) and "\n" not in str(refused.value)


def test_a_space_that_is_neither_name_nor_file(source: TraceSource) -> None:
    with pytest.raises(UsageError, match="neither scheduler nor policy, nor a file"):
        choose_space("polcy", CURRENT, PROFILE, source)


def test_levels_stay_in_order_whatever_is_added() -> None:
    knob = Knob(name=CHUNK, levels=(64, 256, 0))
    added: Any = knob.with_level(100).with_level(64).with_level(512)
    assert added.levels == (64, 100, 256, 512, 0)
    assert Knob(name="order.by", levels=("engine",), ordered=False).with_level("fair").levels == ("engine", "fair")


def test_keys_are_those_of_the_policy_that_is_asked_for_whoever_asks_beside_it() -> None:
    """Threads ask for the keys of policies with different rules at the same time."""
    policies = [apply_set(CURRENT, [f"order.by={by}"], PROFILE) for by in ("engine", "shortest_first")]
    expected = [configuration_key(policy) for policy in policies]
    assert expected[0] != expected[1]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda at: configuration_key(policies[at % 2]), range(400)))
    finally:
        sys.setswitchinterval(before)
    assert found == [expected[at % 2] for at in range(400)]
