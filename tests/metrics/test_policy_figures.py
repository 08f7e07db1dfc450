"""What policies are compared by: fairness, the cost of preemption, decisions before the engine, reserved KV, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay_engine.config import SchedulerConfig
from replay_engine.loop import Replay
from replay_engine.rules import Batching, Client, FrontDoorRules, Order, Preemption, Rules, Tier
from replay_engine.simulator import SimExecutor
from replay_engine.sinks import MemorySink
from replay_engine.tables import OUTCOMES, PREEMPTIONS
from replay_engine.totals import RunTotals
from replay_engine.types import RequestBatch, RequestState
from tests.metrics.runs import LATENCY
from tests.metrics.synthetic import CONFIG, Totals, finished_rows
from tracekit.metrics import Labels, MatrixInputs, Slo, SloTable, build_matrix, render_markdown, render_text
from tracekit.metrics.fairness import jain
from tracekit.metrics.fields import bare_nulls, missing_fields
from tracekit.metrics.written import written_block_ns
from tracekit.sidebyside import render_rows, run_labels, side_by_side

SECOND = 1_000_000_000


def matrix_of(rows: Any, **more: Any) -> dict[str, Any]:
    matrix = build_matrix(MatrixInputs(outcomes=rows, totals=Totals(), scheduler=CONFIG, **more))
    assert missing_fields(matrix) == []
    assert bare_nulls(matrix) == []
    for text in (render_text(matrix), render_markdown(matrix)):
        assert "Jain" in text
    return matrix


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_jain_is_between_one_nth_and_one(shares: list[float]) -> None:
    index = jain(np.array(shares))
    if index is None:
        assert sum(share * share for share in shares) == 0
    else:
        assert 1 / len(shares) - 1e-9 <= index <= 1 + 1e-9


def test_jain_by_value() -> None:
    assert jain(np.array([1.0, 1.0, 1.0])) == pytest.approx(1)
    assert jain(np.array([1.0, 0.0, 0.0, 0.0])) == pytest.approx(1 / 4)
    assert jain(np.array([3.0, 1.0])) == pytest.approx(16 / 20)
    assert jain(np.zeros(3)) is None


def served(first_s: list[float], last_s: list[float], arrival_s: list[float]) -> Any:
    """Finished requests of 11 output tokens, one a tenth of the way each."""
    rows = np.zeros(len(first_s), OUTCOMES)
    rows["request"] = np.arange(len(rows))
    rows["arrival_ns"] = np.array(arrival_s) * SECOND
    rows["ttft_ns"] = np.array(first_s) * SECOND - rows["arrival_ns"]
    rows["last_token_ns"] = np.array(last_s) * SECOND
    rows["e2e_ns"] = rows["last_token_ns"] - rows["arrival_ns"]
    rows["output_tokens"], rows["prompt_tokens"] = 11, 10
    rows["tpot_ns"] = (rows["last_token_ns"] - rows["arrival_ns"] - rows["ttft_ns"]) / 10
    return rows


def test_fairness_by_value() -> None:
    # arrivals end at 10 s: a has 11 + 6 of 22 tokens by then, b none of its 11, the nameless one its single request in full
    rows = served([1, 5, 12, 2], [2, 15, 13, 10], [0, 1, 10, 2])
    labels = Labels(codes=np.array([0, 0, 1, -1]), names=["a", "b"])
    slo = SloTable(default=Slo(e2e_ns=9 * SECOND))
    fairness = matrix_of(rows, tenants=labels, slo=slo, demand_tokens=np.full(4, 11))["fairness"]
    shares = np.array([17 / 22, 0, 1])
    assert fairness["tenants"] == 3
    assert fairness["jain_service"] == pytest.approx(jain(shares))
    assert fairness["service_least"] == {"tenant": "b", "share": 0.0, "requests": 1}
    assert fairness["service_most"] == {"tenant": "(no tenant)", "share": 1.0, "requests": 1}
    assert fairness["jain_slo"] == pytest.approx(jain(np.array([0.5, 1, 1])))
    assert fairness["slo_least"] == {"tenant": "a", "share": 0.5, "requests": 2}


def test_fairness_says_why_it_is_not_there() -> None:
    rows = finished_rows(10)
    assert matrix_of(rows)["fairness"]["jain_slo"]["reason"] == "the trace has no tenant column"
    alone = Labels(codes=np.zeros(10, np.int64), names=["a"])
    assert matrix_of(rows, tenants=alone)["fairness"]["tenants"] == 1
    assert "fewer than two tenants" in matrix_of(rows, tenants=alone)["fairness"]["jain_service"]["reason"]
    two = Labels(codes=np.arange(10) % 2, names=["a", "b"])
    assert "no SLO" in matrix_of(rows, tenants=two)["fairness"]["jain_slo"]["reason"]


def test_preemption_cost_by_kind() -> None:
    rows = served([1, 2], [5, 5], [0, 0])
    rows["preemptions"] = [2, 1]
    events = np.zeros(4, PREEMPTIONS)
    events["request"] = [0, 0, 1, 1]
    events["preempted_ns"] = [1000, 2000, 3000, 9000]
    events["restored_ns"] = [1500, 2800, 3100, -1]
    events["recomputed_tokens"] = [64, 0, 0, 0]
    events["lost_tokens"] = [64, 0, 0, 32]
    events["link_ns"] = [0, 300, 0, 0]
    events["kind"] = [0, 1, 2, 0]
    cost = matrix_of(rows, preemptions=events)["preemption"]
    assert cost["recovery_ns"] == 500 + 800 + 100
    assert cost["stood_still_ns"]["n"] == 3
    assert cost["stood_still_ns"]["max"] == 800
    assert cost["recovery_share"] == pytest.approx(1400 / (10 * SECOND))
    assert (cost["lost_tokens"], cost["link_ns"], cost["not_restored"]) == (96, 300, 1)
    assert cost["by_kind"]["recompute"] == {"events": 2, "recomputed_tokens": 64, "link_ns": 0, "stood_still_ns": 500}
    assert cost["by_kind"]["swap"]["link_ns"] == 300
    assert cost["by_kind"]["pause"]["stood_still_ns"] == 100
    only = matrix_of(rows, preemptions=events, counted=np.array([True, False]))["preemption"]
    assert only["recovery_ns"] == 1300
    assert "events full" in matrix_of(rows)["preemption"]["by_kind"]["reason"]


def test_decisions_before_the_engine() -> None:
    rows = served([1, 2, 3], [5, 5, 5], [0, 0, 0])
    rows["state"][1] = RequestState.rejected
    rows["reason"][1] = 1
    cut = np.array([True, False, False])
    assert "no front door" in matrix_of(rows)["entrance"]["decisions"]["reason"]
    rules = Rules(front_door=FrontDoorRules(max_queued_reqs=3), client=Client(max_in_flight=2))
    entrance = matrix_of(rows, rules=rules, degraded=cut)["entrance"]
    assert entrance["active"] == "front door, client limit"
    assert entrance["decisions"] == {"admitted": 1, "degraded": 1, "rejected: prompt_too_long": 1}
    assert entrance["states"] == {"finished": 2, "rejected: prompt_too_long": 1}


def test_every_rule_is_a_knob_of_the_matrix() -> None:
    rules = Rules(
        order=Order(by="priority", reserved=(Tier(priority=0, seqs=4, blocks=9),)),
        front_door=FrontDoorRules(quotas={"a|b": {"quota_concurrent": 3}}),
        preemption=Preemption(victim="plugin:mine"),
    )
    matrix = matrix_of(finished_rows(5), rules=rules)
    knobs = matrix["knobs"]
    assert knobs["order.by"] == "priority"
    assert knobs["order.reserved"] == [{"priority": 0, "seqs": 4, "blocks": 9}]
    assert knobs["front_door.quotas"] == {"a|b": {"quota_concurrent": 3}}
    assert knobs["batching.max_partial_prefills"]["value"] is None
    assert "priority 0: 4 seats, 9 blocks" in render_text(matrix)


class Waves:
    """Requests of different length in waves, so that batches have stragglers."""

    total = 24

    def batches(self) -> Iterator[RequestBatch]:
        n = self.total
        yield RequestBatch(
            index=np.arange(n),
            arrival_ns=np.arange(n) * 20_000_000,
            prompt_tokens=16 + 16 * (np.arange(n) % 5),
            output_tokens=1 + 12 * (np.arange(n) % 4),
            priority=np.zeros(n, np.int64),
            max_tokens=np.full(n, 64),
        )


def replayed(rules: Rules) -> tuple[MemorySink, RunTotals, SchedulerConfig]:
    contiguous = rules.batching.kv_allocation == "contiguous"
    static = rules.batching.mode != "continuous"
    config = SchedulerConfig(
        max_num_batched_tokens=256, max_num_seqs=16, max_model_len=256, num_gpu_blocks=129, async_scheduling=not static,
        enable_prefix_caching=not contiguous,
    )  # fmt: skip
    sink = MemorySink()
    replay = Replay(Waves(), config, SimExecutor(LATENCY, asynchronous=not static), sink, rules=rules)
    assert replay.run() == "finished"
    return sink, replay.totals, config


@pytest.mark.parametrize("mode", ["continuous", "static"])
def test_reserved_against_written_of_a_contiguous_run(mode: Any) -> None:
    rules = Rules(batching=Batching(mode=mode, size=6, kv_allocation="contiguous"))
    sink, totals, config = replayed(rules)
    names = ("iterations", "prefill_entries", "spans", "outcomes")
    written = written_block_ns(*(sink.table(name) for name in names), config.block_size)
    assert 0 < written < totals.kv_used_ns
    inputs = MatrixInputs(
        outcomes=sink.table("outcomes"), totals=totals, scheduler=config, rules=rules, written_block_ns=written
    )  # fmt: skip
    kv = build_matrix(inputs)["kv"]
    assert kv["reserved_high_water_blocks"] == totals.kv_used_max
    assert kv["reserved_unused_share"] == pytest.approx(1 - written / totals.kv_used_ns)
    assert kv["reserved_unused_blocks"] == pytest.approx((totals.kv_used_ns - written) / totals.busy_ns)
    paged = build_matrix(replace(inputs, rules=Rules()))["kv"]
    assert "paged KV" in paged["reserved_unused_share"]["reason"]


def test_written_is_used_where_every_block_is_taken_when_needed() -> None:
    sink, totals, config = replayed(Rules())
    names = ("iterations", "prefill_entries", "spans", "outcomes")
    written = written_block_ns(*(sink.table(name) for name in names), config.block_size)
    # paged: between the tokens written and those rounded up to whole blocks, one block a sequence at most
    assert written <= totals.kv_used_ns
    assert totals.kv_used_ns - written <= totals.running_ns * 1.5


def test_runs_side_by_side() -> None:
    matrices = []
    for rules in (Rules(batching=Batching(mode="static", size=6)), Rules()):
        sink, totals, config = replayed(rules)
        outcomes = sink.table("outcomes")
        matrices.append(build_matrix(MatrixInputs(outcomes=outcomes, totals=totals, scheduler=config, rules=rules)))
    rows = side_by_side(matrices)
    found = {row.label: row for row in rows}
    assert found["Batching"].values == ("static", "continuous")
    assert "Order" not in found
    static, continuous = found["TTFT P50"].values
    assert static > continuous
    assert found["TTFT P50"].better == "low"
    assert "SLO-goodput, requests/s" not in found
    assert "Jain's index, SLO" not in found
    cells = render_rows(rows)
    assert all(len(line) == 3 for line in cells)
    assert run_labels([{"run": 3, "name": "a\nb"}, {"run": 4, "name": None}]) == ["3 a\\nb", "run 4"]
    older = {section: {} for section in matrices[0]}
    assert side_by_side([matrices[0], older])[0].reasons[1] == "the version that made this run did not record it"
