"""A fleet of N is N separate replays of the requests that were routed to each, byte for byte."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_engine.arrivals import Calendar, _rows
from replay_engine.config import SchedulerConfig
from replay_engine.profile import Latency
from replay_engine.rules import Client, Rules
from replay_engine.tables import TABLES
from replay_engine.types import Request
from tests.engine.test_front_door import Asked, AskedSource, asked
from tests.engine.test_policies import allowed, rule_sets
from tests.engine.test_sessions import Turn, TurnSource
from tests.engine.traffic import latencies, schedulers
from tests.fleet.fleets import ROUTERS, Fleeted, FleetSink, alone, fleet, turns


def fresh(rows: list[Asked], config: SchedulerConfig) -> dict[int, Request]:
    calendar = Calendar(AskedSource(list(rows)), config.block_size, caching=False)
    found = {}
    while not calendar.exhausted:
        request = calendar.pop_arrival()
        found[request.index] = request
    return found


def parts(requests: dict[int, Request], told: Fleeted) -> list[list[tuple[int, Request]]]:
    """By replica: when it was sent what."""
    routing = told.sink.table("routing")
    chosen = routing[routing["chosen"]]
    return [
        [(int(row["at_ns"]), requests[int(row["request"])]) for row in chosen[chosen["replica"] == number]]
        for number in range(len(told.run.members))
    ]


def same(told: Fleeted, number: int, sink: FleetSink) -> None:
    for table in TABLES:
        if table != "routing":
            rows = sink.table(table)
            alike = told.sink.bare(table, number) == rows.tobytes()
            assert alike, (number, table)  # said apart: two tables as bytes take minutes to be told apart in words


@pytest.mark.timeout(300)
@settings(max_examples=100, deadline=None)
@given(
    rows=asked, config=schedulers(), rules=rule_sets, latency=latencies, coast=st.booleans(), router=st.sampled_from(ROUTERS),
)  # fmt: skip
def test_a_fleet_is_its_parts(
    rows: list[Asked], config: SchedulerConfig, rules: Rules, latency: Latency, coast: bool, router: str
) -> None:
    # a batch that waits for more closes when the whole fleet has no more, so its last one differs
    rules = replace(rules, client=Client(), batching=replace(rules.batching, mode="continuous", answers="own"))
    config, rules = allowed(config, rules)
    told = fleet(AskedSource(list(rows)), config, latency, router, 3, rules=rules, coast=coast)
    if told.how != "finished":
        return
    assert told.run.totals.iterations == len(told.sink.table("iterations"))
    for number, part in enumerate(parts(fresh(rows, config), told)):
        same(told, number, alone(part, config, latency, rules=rules, coast=coast))


@settings(max_examples=60, deadline=None)
@given(listed=turns, config=schedulers(), latency=latencies, coast=st.booleans(), router=st.sampled_from(ROUTERS))
def test_so_it_is_where_turns_wait_for_each_other(
    listed: list[Turn], config: SchedulerConfig, latency: Latency, coast: bool, router: str
) -> None:
    """Ends release requests, so the replicas go on together, in pieces of an iteration or two."""
    source = TurnSource(listed)
    told = fleet(source, config, latency, router, 3, coast=coast)
    if told.how != "finished":
        return
    requests = {request.index: request for batch in source.batches() for request in _rows(batch)}
    for number, part in enumerate(parts(requests, told)):
        for at, request in part:
            if request.parent is not None:
                request.arrival_ns = at
                request.cancel_ns = None if request.cancel_ns is None else request.cancel_ns + at
                request.parent = None
        same(told, number, alone(part, config, latency, coast=coast))
