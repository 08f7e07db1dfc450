"""Where the time went: parts that sum to the whole whatever ran, and the parts that somebody finds who walks the iterations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_engine.config import SchedulerConfig
from replay_engine.fleet.faults import Fault
from replay_engine.pd_rules import Pd
from replay_engine.profile import Latency
from replay_engine.rules import Client, Preemption, Rules
from replay_engine.simulator import SimExecutor, SkewedExecutor
from replay_engine.tables import TABLES
from replay_engine.types import NEVER, Phase, Refusal
from tests.engine.policy_runs import FLAT, MILLISECOND, knobs, tell
from tests.engine.test_front_door import Asked, AskedSource, asked, clients
from tests.engine.test_policies import allowed, rule_sets, run
from tests.engine.traffic import Row, RowSource, latencies, schedulers, traffic
from tests.fleet.fleets import ROUTERS, fleet
from tests.fleet.pools import play
from tests.fleet.test_faults import faults
from tests.fleet.test_pd_replay import both, link, pool_setups
from tracekit.diagnosis.attribution import PARTS, Attribution, Blame
from tracekit.diagnosis.iteration_cost import CostForm
from tracekit.diagnosis.run_data import tidy

Rows = npt.NDArray[np.void]
Tables = Mapping[str, Rows]
SOME = settings(max_examples=60, deadline=None)


def tables_of(sink: object) -> dict[str, Rows]:
    return {name: tidy(name, sink.table(name)) for name in TABLES}  # type: ignore[attr-defined]


def blame(tables: Tables, latency: Latency, *configs: SchedulerConfig) -> Blame:
    """``configs``: one an engine, or one for all."""
    several = configs if len(configs) > 1 else configs * 64
    return Blame(tables, {k: CostForm(latency, each.async_scheduling) for k, each in enumerate(several)})


def whole(tables: Tables, found: Attribution) -> None:
    """Parts are times, and sum to what the outcomes say."""
    outcomes = tables["outcomes"]
    assert {name.partition(".")[0] for name in found.parts} <= PARTS.keys()
    assert found.first.min(initial=0) >= 0 and found.later.min(initial=0) >= 0
    assert np.array_equal(found.first.sum(axis=1), found.first_total)
    assert np.array_equal(found.later.sum(axis=1), found.later_total)
    known = outcomes["ttft_ns"] >= 0
    assert np.array_equal(found.first_total[known], outcomes["ttft_ns"][known])
    done = outcomes["e2e_ns"] >= 0
    assert np.array_equal(found.later_total[done], (outcomes["e2e_ns"] - outcomes["ttft_ns"])[done])


def walked(tables: Tables, lag: bool) -> dict[tuple[int, str], int]:
    """(request, part) -> ns of all spans of one engine, iteration by iteration. What others' prefill added is not taken apart
    here: ``prefill`` has ``prefill_shared`` and ``recompute``, ``decode`` has ``interference``."""
    iterations = np.asarray(tables["iterations"]).tolist()
    column = {name: k for k, name in enumerate(tables["iterations"].dtype.names or ())}
    start, length, refused = column["start_ns"], column["duration_ns"], column["head_refused_by"]
    sums: dict[tuple[int, str], int] = defaultdict(int)
    for span in tables["spans"]:
        request, phase, begin, end = (int(span[name]) for name in ("request", "phase", "start_ns", "end_ns"))
        if phase not in (Phase.queued, Phase.decode_queue):
            reason = Refusal(int(span["reason"])).name
            name = Phase(phase).name + (f".{reason}" if phase in (Phase.prefill_wait, Phase.stalled) else "")
            sums[request, name] += end - begin
            continue
        for k, row in enumerate(iterations):
            ends = row[start] + row[length]
            again = iterations[k + 1][start] if k + 1 < len(iterations) else ends
            before = iterations[k - 1] if k else row
            made = before[start] if lag and before[start] + before[length] == row[start] else row[start]
            reason = Refusal(row[refused]).name
            during = max(min(ends, end) - max(row[start], begin), 0)
            sums[request, f"queue.{reason}" if made >= begin else "under_way"] += during
            sums[request, f"queue.{reason}"] += max(min(again, end) - max(ends, begin), 0)
    return {key: ns for key, ns in sums.items() if ns}


def compared(tables: Tables, found: Attribution) -> dict[tuple[int, str], int]:
    """The same, of an attribution."""
    merged = {"prefill_shared": "prefill", "recompute": "prefill", "first_step": "prefill", "interference": "decode"}
    sums: dict[tuple[int, str], int] = defaultdict(int)
    for k, part in enumerate(found.parts):
        for row, ns in enumerate((found.first[:, k] + found.later[:, k]).tolist()):
            sums[int(tables["outcomes"]["request"][row]), merged.get(part, part)] += ns
    return {key: ns for key, ns in sums.items() if ns}


@pytest.mark.timeout(300)
@SOME
@given(rows=asked, config=schedulers(), rules=rule_sets, latency=latencies)
def test_parts_are_those_of_a_walk_under_every_policy(
    rows: list[Asked], config: SchedulerConfig, rules: Rules, latency: Latency
) -> None:
    config, rules = allowed(config, rules)
    _, sink, how = run(rows, config, rules, latency)
    tables = tables_of(sink)
    found = blame(tables, latency, config).within()
    whole(tables, found)
    if how == "finished":
        assert "not_explained" not in found.parts
        assert compared(tables, found) == walked(tables, config.async_scheduling)


@pytest.mark.timeout(300)
@SOME
@given(
    rows=asked, config=schedulers(), rules=rule_sets, latency=latencies, router=st.sampled_from(ROUTERS), planned=faults,
    client=clients,
)  # fmt: skip
def test_replicas_that_fail_and_clients_that_wait_lose_no_time(
    rows: list[Asked], config: SchedulerConfig, rules: Rules, latency: Latency, router: str, planned: list[Fault], client: Client
) -> None:
    config, rules = allowed(config, replace(rules, client=client))
    told = fleet(AskedSource(list(rows)), config, latency, router, 3, rules=rules, faults=planned)
    tables = tables_of(told.sink)
    found = blame(tables, latency, config).within()
    whole(tables, found)
    assert "not_explained" not in found.parts


@pytest.mark.timeout(300)
@SOME
@given(rows=traffic(cancels=True), setup=pool_setups(), latency=latencies)
def test_separate_pools_lose_no_time(rows: list[Row], setup: tuple[dict[str, SchedulerConfig], Rules], latency: Latency) -> None:
    engines, rules = setup
    pools = play(RowSource(rows), engines, rules, latency)
    tables = tables_of(pools.sink)
    configs = [engines["prefill"]] * rules.pd.prefill + [engines["decode"]] * rules.pd.decode
    found = blame(tables, latency, *configs).within()
    whole(tables, found)
    assert "not_explained" not in found.parts


@SOME
@given(rows=traffic(), config=schedulers(), latency=latencies)
def test_interference_is_what_the_same_iteration_takes_without_prefill(
    rows: list[Row], config: SchedulerConfig, latency: Latency
) -> None:
    told = tell(rows, config, latency=latency)
    tables = tables_of(told.sink)
    found = blame(tables, latency, config).within()
    less = {}
    for row in tables["iterations"]:
        same_host = replace(latency, h0_ns=float(row["host_ns"]), h1_ns=0.0, h2_ns=0.0)
        plain = SimExecutor(same_host, asynchronous=config.async_scheduling)
        more = {"longest": int(row["decode_longest_tokens"])} if isinstance(plain, SkewedExecutor) else {}
        alone = plain.predict(0, 0, int(row["decode_seqs"]), int(row["decode_kv_tokens"]), 0, 0, **more)[0]
        mixed = row["prefill_tokens"] > 0 and row["decode_seqs"] > 0
        less[int(row["iteration"])] = max(int(row["duration_ns"]) - alone, 0) if mixed else 0
    expected = np.zeros(len(rows), np.int64)
    served = np.zeros(len(rows), np.int64)
    for span in tables["spans"][tables["spans"]["phase"] == Phase.decode]:
        for iteration in range(int(span["start_iteration"]), int(span["end_iteration"]) + 1):
            expected[span["request"]] += less.get(iteration, 0)
            served[span["request"]] += 1
    assert (np.abs(found.of("interference") - expected) <= served).all()  # device time is rounded once an iteration


@SOME
@given(rows=traffic(), config=schedulers(), latency=latencies, cuts=st.lists(st.integers(0, 900_000), max_size=4))
def test_windows_add_up(rows: list[Row], config: SchedulerConfig, latency: Latency, cuts: list[int]) -> None:
    prepared = blame(tables_of(tell(rows, config, latency=latency).sink), latency, config)
    edges = [None, *sorted(cuts), None]
    windows = [prepared.within(a, b) for a, b in zip(edges, edges[1:], strict=False)]
    entire = prepared.within()
    for part in {name for each in (entire, *windows) for name in each.parts}:
        got = sum(each.of(part) for each in windows)
        if part in ("prefill", "prefill_shared", "recompute", "first_step"):
            continue  # an iteration that is cut through is put down as a whole
        assert np.array_equal(got, entire.of(part)), part
    for each in windows:
        assert each.first.min(initial=0) >= 0 and each.later.min(initial=0) >= 0


def test_by_value_a_long_prompt_before_a_short_one() -> None:
    config = knobs(max_num_batched_tokens=64)
    # the long prompt takes iterations 0 to 4 (the last one 44 of 64 tokens), the short one comes during the second of them
    told = tell([Row(0, 300, 3), Row(MILLISECOND + 1, 10, 2)], config)
    tables = tables_of(told.sink)
    found = blame(tables, FLAT, config).within()
    assert found.sums(np.array([1]), "first") == {
        "queue.token_budget": 2 * MILLISECOND, "under_way": MILLISECOND - 1, "prefill": MILLISECOND
    }  # fmt: skip
    assert found.sums(np.array([0])) == {"prefill": 5 * MILLISECOND, "decode": 2 * MILLISECOND}
    assert found.of("queue").tolist() == [0, 2 * MILLISECOND]


def test_by_value_what_shares_an_iteration() -> None:
    latency = Latency(floor_ns=1000.0, b_ns=100.0)
    config = knobs(max_num_batched_tokens=60)
    # 20 + 30 prompt tokens together take 5,000 ns; alone 2,000 and 3,000; then both decode, 1,000 ns each
    told = tell([Row(0, 20, 4), Row(0, 30, 4), Row(5500, 40, 1)], config, latency=latency)
    found = blame(tables_of(told.sink), latency, config).within()
    assert found.of("prefill").tolist() == [2000, 3000, 4000]
    assert found.of("prefill_shared").tolist() == [3000, 2000, 0]
    # the third one's 40 tokens ride in an iteration that would have taken 1,000 ns
    assert found.of("interference").tolist() == [3000, 3000, 0]
    assert found.of("decode").tolist() == [3000, 3000, 0]


@pytest.mark.parametrize(("mode", "part"), [("recompute", "preempted"), ("swap", "swapped"), ("pause", "paused")])
def test_by_value_who_is_thrown_out(mode: Literal["recompute", "swap", "pause"], part: str) -> None:
    config = knobs(policy="priority", max_num_seqs=1)
    rules = Rules(preemption=Preemption(mode=mode, to_admit=True, host_blocks=200))
    rows = [Row(0, 40, 10, priority=1), Row(3 * MILLISECOND + 5, 20, 4)]
    tables = tables_of(tell(rows, config, rules, latency=replace(FLAT, b_ns=1.0)).sink)
    found = blame(tables, replace(FLAT, b_ns=1.0), config).within()
    whole(tables, found)
    away = tables["spans"][tables["spans"]["phase"] == Phase[part]]
    assert found.of(part).tolist() == [int((away["end_ns"] - away["start_ns"]).sum()), 0]
    assert found.of(part)[0] >= 4 * MILLISECOND
    # 40 prompt tokens and 3 of its answer again, beside the one token that is new
    assert found.of("recompute").tolist() == [MILLISECOND * 43 // 44 if mode == "recompute" else 0, 0]


def test_by_value_what_a_failed_replica_had_done_is_lost() -> None:
    config = knobs()
    failing = Fault(replica=0, at_ns=5 * MILLISECOND, until_ns=NEVER)
    told = fleet(RowSource([Row(0, 40, 10)]), config, FLAT, "round_robin", 2, faults=[failing])
    tables = tables_of(told.sink)
    found = blame(tables, FLAT, config).within()
    whole(tables, found)
    assert found.sums() == {"decode": 9 * MILLISECOND, "lost": 5 * MILLISECOND, "prefill": MILLISECOND}


def test_by_value_two_pools() -> None:
    rules = Rules(pd=Pd(prefill=1, decode=1), kv_link=link(concurrent=1))
    engines = both()
    tables = tables_of(play(RowSource([Row(0, 32, 2), Row(0, 32, 2)]), engines, rules, FLAT).sink)
    found = blame(tables, FLAT, engines["prefill"], engines["decode"]).within()
    assert found.sums(np.array([1]), "first") == {
        "transfer_wait": 8 * MILLISECOND, "transfer": 8 * MILLISECOND, "first_step": MILLISECOND, "prefill": MILLISECOND
    }  # fmt: skip


def test_a_request_that_never_got_a_token_has_all_its_time_before_it() -> None:
    config = knobs(max_num_seqs=1)
    tables = tables_of(tell([Row(0, 40, 30), Row(10, 40, 5, cancel=7 * MILLISECOND)], config).sink)
    found = blame(tables, FLAT, config).within()
    assert found.first_total.tolist() == [MILLISECOND, 7 * MILLISECOND] and found.later_total.tolist() == [29 * MILLISECOND, 0]
    assert found.of("queue.max_num_seqs").tolist() == [0, 6 * MILLISECOND + 10]


def test_who_leaves_before_any_plan_saw_it_only_waited_for_what_was_under_way() -> None:
    config = knobs(max_num_batched_tokens=400)
    rows = [Row(0, 300, 1), Row(10, 40, 5, cancel=MILLISECOND // 2)]  # it goes while the only iteration runs
    tables = tables_of(tell(rows, config).sink)
    found = blame(tables, FLAT, config).within()
    assert found.sums(np.array([1])) == {"under_way": MILLISECOND // 2}
