"""A fleet of N is N separate replays of the requests that were routed to each, byte for byte."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_engine.arrivals import Calendar
from replay_engine.config import SchedulerConfig
from replay_engine.profile import Latency
from replay_engine.rules import Client, Rules
from replay_engine.tables import TABLES
from replay_engine.types import Request
from tests.engine.test_front_door import Asked, AskedSource, asked
from tests.engine.test_policies import allowed, rule_sets
from tests.engine.traffic import latencies, schedulers
from tests.fleet.fleets import Fleeted, FleetSink, alone, fleet

ROUTERS = ("round_robin", "least_tokens", "power_of_two", "prefix_affinity", "weighted(3,1,2)")


def fresh(rows: list[Asked], config: SchedulerConfig) -> dict[int, Request]:
    calendar = Calendar(AskedSource(list(rows)), config.block_size, caching=False)
    found = {}
    while not calendar.exhausted:
        request = calendar.pop_arrival()
        found[request.index] = request
    return found


def parts(rows: list[Asked], config: SchedulerConfig, told: Fleeted) -> list[list[tuple[int, Request]]]:
    requests = fresh(rows, config)
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
            assert told.sink.bare(table, number) == rows.tobytes(), (number, table)


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
    for number, part in enumerate(parts(rows, config, told)):
        same(told, number, alone(part, config, latency, rules=rules, coast=coast))
