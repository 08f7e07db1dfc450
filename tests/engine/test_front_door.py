"""The front door, the client's limit and timeouts from outside: what a replay writes, held against the rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_engine.config import ConfigError, SchedulerConfig
from replay_engine.expected import UNKNOWN_OUTPUT, ExpectedOutput, LengthQuantile
from replay_engine.front_door import DoorFacts
from replay_engine.loop import Replay, RunState
from replay_engine.profile import Latency
from replay_engine.quotas import TokenBucket
from replay_engine.rules import Client, FrontDoorRules, Rules
from replay_engine.simulator import SimExecutor
from replay_engine.sinks import MemorySink
from replay_engine.tables import TABLES, Decision, OutcomeReason
from replay_engine.types import Phase, Request, RequestBatch, RequestState
from tests.engine.traffic import Row, RowSource, latencies, schedulers

MANY = settings(max_examples=150, deadline=None)
NAMES = ("ann", "bob")
ENTERS = (Decision.admit, Decision.degrade)


@dataclass(frozen=True)
class Asked(Row):
    """A row with a tenant's code, ``max_tokens`` and a prediction (-1: unknown)."""

    tenant: int = -1
    limit: int = -1
    predicted: int = -1


class AskedSource(RowSource):
    def batches(self) -> Iterator[RequestBatch]:
        for batch in super().batches():
            rows: list[Any] = [self.rows[i] for i in batch.index]
            yield replace(
                batch,
                tenant=np.array([r.tenant for r in rows], np.int32),
                max_tokens=np.array([r.limit for r in rows]),
                predicted_tokens=np.array([r.predicted for r in rows]),
            )


asked = st.lists(
    st.builds(
        Asked,
        gap=st.sampled_from([0, 0, 1, 900, 5_000, 40_000, 400_000]),
        prompt=st.integers(1, 170),
        output=st.one_of(st.integers(1, 4), st.integers(5, 60)),
        priority=st.integers(0, 2),
        group=st.integers(0, 2),
        shared=st.integers(0, 8),
        cancel=st.sampled_from([-1, -1, -1, -1, 0, 7_000, 60_000]),
        tenant=st.integers(-1, 1),
        limit=st.sampled_from([-1, 5, 70]),
        predicted=st.sampled_from([-1, 1, 30]),
    ),
    min_size=1,
    max_size=40,
)


def maybe(values: st.SearchStrategy[Any], *, often: bool = False) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), values, values) if often else st.one_of(st.none(), st.none(), st.none(), values)


quota = st.fixed_dictionaries(
    {},
    optional={
        "quota_tokens_per_s": st.sampled_from([0.5, 2e5, 3.3e7]),
        "quota_burst_tokens": st.sampled_from([0, 90, 400.5]),
        "quota_concurrent": st.integers(0, 3),
    },
)
doors = st.builds(
    FrontDoorRules,
    max_queued_reqs=maybe(st.integers(1, 6)),
    max_queued_tokens=maybe(st.integers(50, 400)),
    max_prompt_tokens=maybe(st.integers(20, 100)),
    max_expected_tokens=maybe(st.integers(2, 60)),
    quota_tokens_per_s=maybe(st.sampled_from([0.5, 2e5, 3.3e7])),
    quota_burst_tokens=maybe(st.sampled_from([100, 1000])),
    quota_concurrent=maybe(st.integers(1, 4)),
    quotas=st.one_of(st.just({}), st.fixed_dictionaries({"bob": quota})),
    degrade_above_kv=maybe(st.sampled_from([0.0, 0.2, 0.7])),
    degrade_above_queue=maybe(st.integers(0, 3)),
    degrade_to_tokens=st.sampled_from([1, 3, 20]),
    reject_above_kv=maybe(st.sampled_from([0.1, 0.6])),
    reject_hopeless=st.booleans(),
    expected=st.sampled_from(["max_tokens", "predicted", "quantile"]),
    expected_quantile=st.sampled_from([0.5, 0.9]),
    queue_timeout_s=maybe(st.sampled_from([0.0, 3e-6, 2.5e-5])),
    timeout_s=maybe(st.sampled_from([1e-6, 2e-5, 1.0001e-4])),
)
clients = st.builds(Client, max_in_flight=maybe(st.integers(1, 5), often=True), arrival=st.sampled_from(["meant", "slot"]))
rule_sets = st.builds(Rules, front_door=doors, client=clients)


def door_replay(
    rows: list[Asked], config: SchedulerConfig, latency: Latency, rules: Rules, *, coast: bool = True, slo_ns: int = 20_000
) -> tuple[MemorySink, RunState]:
    sink = MemorySink()
    executor = SimExecutor(latency, asynchronous=config.async_scheduling)
    facts = DoorFacts(latency=latency, ttft_slo_ns=slo_ns, tenants=NAMES)
    state = Replay(AskedSource(list(rows)), config, executor, sink, rules=rules, facts=facts, coast=coast).run()
    return sink, state


def meant_ns(rows: list[Asked]) -> list[int]:
    return [int(at) for at in np.cumsum([r.gap for r in rows])]


def ends(rows: list[Asked], sink: MemorySink, rules: Rules) -> dict[int, int]:
    """When each request was over for its client: last token, cancel, timeout, or the refusal."""
    at: dict[int, int] = {}
    refused = {int(d["request"]): int(d["at_ns"]) for d in sink.table("decisions") if d["decision"] == Decision.reject}
    for row in sink.table("outcomes"):
        index, arrival = int(row["request"]), int(row["arrival_ns"])
        reason = OutcomeReason(int(row["reason"]))
        if row["state"] == RequestState.finished:
            at[index] = int(row["last_token_ns"])
        elif row["state"] == RequestState.rejected:
            at[index] = refused[index]
        elif row["state"] == RequestState.cancelled:
            at[index] = arrival + rows[index].cancel
        elif row["state"] == RequestState.timed_out:
            door = rules.front_door
            seconds = door.queue_timeout_s if reason == OutcomeReason.queue_timeout else door.timeout_s
            assert seconds is not None
            at[index] = arrival + round(seconds * 1e9)
        else:
            at[index] = 1 << 62
    return at


@MANY
@given(rows=asked, config=schedulers(), latency=latencies, rules=rule_sets)
def test_stretches_write_the_same_bytes_under_every_rule(
    rows: list[Asked], config: SchedulerConfig, latency: Latency, rules: Rules
) -> None:
    fast, how = door_replay(rows, config, latency, rules)
    slow, how_too = door_replay(rows, config, latency, rules, coast=False)
    assert how == how_too
    for table in TABLES:
        left, right = np.sort(fast.table(table)), np.sort(slow.table(table))
        assert left.tobytes() == right.tobytes(), table


@MANY
@given(rows=asked, config=schedulers(), latency=latencies, rules=rule_sets)
def test_every_request_ends_once_for_a_reason_and_its_life_has_no_holes(
    rows: list[Asked], config: SchedulerConfig, latency: Latency, rules: Rules
) -> None:
    sink, how = door_replay(rows, config, latency, rules)
    outcomes, decisions = sink.table("outcomes"), sink.table("decisions")
    assert sorted(outcomes["request"].tolist()) == list(range(len(rows)))
    spans = defaultdict(list)
    for span in sink.table("spans"):
        spans[int(span["request"])].append(span)
    verdicts = {int(d["request"]): d for d in decisions if d["decision"] in (Decision.reject, *ENTERS)}
    assert len(verdicts) == sum(d["decision"] in (Decision.reject, *ENTERS) for d in decisions), "each is decided once"
    for row in outcomes:
        own = spans[int(row["request"])]
        rejected = row["state"] == RequestState.rejected
        verdict = verdicts.get(int(row["request"]))
        assert rejected == (verdict is not None and verdict["decision"] == Decision.reject)
        if rejected:
            assert verdict is not None and verdict["reason"] == row["reason"]
        if own:
            assert own[0]["start_ns"] == row["arrival_ns"]
        for left, right in zip(own, own[1:], strict=False):
            assert left["end_ns"] == right["start_ns"]
            assert left["start_ns"] <= left["end_ns"]
        if row["state"] == RequestState.finished:
            assert sum(int(s["end_ns"] - s["start_ns"]) for s in own) == row["e2e_ns"]
            assert 0 <= row["queue_ns"] <= row["ttft_ns"] <= row["e2e_ns"]
        assert len({int(s["phase"]) for s in own} & {int(Phase.dispatch)}) <= (rules.client.max_in_flight is not None)
    assert how == "finished" or set(outcomes["reason"]) & {int(OutcomeReason.no_progress)}


@MANY
@given(rows=asked, config=schedulers(), latency=latencies, rules=rule_sets)
def test_tokens_of_those_who_left_early_are_counted_to_the_token(
    rows: list[Asked], config: SchedulerConfig, latency: Latency, rules: Rules
) -> None:
    sink, _ = door_replay(rows, config, latency, rules)
    ended = {int(r["iteration"]): int(r["start_ns"] + r["duration_ns"]) for r in sink.table("iterations")}
    tokens: dict[int, int] = defaultdict(int)
    prefilled = {int(s["request"]): s for s in sink.table("spans") if s["phase"] == Phase.prefill}
    spans = sink.table("spans")
    followed = {(int(s["request"]), int(s["start_ns"])) for s in spans if s["phase"] == Phase.decode}
    for span in spans:
        if span["phase"] == Phase.decode:
            tokens[int(span["request"])] += span["end_iteration"] - span["start_iteration"] + 1
            assert all(ended[n] <= span["end_ns"] for n in range(span["start_iteration"], span["end_iteration"] + 1))
        elif span["phase"] == Phase.prefill and (int(span["request"]), int(span["end_ns"])) in followed:
            tokens[int(span["request"])] += 1
    for row in sink.table("outcomes"):
        index = int(row["request"])
        if row["state"] in (RequestState.cancelled, RequestState.timed_out) and index in prefilled and tokens[index]:
            assert row["output_tokens"] == tokens[index]
        if row["state"] == RequestState.rejected or index not in prefilled:
            assert row["output_tokens"] == 0


@MANY
@given(rows=asked, config=schedulers(), latency=latencies, rules=rule_sets)
def test_quotas_hold_over_every_window(rows: list[Asked], config: SchedulerConfig, latency: Latency, rules: Rules) -> None:
    rules = replace(rules, front_door=replace(rules.front_door, expected="max_tokens"))
    rows = [replace(r, limit=max(r.limit, 5)) for r in rows]
    sink, _ = door_replay(rows, config, latency, rules)
    door = rules.front_door
    over = ends(rows, sink, rules)
    came: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for row in sink.table("decisions"):
        index, at = int(row["request"]), int(row["at_ns"])
        asked_by = rows[index].tenant
        own = dict.fromkeys(("quota_tokens_per_s", "quota_burst_tokens", "quota_concurrent"))
        own = {name: getattr(door, name) for name in own} | (door.quotas.get("bob", {}) if asked_by == 1 else {})
        if row["decision"] not in ENTERS:
            continue
        most = door.degrade_to_tokens if row["decision"] == Decision.degrade else 1 << 40
        charge = rows[index].prompt + max(min(rows[index].limit, most, config.max_model_len - rows[index].prompt), 1)
        before = came[asked_by]
        if own["quota_concurrent"] is not None:
            assert sum(over[other] > at for _, _, other in before) < own["quota_concurrent"]
        before.append((at, charge, index))
        rate = own["quota_tokens_per_s"]
        if rate is not None:
            burst = own["quota_burst_tokens"] if own["quota_burst_tokens"] is not None else rate * 60
            for first in range(len(before)):
                used = sum(tokens for _, tokens, _ in before[first:])
                assert used <= Fraction(burst) + Fraction(rate) * (at - before[first][0]) / 10**9


@MANY
@given(rows=asked, config=schedulers(), latency=latencies, rules=rule_sets)
def test_the_client_never_has_more_in_flight_and_keeps_the_order(
    rows: list[Asked], config: SchedulerConfig, latency: Latency, rules: Rules
) -> None:
    limit = rules.client.max_in_flight or 2
    rules = replace(rules, client=replace(rules.client, max_in_flight=limit))
    sink, _ = door_replay(rows, config, latency, rules)
    outcomes = {int(r["request"]): r for r in sink.table("outcomes")}
    over = ends(rows, sink, rules)
    held = {int(d["request"]): d for d in sink.table("decisions") if d["decision"] == Decision.hold}
    dispatched = {int(s["request"]): s for s in sink.table("spans") if s["phase"] == Phase.dispatch}
    meant = meant_ns(rows)
    sent: dict[int, int] = {}
    for index in range(len(rows)):
        if index in held:
            sent[index] = int(held[index]["at_ns"])
            assert sent[index] == meant[index] + held[index]["value"]
            assert sent[index] in {over[other] for other in over if other != index}, "released when another ends"
        elif index not in dispatched:
            sent[index] = meant[index]
        if index in sent:
            clock = meant[index] if rules.client.arrival == "meant" else sent[index]
            assert outcomes[index]["arrival_ns"] == clock
            assert (index in dispatched) == (index in held and rules.client.arrival == "meant")
        else:
            assert outcomes[index]["state"] != RequestState.finished
            assert outcomes[index]["arrival_ns"] == meant[index]
    assert list(sent.values()) == sorted(sent.values())
    order = list(sent)
    for place, index in enumerate(order):
        assert sum(over[other] > sent[index] for other in order[:place]) < limit


@MANY
@given(rows=asked, config=schedulers(), latency=latencies, rules=rule_sets)
def test_the_queue_bound_holds_for_everybody_let_in(
    rows: list[Asked], config: SchedulerConfig, latency: Latency, rules: Rules
) -> None:
    bound = rules.front_door.max_queued_reqs or 3
    config = replace(config, async_scheduling=False)
    rules = replace(rules, front_door=replace(rules.front_door, max_queued_reqs=bound))
    sink, _ = door_replay(rows, config, latency, rules)
    early = {int(r["request"]) for r in sink.table("outcomes") if r["state"] in (RequestState.cancelled, RequestState.timed_out)}
    spans = list(sink.table("spans"))
    last = {int(s["request"]): s for s in spans}
    queued = [s for s in spans if s["phase"] in (Phase.queued, Phase.preempted)]
    places: dict[int, int] = {}
    for place, row in enumerate(sink.table("decisions")):
        if row["decision"] in (Decision.reject, *ENTERS):
            places[int(row["request"])] = place
    for place, row in enumerate(sink.table("decisions")):
        if row["reason"] != OutcomeReason.queue_requests and row["decision"] not in ENTERS:
            continue
        at, waiting = row["at_ns"], 0
        for span in queued:
            index = int(span["request"])
            begun = places[index] < place and span["start_ns"] <= at if span["phase"] == Phase.queued else span["start_ns"] < at
            gave_up = index in early and span is last[index]
            waiting += bool(begun) and (span["end_ns"] > at or (span["end_ns"] == at and not gave_up))
        if row["decision"] in ENTERS:
            assert waiting < bound
        if row["reason"] == OutcomeReason.queue_requests:
            assert row["value"] == waiting


@MANY
@given(rows=asked, config=schedulers(), latency=latencies, rules=rule_sets)
def test_timeouts_are_exact(rows: list[Asked], config: SchedulerConfig, latency: Latency, rules: Rules) -> None:
    queue_ns, whole_ns = 12_345, 50_001
    door = replace(rules.front_door, queue_timeout_s=queue_ns / 1e9, timeout_s=whole_ns / 1e9)
    sink, how = door_replay(rows, config, latency, replace(rules, front_door=door))
    last: dict[int, Any] = {int(s["request"]): s for s in sink.table("spans")}
    given_up = {int(d["request"]): d for d in sink.table("decisions") if d["decision"] == Decision.give_up}
    for row in sink.table("outcomes"):
        index, arrival = int(row["request"]), int(row["arrival_ns"])
        timed_out = row["state"] == RequestState.timed_out
        assert timed_out == (index in given_up)
        if row["state"] == RequestState.finished:
            assert row["e2e_ns"] <= whole_ns
        if row["queue_ns"] >= 0 and not config.async_scheduling:
            assert row["queue_ns"] < queue_ns
        if not timed_out:
            continue
        limit = queue_ns if row["reason"] == OutcomeReason.queue_timeout else whole_ns
        assert (given_up[index]["at_ns"], given_up[index]["bound"]) == (arrival + limit, limit)
        assert given_up[index]["reason"] == row["reason"]
        assert row["e2e_ns"] == -1
        if row["reason"] == OutcomeReason.queue_timeout:
            assert row["queue_ns"] == -1
            assert last[index]["phase"] in (Phase.queued, Phase.dispatch)
            assert last[index]["end_ns"] == arrival + queue_ns
        else:
            assert last[index]["end_ns"] >= arrival + whole_ns
    assert how in ("finished", "no_progress")


@MANY
@given(rows=asked, config=schedulers(), latency=latencies, rules=rule_sets)
def test_degraded_answers_are_cut_to_length(rows: list[Asked], config: SchedulerConfig, latency: Latency, rules: Rules) -> None:
    most = rules.front_door.degrade_to_tokens
    if rules.front_door.degrade_above_queue is None:
        rules = replace(rules, front_door=replace(rules.front_door, degrade_above_queue=0, timeout_s=None))
    sink, _ = door_replay(rows, config, latency, rules)
    cut = {int(d["request"]) for d in sink.table("decisions") if d["decision"] == Decision.degrade}
    for row in sink.table("outcomes"):
        index = int(row["request"])
        whole = min(rows[index].output, config.max_model_len - rows[index].prompt)
        assert row["degraded"] == (index in cut and whole > most)
        if row["state"] == RequestState.finished:
            assert row["output_tokens"] == (min(whole, most) if index in cut else whole)
        if index in cut:
            assert rows[index].limit < 0 or rows[index].limit > most


@MANY
@given(rows=asked, config=schedulers(), latency=latencies)
def test_who_is_called_hopeless_would_have_missed_its_slo(rows: list[Asked], config: SchedulerConfig, latency: Latency) -> None:
    """Up to the first refusal both replays are the same; there, the one without the rule shows what would have been."""
    rows = [replace(r, cancel=-1) for r in rows]
    with_rule, _ = door_replay(rows, config, latency, Rules(front_door=FrontDoorRules(reject_hopeless=True)), slo_ns=6_000)
    refused = [d for d in with_rule.table("decisions") if d["reason"] == OutcomeReason.ttft_unreachable]
    if not refused:
        return
    assert refused[0]["value"] > refused[0]["bound"] == 6_000
    without, how = door_replay(rows, config, latency, Rules())
    first = without.table("outcomes")[without.table("outcomes")["request"] == refused[0]["request"]][0]
    if first["state"] == RequestState.finished:
        assert first["ttft_ns"] >= refused[0]["value"]
    else:
        assert how == "no_progress"


CALM = SchedulerConfig(
    max_num_batched_tokens=512, max_num_seqs=64, max_model_len=512, num_gpu_blocks=2000, async_scheduling=False,
    enable_prefix_caching=False,
)  # fmt: skip
TENTH = Latency(floor_ns=100.0)
"""Every iteration takes 100 ns."""


def outcome_of(sink: MemorySink) -> dict[int, tuple[str, str, int]]:
    """State, reason and output tokens by request."""
    return {
        int(r["request"]): (RequestState(int(r["state"])).name, OutcomeReason(int(r["reason"])).name, int(r["output_tokens"]))
        for r in sink.table("outcomes")
    }


def test_a_bucket_by_value() -> None:
    rows = [Asked(0, 60, 10, tenant=0, limit=40), Asked(0, 1, 1, tenant=0, limit=1), Asked(10**9, 40, 10, tenant=0, limit=10)]
    door = FrontDoorRules(quota_tokens_per_s=50, quota_burst_tokens=100)
    sink, _ = door_replay(rows, CALM, TENTH, Rules(front_door=door))
    assert outcome_of(sink) == {
        0: ("finished", "none", 10), 1: ("rejected", "quota_tokens", 0), 2: ("finished", "none", 10),
    }  # fmt: skip
    refusal = sink.table("decisions")[1]
    assert (refusal["value"], refusal["bound"], refusal["at_ns"]) == (2, 0, 0)


def test_a_tenants_own_quota_goes_before_the_general_one() -> None:
    rows = [Asked(0, 10, 50, tenant=i % 2) for i in range(6)]
    door = FrontDoorRules(quota_concurrent=2, quotas={"bob": {"quota_concurrent": 1}})
    sink, _ = door_replay(rows, CALM, TENTH, Rules(front_door=door))
    refused = sink.table("decisions")[sink.table("decisions")["decision"] == Decision.reject]
    assert refused["request"].tolist() == [3, 4, 5]
    assert refused["bound"].tolist() == [1, 2, 1]
    assert set(refused["reason"]) == {int(OutcomeReason.quota_concurrent)}


def test_a_held_request_waits_at_the_client_and_its_clock_runs() -> None:
    rows = [Asked(0, 10, 3), Asked(50, 10, 2)]
    sink, _ = door_replay(rows, CALM, TENTH, Rules(client=Client(max_in_flight=1)))
    spans = [(int(s["request"]), Phase(int(s["phase"])).name, int(s["start_ns"]), int(s["end_ns"])) for s in sink.table("spans")]
    assert [s for s in spans if s[0] == 1] == [
        (1, "dispatch", 50, 300), (1, "queued", 300, 300), (1, "prefill", 300, 400), (1, "decode", 400, 500),
    ]  # fmt: skip
    second = sink.table("outcomes")[1]
    assert (second["queue_ns"], second["ttft_ns"], second["e2e_ns"], second["arrival_ns"]) == (250, 350, 450, 50)
    sink, _ = door_replay(rows, CALM, TENTH, Rules(client=Client(max_in_flight=1, arrival="slot")))
    second = sink.table("outcomes")[1]
    assert (second["queue_ns"], second["ttft_ns"], second["e2e_ns"], second["arrival_ns"]) == (0, 100, 200, 300)
    (hold,) = sink.table("decisions")
    assert (hold["decision"], hold["at_ns"], hold["value"], hold["bound"]) == (Decision.hold, 300, 250, 1)


@MANY
@given(rows=asked, config=schedulers(), latency=latencies)
def test_a_client_limit_that_never_binds_changes_nothing(rows: list[Asked], config: SchedulerConfig, latency: Latency) -> None:
    free, _ = door_replay(rows, config, latency, Rules())
    wide, _ = door_replay(rows, config, latency, Rules(client=Client(max_in_flight=len(rows))))
    for table in TABLES:
        assert np.sort(free.table(table)).tobytes() == np.sort(wide.table(table)).tobytes(), table


@pytest.mark.parametrize("coast", [True, False])
def test_a_slot_is_filled_while_others_go_on(coast: bool) -> None:
    rows = [Asked(0, 10, 50), Asked(0, 10, 5), Asked(0, 10, 5), Asked(0, 10, 2)]
    sink, _ = door_replay(rows, CALM, TENTH, Rules(client=Client(max_in_flight=2)), coast=coast)
    outcomes = {int(r["request"]): (int(r["queue_ns"]), int(r["last_token_ns"])) for r in sink.table("outcomes")}
    assert outcomes == {0: (0, 5000), 1: (0, 500), 2: (500, 1000), 3: (1000, 1200)}


def test_a_cancel_while_held_ends_the_request_at_the_client() -> None:
    rows = [Asked(0, 10, 9), Asked(0, 10, 2, cancel=333), Asked(0, 10, 2)]
    sink, _ = door_replay(rows, CALM, TENTH, Rules(client=Client(max_in_flight=1)))
    assert outcome_of(sink)[1] == ("cancelled", "client_cancelled", 0)
    own = sink.table("spans")[sink.table("spans")["request"] == 1]
    assert [(int(s["phase"]), int(s["start_ns"]), int(s["end_ns"])) for s in own] == [(Phase.dispatch, 0, 333)]
    assert outcome_of(sink)[2][0] == "finished"


def test_a_last_token_after_the_timeout_comes_too_late() -> None:
    rows = [Asked(0, 10, 3)]
    for limit, state in ((299, "timed_out"), (300, "finished")):
        sink, _ = door_replay(rows, CALM, TENTH, Rules(front_door=FrontDoorRules(timeout_s=limit / 1e9)))
        assert outcome_of(sink)[0][0] == state
        given_up = [(int(d["at_ns"]), int(d["decision"]), int(d["reason"])) for d in sink.table("decisions")]
        assert given_up == ([(299, Decision.give_up, OutcomeReason.timeout)] if state == "timed_out" else [])


def test_a_request_that_ends_makes_room_from_that_moment_on() -> None:
    rows = [Asked(0, 10, 3, tenant=0), Asked(299, 10, 1, tenant=0), Asked(1, 10, 1, tenant=0)]
    sink, _ = door_replay(rows, CALM, TENTH, Rules(front_door=FrontDoorRules(quota_concurrent=1)))
    assert [outcome_of(sink)[i][1] for i in range(3)] == ["none", "quota_concurrent", "none"]


def test_an_answer_is_cut_where_the_queue_is_long() -> None:
    rows = [Asked(0, 10, 30), Asked(0, 10, 30, limit=100), Asked(0, 10, 2), Asked(0, 10, 9, limit=4)]
    door = FrontDoorRules(degrade_above_queue=0, degrade_to_tokens=4)
    sink, _ = door_replay(rows, CALM, TENTH, Rules(front_door=door))
    outcomes = sink.table("outcomes")
    found = {int(r["request"]): (int(r["output_tokens"]), bool(r["degraded"])) for r in outcomes}
    # the first finds an empty queue, the third would have stopped by itself, the fourth may not be longer anyway
    assert found == {0: (30, False), 1: (4, True), 2: (2, False), 3: (9, False)}
    decisions = sink.table("decisions")
    assert decisions["decision"].tolist() == [Decision.admit, Decision.degrade, Decision.degrade, Decision.admit]
    assert decisions["value"].tolist() == [-1, 1, 2, -1]


def test_only_rules_that_may_turn_away_write_a_row_for_everybody() -> None:
    rows = [Asked(0, 10, 3), Asked(0, 600, 3)]
    sink, _ = door_replay(rows, CALM, TENTH, Rules(front_door=FrontDoorRules(timeout_s=5)))
    assert sink.table("decisions")["request"].tolist() == [1]
    sink, _ = door_replay(rows, CALM, TENTH, Rules(front_door=FrontDoorRules(max_queued_reqs=5)))
    assert sink.table("decisions")["decision"].tolist() == [Decision.admit, Decision.reject]
    assert outcome_of(sink)[1] == ("rejected", "prompt_too_long", 0)


def test_queued_tokens_are_counted_as_they_come() -> None:
    rows = [Asked(0, 100, 1), Asked(0, 100, 1), Asked(0, 100, 1), Asked(50, 60, 1), Asked(0, 100, 1), Asked(0, 100, 1)]
    sink, _ = door_replay(rows, CALM, TENTH, Rules(front_door=FrontDoorRules(max_queued_tokens=250)))
    refused = [d for d in sink.table("decisions") if d["decision"] == Decision.reject]
    assert [(int(d["request"]), int(d["value"]), int(d["bound"])) for d in refused] == [(2, 300, 250), (5, 260, 250)]


PER_TOKEN = Latency(b_ns=1.0)
HOPELESS = Rules(front_door=FrontDoorRules(reject_hopeless=True))


@pytest.mark.parametrize(("order", "refused"), [("priority", {3: 2000}), ("fcfs", {3: 2000, 4: 2000, 5: 2000})])
def test_only_who_is_ahead_counts(order: Any, refused: dict[int, int]) -> None:
    rows = [Asked(0, 500, 1, priority=2)] * 4 + [Asked(0, 500, 1, priority=0), Asked(0, 500, 1, priority=1)]
    sink, _ = door_replay(rows, replace(CALM, policy=order), PER_TOKEN, HOPELESS, slo_ns=1500)
    late = [d for d in sink.table("decisions") if d["reason"] == OutcomeReason.ttft_unreachable]
    assert {int(d["request"]): int(d["value"]) for d in late} == refused


@pytest.mark.parametrize(("caching", "first", "second"), [(True, None, 160), (False, 400, 400)])
def test_what_the_cache_may_hold_is_no_reason_to_give_up(caching: bool, first: int | None, second: int) -> None:
    rows = [Asked(0, 400, 1, shared=40), Asked(0, 400, 1, shared=40)]
    sink, _ = door_replay(rows, replace(CALM, enable_prefix_caching=caching), PER_TOKEN, HOPELESS, slo_ns=100)
    late = {int(d["request"]): int(d["value"]) for d in sink.table("decisions") if d["reason"] == OutcomeReason.ttft_unreachable}
    assert (late.get(0), late.get(1)) == (first, second)


def test_hopeless_needs_an_slo() -> None:
    rules = Rules(front_door=FrontDoorRules(reject_hopeless=True))
    with pytest.raises(ConfigError, match="no TTFT SLO"):
        Replay(AskedSource([]), CALM, SimExecutor(TENTH, asynchronous=False), MemorySink(), rules=rules)


@given(lengths=st.lists(st.integers(1, 300), max_size=60), share=st.sampled_from([0.0, 0.01, 0.5, 0.9, 1.0]))
def test_the_learnt_quantile_is_the_order_statistic(lengths: list[int], share: float) -> None:
    quantile = LengthQuantile(share, 300)
    assert quantile.value() is None
    for n, length in enumerate(lengths, 1):
        quantile.add(length)
        assert quantile.value() == np.quantile(lengths[:n], share, method="inverted_cdf")


@pytest.mark.parametrize(
    ("source", "limit", "predicted", "wanted"),
    [
        ("max_tokens", 50, 30, 50), ("max_tokens", None, 30, 30), ("max_tokens", None, None, 7),
        ("predicted", 50, 30, 30), ("predicted", 20, 30, 20), ("predicted", None, None, 7),
        ("quantile", 50, 30, 7), ("quantile", 3, 30, 3),
    ],
)  # fmt: skip
def test_what_stands_for_the_output_length(source: Any, limit: int | None, predicted: int | None, wanted: int) -> None:
    request = Request(
        index=0, request_id="0", arrival_ns=0, prompt_tokens=10, output_tokens=9, max_tokens=limit, predicted_tokens=predicted
    )
    guess = ExpectedOutput(FrontDoorRules(expected=source), 1000)
    if limit is None and predicted is None:
        assert guess.of(request) == UNKNOWN_OUTPUT
    guess.learn(7)
    assert guess.of(request) == wanted


@given(
    takes=st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 200)), max_size=40),
    rate=st.floats(0, 1e4),
    burst=st.floats(0, 500),
)
def test_a_bucket_never_gives_more_than_its_rate_and_burst(takes: list[tuple[int, int]], rate: float, burst: float) -> None:
    bucket, at = TokenBucket(rate, burst), 0
    given_out: list[tuple[int, int]] = []
    exact_rate, exact_burst = Fraction(round(rate * 10**6), 10**6), Fraction(round(burst * 10**6), 10**6)
    level = exact_burst
    for gap, tokens in takes:
        at += gap
        level = min(exact_burst, level + exact_rate * gap / 10**9)
        took = bucket.take(tokens, at)
        assert took == (tokens <= level)
        level -= tokens if took else 0
        given_out += [(at, tokens)] if took else []
    for first in range(len(given_out)):
        for last in range(first, len(given_out)):
            used = sum(tokens for _, tokens in given_out[first : last + 1])
            assert used <= exact_burst + exact_rate * (given_out[last][0] - given_out[first][0]) / 10**9
