"""Routers by what they choose, and fleets whose ends bring new requests."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_engine.config import ConfigError, SchedulerConfig
from replay_engine.fleet.routers import Candidate, PrefixAffinity, Router, anchors, make_router
from replay_engine.prefix import BlockKeys
from replay_engine.profile import Latency
from replay_engine.rules import Client, Rules
from replay_engine.types import Request, RequestState
from tests.engine.test_front_door import Asked, AskedSource, asked
from tests.engine.test_sessions import Turn, TurnSource
from tests.engine.traffic import latencies, schedulers
from tests.fleet.fleets import ROUTERS, fleet, turns


def request(index: int = 0) -> Request:
    return Request(index=index, request_id=str(index), arrival_ns=0, prompt_tokens=10, output_tokens=10)


def picks(
    router: Router, loads: list[int], times: int = 1, keys: BlockKeys | None = None, up: list[int] | None = None
) -> list[int]:
    candidates = [Candidate(n, 1, tokens) for n, tokens in enumerate(loads)]
    up = list(range(len(loads))) if up is None else up
    return [router.pick(request(i), keys or BlockKeys(), up, candidates.__getitem__) for i in range(times)]


def prefix(first: int, blocks: int) -> BlockKeys:
    return BlockKeys([(0, blocks, first)])


def test_simple_routers() -> None:
    assert picks(make_router("round_robin", 3), [0, 0, 0], 5) == [0, 1, 2, 0, 1]
    turn = make_router("round_robin", 4)
    assert picks(turn, [0] * 4, 2) == [0, 1]
    assert picks(turn, [0] * 4, 3, up=[0, 1, 3]) == [3, 0, 1]
    assert picks(make_router("least_tokens", 3), [5, 2, 2]) == [1]
    shares = Counter(picks(make_router("weighted(3,1,0)", 3, seed=1), [0, 0, 0], 4000))
    assert shares[2] == 0 and 2.6 < shares[0] / shares[1] < 3.4
    assert set(picks(make_router("weighted(3,1,0)", 3), [0] * 3, 50, up=[2])) == {2}


def test_power_of_two_takes_the_lighter_of_two_drawn() -> None:
    loads = [50, 10, 30, 20]
    seen = Counter(picks(make_router("power_of_two", 4, seed=3), loads, 6000))
    assert seen[0] == 0  # the fullest never wins
    assert seen[1] > seen[3] > seen[2] > 0
    assert abs(seen[1] / 6000 - 1 / 2) < 0.03 and abs(seen[3] / 6000 - 1 / 3) < 0.03 and abs(seen[2] / 6000 - 1 / 6) < 0.03


def test_draws_depend_on_the_seed_alone() -> None:
    for name in ("power_of_two", "weighted(1,2,3)"):
        one, same, other = (picks(make_router(name, 3, seed=seed), [1, 2, 3], 60) for seed in (1, 1, 2))
        assert one == same != other


def test_affinity_goes_where_the_longest_prefix_went() -> None:
    router = PrefixAffinity(1000)
    assert picks(router, [0, 5, 5], keys=prefix(0, 8)) == [0]
    assert picks(router, [9, 5, 0], keys=prefix(0, 8)) == [0]
    longer = BlockKeys([(0, 8, 0), (8, 24, 500)])
    assert picks(router, [9, 5, 5], keys=longer) == [0]
    assert picks(router, [9, 9, 0], keys=prefix(5000, 4)) == [2]
    assert router._matched(0, anchors(longer)) >= 20 and router._matched(1, anchors(longer)) == 0


def test_affinity_gives_way_to_load_and_forgets_what_failed() -> None:
    router = PrefixAffinity(1000, spread=2.0, slack=100)
    picks(router, [0, 0], keys=prefix(0, 8))
    assert picks(router, [300, 100], keys=prefix(0, 8)) == [0]
    assert picks(router, [301, 100], keys=prefix(0, 8)) == [1]
    router.forget(0)
    assert picks(router, [0, 100], keys=prefix(0, 8)) == [1]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 60)), max_size=80), st.integers(1, 200))
def test_affinity_remembers_no_more_than_a_cache_holds(sent: list[tuple[int, int]], blocks: int) -> None:
    router = PrefixAffinity(blocks)
    for group, length in sent:
        picks(router, [0, 0], keys=prefix(1000 * group, length))
    for replica, kept in router._sent.items():
        assert sum(kept.values()) == router._held[replica]
        assert router._held[replica] <= blocks or len(kept) == 1


def test_a_decision_looks_at_few_places_of_a_long_prefix() -> None:
    marks = anchors(prefix(7, 8000))
    assert len(marks) < 80 and marks[0] == (1, 7) and marks[15] == (16, 22)
    assert all(key == 7 + count - 1 for count, key in marks)
    assert anchors(BlockKeys([(0, 3, 10), (3, 9, 100)]))[:5] == [(1, 10), (2, 11), (3, 12), (4, 103), (5, 104)]


@pytest.mark.parametrize(
    "text", ["best", "weighted(1,2)", "weighted(0,0,0)", "weighted(1,-1,2)", "weighted(a,b,c)", "round_robin()"]
)
def test_routers_that_make_no_sense(text: str) -> None:
    with pytest.raises(ConfigError, match="router = "):
        make_router(text, 3)


@settings(max_examples=100, deadline=None)
@given(listed=turns, config=schedulers(), latency=latencies, router=st.sampled_from(ROUTERS), coast=st.booleans())
def test_a_turn_is_sent_when_its_parent_has_ended_wherever_that_ran(
    listed: list[Turn], config: SchedulerConfig, latency: Latency, router: str, coast: bool
) -> None:
    source = TurnSource(listed)
    told = fleet(source, config, latency, router, 3, coast=coast)
    outcomes = told.sink.table("outcomes")
    assert sorted(outcomes["request"].tolist()) == list(range(source.total))
    ended = {int(row["request"]): row for row in outcomes}
    for index, row in ended.items():
        parent = source.parent[index]
        if parent >= 0 and row["state"] != RequestState.unreleased:
            earliest = int(ended[parent]["last_token_ns"]) + source.turns[index].think
            assert row["arrival_ns"] == max(earliest, source.arrival[index])
        elif parent >= 0 and told.how == "finished":
            assert ended[parent]["state"] != RequestState.finished
    routed = told.sink.table("routing")
    assert (routed["at_ns"][1:] >= routed["at_ns"][:-1]).all()


@settings(max_examples=100, deadline=None)
@given(
    rows=asked, config=schedulers(), latency=latencies, router=st.sampled_from(ROUTERS), most=st.integers(1, 4),
    arrival=st.sampled_from(["meant", "slot"]),
)  # fmt: skip
def test_no_more_are_in_flight_than_the_client_allows(
    rows: list[Asked], config: SchedulerConfig, latency: Latency, router: str, most: int, arrival: str
) -> None:
    rows = [replace(row, cancel=-1) for row in rows]
    told = fleet(
        AskedSource(rows), config, latency, router, 3, rules=Rules(client=Client(max_in_flight=most, arrival=arrival))  # type: ignore[arg-type]
    )
    if told.how != "finished":
        return
    chosen = told.sink.table("routing")
    chosen = chosen[chosen["chosen"]]
    begun = dict(zip(chosen["request"].tolist(), chosen["at_ns"].tolist(), strict=True))
    outcomes = told.sink.table("outcomes")
    ends = {int(row["request"]): int(row["last_token_ns"]) for row in outcomes if row["state"] == RequestState.finished}
    events = sorted([(at, 1) for request, at in begun.items() if request in ends] + [(ends[r], -1) for r in begun if r in ends])
    flying = 0
    for _, change in events:
        flying += change
        assert flying <= most
