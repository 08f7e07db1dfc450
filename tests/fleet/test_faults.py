"""Replicas that fail, come back or are slow: no request is lost, and its life is told without a hole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_engine.config import ConfigError, SchedulerConfig
from replay_engine.fleet.faults import Fault, parse_fault
from replay_engine.profile import Latency
from replay_engine.rules import Rules
from replay_engine.tables import Decision, OutcomeReason
from replay_engine.types import NEVER, Phase, Refusal, RequestState
from tests.engine.test_front_door import Asked, AskedSource, asked, clients
from tests.engine.test_policies import allowed, rule_sets
from tests.engine.traffic import latencies, schedulers
from tests.fleet.fleets import ROUTERS, Fleeted, fleet

faults = st.lists(
    st.builds(
        lambda replica, at, length, factor: Fault(
            replica=replica, at_ns=at, until_ns=NEVER if length is None else at + length, factor=factor
        ),
        replica=st.integers(0, 2),
        at=st.sampled_from([0, 1, 3_000, 40_000, 500_000]),
        length=st.sampled_from([None, 1, 2_000, 60_000, 1_000_000]),
        factor=st.sampled_from([0.0, 0.0, 0.0, 2.5]),
    ),
    min_size=1,
    max_size=5,
)


def whole(told: Fleeted, rows: list[Asked]) -> None:
    """Each request ends once, its spans touch, and nothing is held by anybody."""
    outcomes = told.sink.table("outcomes")
    assert sorted(outcomes["request"].tolist()) == list(range(len(rows)))
    spans = told.by_request("spans")
    for outcome in outcomes:
        own = spans.get(int(outcome["request"]), [])
        assert all(a["end_ns"] == b["start_ns"] for a, b in zip(own, own[1:], strict=False)), own
        if own:
            assert own[0]["start_ns"] == outcome["arrival_ns"]
        if outcome["state"] == RequestState.finished:
            assert own[-1]["end_ns"] == outcome["arrival_ns"] + outcome["e2e_ns"]
            assert 0 <= outcome["queue_ns"] <= outcome["ttft_ns"] <= outcome["e2e_ns"]
    for member in told.run.members:
        state = member.engine.scheduler.state
        if member.up and told.how == "finished":
            assert state.pool.free == state.usable and not state.running and not len(state.waiting)
            assert member.look(NEVER).requests == member.look(NEVER).tokens == 0
        iterations = told.sink.table("iterations", member.number)
        assert (np.diff(iterations["iteration"]) > 0).all()
        ends = iterations["start_ns"] + iterations["duration_ns"]
        assert (iterations["start_ns"][1:] >= ends[:-1]).all()


@pytest.mark.timeout(300)
@settings(max_examples=150, deadline=None)
@given(
    rows=asked, config=schedulers(), rules=rule_sets, latency=latencies, coast=st.booleans(), router=st.sampled_from(ROUTERS),
    planned=faults, client=clients,
)  # fmt: skip
def test_nobody_is_lost(
    rows: list[Asked], config: SchedulerConfig, rules: Rules, latency: Latency, coast: bool, router: str, planned: list[Fault],
    client: object,
) -> None:  # fmt: skip
    config, rules = allowed(config, replace(rules, client=client))
    told = fleet(AskedSource(list(rows)), config, latency, router, 3, rules=rules, coast=coast, faults=planned)
    whole(told, rows)
    outcomes = told.sink.table("outcomes")
    routed = told.sink.table("decisions")
    again = routed[(routed["decision"] == Decision.route) & (routed["reason"] == OutcomeReason.replica_failed)]
    for outcome in outcomes:
        assert (again["request"] == outcome["request"]).sum() <= outcome["retries"]
    chosen = told.sink.table("routing")
    chosen = chosen[chosen["chosen"]]
    sent = set(zip(chosen["request"].tolist(), chosen["attempt"].tolist(), strict=True))
    assert len(sent) == len(chosen)
    done = outcomes[outcomes["state"] == RequestState.finished]
    assert {(int(o["request"]), int(o["retries"])) for o in done} <= sent


FLAT = Latency(floor_ns=1e6)
CONFIG = SchedulerConfig(
    max_num_batched_tokens=64, max_num_seqs=8, max_model_len=400, block_size=4, num_gpu_blocks=1001, async_scheduling=False
)


def steady(count: int, gap: int, output: int) -> list[Asked]:
    return [Asked(gap=gap, prompt=10, output=output) for _ in range(count)]


def test_what_a_failure_does_to_a_request() -> None:
    """Two replicas in turn, an iteration a millisecond. Replica 1 dies 5.5 ms after its request came, in its sixth iteration."""
    rows = [Asked(gap=0, prompt=10, output=20), Asked(gap=0, prompt=10, output=20)]
    fault = Fault(replica=1, at_ns=5_500_000, until_ns=9_000_000)
    told = fleet(AskedSource(list(rows)), CONFIG, FLAT, "round_robin", 2, faults=[fault])
    whole(told, rows)
    kept, moved = sorted(told.sink.table("outcomes"), key=lambda row: int(row["request"]))
    assert (kept["retries"], moved["retries"]) == (0, 1)
    assert kept["ttft_ns"] == 1_000_000 and kept["e2e_ns"] == 20_000_000
    assert moved["replica"] == 0 and moved["ttft_ns"] == 7_000_000 and moved["e2e_ns"] == 26_000_000
    life = [(Phase(int(s["phase"])).name, int(s["replica"]), int(s["end_ns"])) for s in told.by_request("spans")[1]]
    assert life == [
        ("queued", 1, 0), ("prefill", 1, 1_000_000), ("decode", 1, 6_000_000),
        ("queued", 0, 6_000_000), ("prefill", 0, 7_000_000), ("decode", 0, 26_000_000),
    ]  # fmt: skip
    again = [s for s in told.by_request("spans")[1] if s["replica"] == 0 and s["phase"] == Phase.queued]
    assert [int(s["reason"]) for s in again] == [Refusal.replica_failed]
    assert len(told.sink.table("iterations", 1)) == 6


def test_a_replica_that_is_back_goes_on_counting_with_a_cold_cache() -> None:
    rows = [Asked(gap=0 if i % 2 else 10_000_000, prompt=80, output=2, group=1, shared=9) for i in range(12)]
    fault = Fault(replica=0, at_ns=35_000_000, until_ns=36_000_000)
    told = fleet(AskedSource(list(rows)), CONFIG, FLAT, "round_robin", 2, faults=[fault])
    whole(told, rows)
    outcomes = told.sink.table("outcomes", 0)
    outcomes = outcomes[np.argsort(outcomes["request"])]
    hit = (outcomes["cached_tokens"] > 0).tolist()
    assert hit[0] is False and all(hit[1:3]) and hit[3] is False and all(hit[4:])


def test_all_down_and_back_or_not() -> None:
    rows = steady(4, 1_000_000, 3)
    down = [Fault(replica=n, at_ns=1_500_000, until_ns=20_000_000 + n) for n in range(2)]
    told = fleet(AskedSource(list(rows)), CONFIG, FLAT, "least_tokens", 2, faults=down)
    whole(told, rows)
    assert (told.sink.table("outcomes")["state"] == RequestState.finished).all()
    late = told.by_request("spans")[3]
    assert (Phase(int(late[0]["phase"])), int(late[0]["replica"]), int(late[0]["end_ns"])) == (Phase.dispatch, -1, 20_000_000)
    gone = fleet(
        AskedSource(list(rows)), CONFIG, FLAT, "least_tokens", 2, faults=[replace(fault, until_ns=NEVER) for fault in down]
    )
    whole(gone, rows)
    failed = gone.sink.table("outcomes")
    assert (failed["state"] == RequestState.failed).all() and (failed["reason"] == OutcomeReason.no_replica).all()


def test_a_slow_replica_takes_longer_from_its_next_plan_on() -> None:
    rows = steady(1, 0, 20)
    told = fleet(AskedSource(list(rows)), CONFIG, FLAT, "round_robin", 1, faults=[
        Fault(replica=0, at_ns=4_500_000, until_ns=9_000_000, factor=2.0),
    ])  # fmt: skip
    assert (told.sink.table("iterations")["duration_ns"] // 1_000_000).tolist() == [1] * 5 + [2, 2] + [1] * 13


@pytest.mark.parametrize(
    ("text", "slow", "said"),
    [
        ("replica1@60s:30s", False, (1, 60_000_000_000, 90_000_000_000, 0.0)),
        ("replica0@1.5m", False, (0, 90_000_000_000, NEVER, 0.0)),
        ("replica2@250ms:2x", True, (2, 250_000_000, NEVER, 2.0)),
        ("replica2@0s:1.5x:10s", True, (2, 0, 10_000_000_000, 1.5)),
        ("replica1", False, "not a fault; expected replica1@60s:30s"),
        ("replica1@60", False, "not a fault"),
        ("replica9@60s", False, "no such replica; expected replica0 to replica2"),
        ("replica1@60s:0s", False, "lasts no time"),
        ("replica1@60s:30s", True, "not a fault; expected replica2@60s:2x"),
        ("replica1@60s:0x", True, "a replica cannot take no time"),
    ],
)
def test_faults_from_text(text: str, slow: bool, said: object) -> None:
    if isinstance(said, str):
        with pytest.raises(ConfigError, match=said):
            parse_fault(text, slow=slow, replicas=3, option="--slow" if slow else "--fail")
        return
    fault = parse_fault(text, slow=slow, replicas=3, option="--fail")
    assert (fault.replica, fault.at_ns, fault.until_ns, fault.factor) == said
