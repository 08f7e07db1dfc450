"""An engine that is sent its requests piece by piece, and stopped anywhere in between, against one that draws them itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_engine.arrivals import NEVER, Calendar, Inbox
from replay_engine.config import SchedulerConfig
from replay_engine.front_door import DoorFacts
from replay_engine.profile import Latency
from replay_engine.replica import Replica
from replay_engine.rules import Client, Rules
from replay_engine.simulator import SimExecutor
from replay_engine.sinks import MemorySink
from replay_engine.tables import TABLES, OutcomeReason
from replay_engine.types import Request
from tests.engine.test_front_door import NAMES, Asked, AskedSource, asked
from tests.engine.test_policies import allowed, rule_sets, run
from tests.engine.traffic import latencies, schedulers


def requests_of(rows: list[Asked], config: SchedulerConfig) -> list[tuple[Request, list[int]]]:
    calendar = Calendar(AskedSource(list(rows)), config.block_size, caching=config.enable_prefix_caching)
    came = []
    while not calendar.exhausted:
        request = calendar.pop_arrival()
        came.append((request, list(calendar.keys(request))))
    return came


def in_pieces(
    rows: list[Asked], config: SchedulerConfig, rules: Rules, latency: Latency, stops: list[int], *, coast: bool
) -> tuple[MemorySink, str]:
    """``stops`` by request, again and again: how far ahead of its arrival (ns) the engine is let go on in two steps before it is
    sent; -1: it is sent without a stop."""
    sink = MemorySink()
    executor = SimExecutor(latency, asynchronous=config.async_scheduling)
    facts = DoorFacts(latency=latency, ttft_slo_ns=20_000, tenants=NAMES)
    inbox = Inbox()
    engine = Replica(inbox, config, executor, sink, rules=rules, facts=facts, coast=coast, kv_block_bytes=4096)
    sent = requests_of(rows, config)
    seen = 0
    for i, (request, keys) in enumerate(sent):
        stop, at = stops[i % len(stops)], request.arrival_ns
        if stop >= 0 or i == len(sent) - 1:
            for horizon in (max(seen, at - max(stop, 0)), at):
                engine.advance(horizon)
                assert engine.next_ns >= horizon
            seen = at
        engine.push(at, request, keys)
    inbox.closed = True
    engine.advance(NEVER)
    how = "finished" if engine.idle else "no_progress"
    if how == "no_progress":
        engine.end_all(OutcomeReason.no_progress)
    engine.recorder.flush()
    return sink, how


@pytest.mark.timeout(300)
@settings(max_examples=150, deadline=None)
@given(
    rows=asked, config=schedulers(), rules=rule_sets, latency=latencies, coast=st.booleans(),
    stops=st.lists(st.sampled_from([-1, 0, 0, 700, 5_000]), min_size=1, max_size=7),
)  # fmt: skip
def test_pieces_write_the_same_bytes(
    rows: list[Asked], config: SchedulerConfig, rules: Rules, latency: Latency, coast: bool, stops: list[int]
) -> None:
    config, rules = allowed(config, replace(rules, client=Client()))
    _, whole, how = run(rows, config, rules, latency, coast=coast)
    pieces, ended = in_pieces(rows, config, rules, latency, stops, coast=coast)
    assert ended == how
    for table in TABLES:
        assert pieces.table(table).tobytes() == whole.table(table).tobytes(), table
