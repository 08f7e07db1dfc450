"""What the engine records and what the metrics make of it agree: gaps, sums, phases, the matrix against SQL."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from replay_engine.tables import TABLES
from replay_engine.types import RequestState
from tests.metrics.runs import database, replayed
from tracekit.explain import explain, render_explain
from tracekit.metrics import MatrixInputs, Slo, SloTable, build_matrix, token_gaps
from tracekit.metrics.fields import bare_nulls

THRESHOLD = 12_000_000


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_gaps_from_spans_are_the_gaps_the_engine_saw(seed: int) -> None:
    sink, _, _ = replayed(seed, n=40, stall_threshold_ns=THRESHOLD)
    iterations, spans, outcomes = (sink.table(name) for name in ("iterations", "spans", "outcomes"))
    gaps = token_gaps(iterations, spans, outcomes)
    pooled = gaps.pooled()
    assert pooled["n"] == int((outcomes["output_tokens"] - 1).sum())
    assert pooled["max"] == outcomes["max_gap_ns"].max()
    every = np.concatenate([np.repeat(gaps.step_ns, gaps.weight), gaps.single_ns])
    assert int(every.sum()) == int((outcomes["e2e_ns"] - outcomes["ttft_ns"]).sum())
    assert int(np.maximum(every - THRESHOLD, 0).sum()) == int(outcomes["stalled_ns"].sum())
    own = gaps.request_p99(40)[outcomes["request"]]
    several = outcomes["output_tokens"] > 1
    assert np.all(own[several] <= outcomes["max_gap_ns"][several])
    assert np.all(own[several] >= outcomes["tpot_ns"][several] - 1e-6) or several.sum() == 0
    assert np.isnan(own[~several]).all()


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 10**6))
@example(171497)  # a victim with its last token in flight
def test_every_story_is_exact_and_complete(seed: int) -> None:
    sink, _, _ = replayed(seed, n=16)
    con = database({name: sink.table(name) for name in TABLES})
    for row in sink.table("outcomes"):
        story = explain(con, 1, int(row["request"]))
        assert story["check"]["holds"]
        assert story["check"]["difference_ns"] == 0
        assert sum(story["by_phase_ns"].values()) == row["e2e_ns"]
        queued = sum(part["length_ns"] for part in story["parts"] if part["phase"] == "queued")
        assert queued == row["queue_ns"]
        for part in story["parts"]:
            if "waited_for" in part:
                waited = part["waited_for"]
                assert sum(r["ns"] for r in waited["by_reason"].values()) + waited["no_iteration_ns"] == part["length_ns"]
        chunks = [chunk for part in story["parts"] for chunk in part.get("prefill_chunks", ())]
        assert sum(chunk["query_len"] for chunk in chunks) >= row["prompt_tokens"] - row["cached_tokens"]
        if row["output_tokens"] > 1:
            assert story["longest_gaps"][0]["gap_ns"] == row["max_gap_ns"]
        # one whose last token is on its way may still be chosen as a victim: a row, but the request loses nothing by it
        lost = [p for p in story["preemptions"] if p["preempted_ns"] < row["last_token_ns"]]
        assert len(lost) == row["preemptions"]
        assert "exact" in render_explain(story)


def test_the_matrix_of_a_real_run_can_be_recomputed_with_sql() -> None:
    sink, totals, config = replayed(7, n=300)
    outcomes, iterations = sink.table("outcomes"), sink.table("iterations")
    gaps = token_gaps(iterations, sink.table("spans"), outcomes)
    slo = SloTable(default=Slo(ttft_ns=2_000_000_000, tpot_ns=20_000_000))
    matrix = build_matrix(MatrixInputs(outcomes=outcomes, totals=totals, scheduler=config, slo=slo, gaps=gaps))
    assert bare_nulls(matrix) == []
    con = database({"outcomes": outcomes, "iterations": iterations})

    def ask(query: str) -> float:
        return float(con.execute(query).fetchall()[0][0])

    for name in ("queue_ns", "ttft_ns", "tpot_ns", "e2e_ns"):
        for point, level in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
            assert matrix["latency"][name][point] == pytest.approx(
                ask(f"SELECT quantile_cont({name}::DOUBLE, {level}) FROM outcomes")
            )
    met = ask("SELECT count(*) FROM outcomes WHERE ttft_ns <= 2e9 AND coalesce(tpot_ns, 0) <= 2e7 AND state = 'finished'")
    assert matrix["slo"]["attainment"]["met"] == met
    assert 0 < met < 300
    refused = con.execute(
        "SELECT head_refused_by::VARCHAR, count(*), sum(duration_ns) FROM iterations"
        " WHERE head_refused_by <> 'none' AND waiting > 0 GROUP BY 1"
    ).fetchall()
    assert {name: (n, ns) for name, n, ns in refused} == {
        name: (row["iterations"], row["ns"]) for name, row in matrix["queueing"]["refusals"].items()
    }
    assert matrix["kv"]["high_water_blocks"] == ask("SELECT max(kv_used) FROM iterations") <= matrix["kv"]["total_blocks"]
    busy = ask("SELECT sum(duration_ns) FROM iterations")
    assert matrix["time"]["busy_ns"] == busy
    assert matrix["time"]["busy_ns"] + matrix["time"]["idle_ns"] == matrix["time"]["run_ns"]
    assert matrix["concurrency"]["running_mean"] == pytest.approx(ask("SELECT sum(running * duration_ns) FROM iterations") / busy)
    tokens = ask("SELECT sum(prompt_tokens + output_tokens - 1 - cached_tokens + recomputed_tokens) FROM outcomes")
    assert matrix["time"]["prefill_tokens"] + matrix["time"]["decode_tokens"] == tokens
    assert matrix["ends"]["finished"] == (outcomes["state"] == RequestState.finished).sum()
