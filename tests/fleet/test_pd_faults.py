"""Pools whose engines and links fail: nobody is lost, and what was lost is computed or moved again, by value and at random."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_engine.arrivals import NEVER
from replay_engine.config import ConfigError, SchedulerConfig
from replay_engine.fleet.faults import LINK, Fault, parse_pd_fault
from replay_engine.pd_rules import Pd
from replay_engine.profile import Latency
from replay_engine.rules import Rules
from replay_engine.tables import OutcomeReason, TransferEnd
from replay_engine.types import Phase, RequestState
from tests.engine.traffic import Row, RowSource, latencies, traffic
from tests.fleet.pools import Pools, play
from tests.fleet.test_pd_replay import FLAT, MOVE, MS, PREFILL, both, check, link, pool_setups

PREEMPTED = int(Phase.preempted)


def stations(pools: Pools, request: int) -> list[tuple[int, int, int, int]]:
    """``(start, end, phase, engine)`` in ms, without those that take no time."""
    return [(a // MS, b // MS, phase, engine) for a, b, phase, engine in pools.spans(request) if b > a]


def one(faults: list[Fault], prefill: int = 1, decode: int = 1, row: Row = Row(0, 32, 20), **rules: object) -> Pools:  # noqa: B008
    told = Rules(pd=Pd(prefill=prefill, decode=decode, lost_kv=rules.get("lost_kv", "prefill")),  # type: ignore[arg-type]
                 kv_link=link(on_failure=rules.get("on_failure", "retry")))  # fmt: skip
    pools = play(RowSource([row]), both(), told, FLAT, faults=faults)
    assert pools.how == "finished"
    return pools


def fails(replica: int, at: int, until: int = NEVER) -> Fault:
    return Fault(replica=replica, at_ns=at * MS, until_ns=until if until == NEVER else until * MS)


def test_a_transfer_that_the_link_loses_starts_over_when_it_is_back() -> None:
    pools = one([fails(LINK, 5, 25)])
    moves = pools.table("transfers")
    assert [(int(m["start_ns"]) // MS, int(m["end_ns"]) // MS, int(m["attempt"]), int(m["ended"])) for m in moves] == [
        (1, 5, 1, TransferEnd.link_failed), (25, 33, 2, TransferEnd.done),
    ]  # fmt: skip
    # what was broken off is part of the transfer: its second attempt is written as a stretch of its own
    assert stations(pools, 0)[:4] == [(0, 1, PREFILL, 0), (1, 25, MOVE, 1), (25, 33, MOVE, 1), (33, 34, PREFILL, 1)]


def test_or_the_decode_engine_computes_the_prompt_itself() -> None:
    pools = one([fails(LINK, 5, 25)], on_failure="recompute")
    assert stations(pools, 0)[:3] == [(0, 1, PREFILL, 0), (1, 5, MOVE, 1), (5, 6, PREFILL, 1)]
    assert pools.outcomes["state"].tolist() == [RequestState.finished]
    late = one([fails(LINK, 0)], on_failure="recompute")  # asked for while it is down for good
    assert stations(late, 0)[:2] == [(0, 1, PREFILL, 0), (1, 2, PREFILL, 1)] and not len(late.table("transfers"))


def test_a_link_that_never_comes_back_fails_whoever_waits_for_it() -> None:
    (outcome,) = one([fails(LINK, 5)]).outcomes
    assert (outcome["state"], outcome["reason"]) == (RequestState.failed, OutcomeReason.link_failed)


def test_kv_lost_with_its_prefill_engine_is_computed_on_another_one() -> None:
    pools = one([fails(0, 5)], prefill=2)
    assert stations(pools, 0)[:4] == [(0, 1, PREFILL, 0), (1, 5, MOVE, 2), (5, 6, PREFILL, 1), (6, 14, MOVE, 2)]
    assert pools.table("transfers")["ended"].tolist() == [TransferEnd.source_lost, TransferEnd.done]
    assert (pools.outcomes["state"][0], pools.outcomes["retries"][0]) == (RequestState.finished, 1)
    here = one([fails(0, 5)], prefill=2, lost_kv="decode")
    assert stations(here, 0)[:3] == [(0, 1, PREFILL, 0), (1, 5, MOVE, 2), (5, 6, PREFILL, 2)]


def test_a_decode_engine_that_fails_while_kv_is_on_its_way_is_replaced() -> None:
    pools = one([fails(1, 5)], decode=2)  # the prefill engine still has the KV
    assert stations(pools, 0)[:4] == [(0, 1, PREFILL, 0), (1, 5, MOVE, 1), (5, 13, MOVE, 2), (13, 14, PREFILL, 2)]
    assert pools.table("transfers")["ended"].tolist() == [TransferEnd.target_lost, TransferEnd.done]


def test_a_decode_engine_that_fails_later_takes_the_kv_with_it() -> None:
    pools = one([fails(1, 15)], decode=2)
    assert [s[2:] for s in stations(pools, 0)][-4:] == [(PREFILL, 0), (MOVE, 2), (PREFILL, 2), (int(Phase.decode), 2)]
    there = one([fails(1, 15)], decode=2, lost_kv="decode")
    assert [s[2:] for s in stations(there, 0)][-2:] == [(PREFILL, 2), (int(Phase.decode), 2)]
    assert there.outcomes["output_tokens"].tolist() == [20]


def test_nobody_comes_back() -> None:
    (outcome,) = one([fails(1, 5)]).outcomes
    assert (outcome["state"], outcome["reason"]) == (RequestState.failed, OutcomeReason.no_replica)
    (outcome,) = one([fails(0, 0)]).outcomes
    assert (outcome["state"], outcome["reason"]) == (RequestState.failed, OutcomeReason.no_replica)
    back = one([fails(1, 5, 50)])
    assert back.outcomes["state"].tolist() == [RequestState.finished] and back.outcomes["e2e_ns"][0] > 50 * MS


def test_a_slow_engine_takes_longer_from_then_on() -> None:
    pools = one([Fault(replica=1, at_ns=12 * MS, until_ns=NEVER, factor=3.0)])
    plain = one([])
    assert pools.outcomes["ttft_ns"][0] == plain.outcomes["ttft_ns"][0]
    assert pools.outcomes["e2e_ns"][0] > 2 * plain.outcomes["e2e_ns"][0]


def _drawn(engines: int, draw: st.DrawFn, *, end: bool) -> list[Fault]:
    faults = []
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.sampled_from([0, 3_000, 20_000, 60_000, 300_000]))
        until = at + draw(st.sampled_from([1, 15_000, 200_000]))
        until = until if end or draw(st.booleans()) else NEVER
        factor = draw(st.sampled_from([0.0, 0.0, 0.0, 2.5]))
        replica = draw(st.integers(0 if factor else LINK, engines - 1))
        faults.append(Fault(replica=replica, at_ns=at, until_ns=until, factor=factor))
    return faults


@st.composite
def failing(draw: st.DrawFn, end: bool) -> tuple[dict[str, SchedulerConfig], Rules, list[Fault]]:
    engines, rules = draw(pool_setups())
    rules = replace(
        rules,
        pd=replace(rules.pd, lost_kv=draw(st.sampled_from(["prefill", "decode"]))),
        kv_link=replace(rules.kv_link, on_failure=draw(st.sampled_from(["retry", "recompute"]))),
    )
    return engines, rules, _drawn(rules.pd.prefill + rules.pd.decode, draw, end=end)


@settings(max_examples=250, deadline=None)
@given(rows=traffic(), setup=failing(end=True), latency=latencies)
def test_when_all_comes_back_nobody_is_lost(
    rows: list[Row], setup: tuple[dict[str, SchedulerConfig], Rules, list[Fault]], latency: Latency
) -> None:
    engines, rules, faults = setup
    pools = play(RowSource(rows), engines, rules, latency, faults=faults)
    assert pools.how == "finished"
    check(pools, rows, failures=True)
    if rules.front_door.timeout_s is None:
        assert set(pools.outcomes["state"].tolist()) <= {RequestState.finished}


@settings(max_examples=150, deadline=None)
@given(rows=traffic(cancels=True), setup=failing(end=False), latency=latencies)
def test_whatever_fails_every_request_ends_once(
    rows: list[Row], setup: tuple[dict[str, SchedulerConfig], Rules, list[Fault]], latency: Latency
) -> None:
    engines, rules, faults = setup
    pools = play(RowSource(rows), engines, rules, latency, faults=faults)
    assert pools.how == "finished"
    check(pools, rows, cancels=True, failures=True, whole=False)


@pytest.mark.parametrize(
    ("text", "slow", "fault"),
    [
        ("link@60s:5s", False, Fault(replica=LINK, at_ns=60 * 10**9, until_ns=65 * 10**9)),
        ("P1@60s:30s", False, Fault(replica=1, at_ns=60 * 10**9, until_ns=90 * 10**9)),
        ("D2@1m", False, Fault(replica=4, at_ns=60 * 10**9)),
        ("D0@60s:2x:30s", True, Fault(replica=2, at_ns=60 * 10**9, until_ns=90 * 10**9, factor=2.0)),
    ],
)
def test_a_fault_as_it_is_typed(text: str, slow: bool, fault: Fault) -> None:
    assert parse_pd_fault(text, slow=slow, prefill=2, decode=3, option="--fail") == fault


@pytest.mark.parametrize(
    ("text", "slow", "message"),
    [
        ("P2@60s", False, r"--fail 'P2@60s': no such engine; expected P0 to P1"),
        ("replica1@60s", False, r"not a fault of separate pools; expected P1@60s:30s, D1@60s \(for good\) or link@60s:5s"),
        ("link@60s:2x", True, r"not a fault of separate pools; expected P1@60s:2x"),
        ("link@soon", False, r"--fail .*not a fault"),
        ("D1@60s:0s", False, r"--fail 'D1@60s:0s': lasts no time"),
    ],
)
def test_what_is_no_fault_is_refused(text: str, slow: bool, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_pd_fault(text, slow=slow, prefill=2, decode=3, option="--fail")
