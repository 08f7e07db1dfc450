"""The acceptance matrix: complete, sound as JSON, right by value, readable."""

from __future__ import annotations

import json
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_engine.config import SchedulerConfig
from replay_engine.profile import load_profile
from replay_engine.tables import OUTCOMES
from replay_engine.types import RequestState
from tests.metrics.synthetic import CONFIG, Totals, finished_rows, unfinished
from tracekit.metrics import Labels, MatrixInputs, Slo, SloTable, build_matrix, render_markdown, render_text
from tracekit.metrics.docs import matrix_page
from tracekit.metrics.fields import FIELDS, SECTIONS, bare_nulls, field_value, is_missing, missing_fields
from tracekit.metrics.wording import share, span_text

SLO = SloTable(default=Slo(ttft_ns=500_000_000, tpot_ns=30_000_000))


def full_inputs(n: int = 2_000) -> MatrixInputs:
    rows = finished_rows(n)
    rng = np.random.default_rng(3)
    observed = {name: (rows[name] * rng.uniform(0.8, 1.3, n)) for name in ("queue_ns", "ttft_ns", "tpot_ns", "e2e_ns")}
    return MatrixInputs(
        outcomes=rows,
        totals=Totals(),
        scheduler=CONFIG,
        profile=load_profile("h100"),
        tracekit_version="0.1",
        run={"name": "nightly", "trace": "conv", "seed": 0, "state": "finished"},
        tenants=Labels(codes=np.arange(n) % 3, names=["a", "b", "c"]),
        classes=Labels(codes=np.arange(n) % 2, names=["batch", "chat"]),
        observed=observed,
        slo=SLO,
        stall_threshold_ns=90_000_000,
        stall_rule="3 x the tpot SLO",
    )


def test_every_field_is_listed_once_and_every_knob_is_there() -> None:
    names = [(spec.section, spec.name) for spec in FIELDS]
    assert len(set(names)) == len(names)
    assert {spec.section for spec in FIELDS} == set(SECTIONS)
    assert {knob.name for knob in fields(SchedulerConfig)} <= {name for section, name in names if section == "knobs"}


@pytest.mark.parametrize("case", ["full", "bare", "empty", "one", "sync", "nobody finished"])
def test_complete_and_sound_whatever_the_run(case: str) -> None:
    given_inputs = full_inputs(200)
    if case == "bare":
        given_inputs = MatrixInputs(outcomes=finished_rows(20), totals=Totals(), scheduler=CONFIG)
    elif case == "empty":
        nothing = Totals(**dict.fromkeys((f.name for f in fields(Totals)), 0) | {"refused_ns": {}, "refused_iterations": {}})  # type: ignore[arg-type]
        given_inputs = replace(given_inputs, outcomes=np.zeros(0, OUTCOMES), totals=nothing)
    elif case == "one":
        given_inputs = replace(given_inputs, outcomes=finished_rows(1))
    elif case == "sync":
        config = SchedulerConfig(async_scheduling=False, enable_prefix_caching=False, watermark=0.1)
        given_inputs = replace(given_inputs, scheduler=config)
    elif case == "nobody finished":
        rows = finished_rows(9)
        for at in range(9):
            unfinished(rows, at, list(RequestState)[1:][at % 5])
        given_inputs = replace(given_inputs, outcomes=rows)
    matrix = build_matrix(given_inputs)
    assert missing_fields(matrix) == []
    assert bare_nulls(matrix) == []
    assert json.loads(json.dumps(matrix, allow_nan=False)) == matrix
    for text in (render_text(matrix), render_markdown(matrix)):
        for spec in FIELDS:
            assert spec.label in text


def test_a_missing_or_extra_field_is_noticed() -> None:
    matrix = build_matrix(full_inputs(50))
    del matrix["kv"]["evicted_blocks"]
    matrix["time"]["surprise"] = 1
    assert missing_fields(matrix) == ["kv.evicted_blocks", "time.surprise"]
    assert bare_nulls({"a": {"b": None}, "c": [float("nan")], "d": {"value": None, "reason": "so"}}) == [".a.b", ".c[0]"]


def test_percentiles_are_numpys_and_small_n_is_flagged() -> None:
    inputs = full_inputs(2_000)
    latency = build_matrix(inputs)["latency"]
    rows = inputs.outcomes
    for name in ("queue_ns", "ttft_ns", "e2e_ns"):
        row = latency[name]
        assert [row["p50"], row["p95"], row["p99"]] == pytest.approx(np.percentile(rows[name], (50, 95, 99)))
        assert (row["n"], row["max"], row["small_n"]) == (2_000, int(rows[name].max()), [])
    defined = rows["tpot_ns"][~np.isnan(rows["tpot_ns"])]
    assert latency["tpot_ns"]["n"] == defined.size < 2_000
    assert latency["tpot_ns"]["p99"] == pytest.approx(np.percentile(defined, 99))
    assert latency["longest_gap_ns"]["request"] == int(rows["request"][rows["max_gap_ns"].argmax()])
    assert build_matrix(full_inputs(999))["latency"]["ttft_ns"]["small_n"] == ["p99"]


def test_throughput_over_window_and_run() -> None:
    rows = finished_rows(100)
    unfinished(rows, 7, RequestState.failed)
    matrix = build_matrix(replace(full_inputs(100), outcomes=rows))
    window = int(rows["arrival_ns"][-1] - rows["arrival_ns"][0])
    run = int(rows["last_token_ns"].max() - rows["arrival_ns"][0])
    figures = matrix["throughput"]
    done = np.delete(rows, 7)
    assert figures["window_requests_per_s"] == pytest.approx(99 / window * 1e9)
    assert figures["run_requests_per_s"] == pytest.approx(99 / run * 1e9)
    assert figures["run_output_tokens_per_s"] == pytest.approx(done["output_tokens"].sum() / run * 1e9)
    both = done["output_tokens"].sum() + done["prompt_tokens"].sum()
    assert figures["window_total_tokens_per_s"] == pytest.approx(both / window * 1e9)
    assert matrix["ends"]["failed"] == 1


def test_arrival_process_by_value() -> None:
    rows = finished_rows(6)
    rows["arrival_ns"] = np.array([0, 5, 10, 11, 32, 39]) * 100_000_000
    traffic = build_matrix(replace(full_inputs(6), outcomes=rows))["traffic"]
    gaps = np.array([5, 5, 1, 21, 7])
    counts = np.array([2, 2, 0, 2])
    assert traffic["interarrival_cv"] == pytest.approx(gaps.std() / gaps.mean())
    assert traffic["dispersion_1s"] == pytest.approx(counts.var() / counts.mean())
    assert traffic["peak_1s_requests"] == 2
    assert traffic["arrival_rate_per_s"] == pytest.approx(5 / 3.9)
    assert traffic["arrival_span_ns"] == 3_900_000_000


def test_levels_refusals_and_unused_budget_by_value() -> None:
    matrix = build_matrix(full_inputs(50))
    assert matrix["concurrency"] == {"running_mean": 5.0, "running_max": 12, "waiting_mean": 1.0, "waiting_max": 5}
    assert matrix["kv"]["high_water_share"] == 0.9
    assert matrix["kv"]["mean_used_share"] == 0.5
    assert matrix["queueing"]["refusals"] == {
        "kv_free": {"iterations": 15, "ns": 300_000_000, "share": 0.75},
        "max_num_seqs": {"iterations": 5, "ns": 100_000_000, "share": 0.25},
    }
    assert matrix["queueing"]["unused_budget_tokens"] == 150_000
    assert matrix["queueing"]["unused_budget_share"] == 150_000 / 160_000
    assert matrix["queueing"]["async_blocked_share"] == 0.025
    assert matrix["time"]["idle_ns"] == 1_000_000_000


def test_replayed_against_observed_by_value() -> None:
    rows = finished_rows(4)
    observed = rows["e2e_ns"] * 2
    observed[3] = -1
    matrix = build_matrix(replace(full_inputs(4), outcomes=rows, observed={"e2e_ns": observed}))
    row = matrix["observed"]["e2e_ns"]
    assert row["n"] == 3
    assert row["relative_error"] == pytest.approx({"mean": -0.5, "p50": -0.5, "p90": -0.5, "p99": -0.5})
    assert row["median_abs_error_ns"] == pytest.approx(np.median(rows["e2e_ns"][:3]))
    assert row["median_abs_relative_error"] == pytest.approx(0.5)
    assert row["small_n"] == ["p99"]
    assert matrix["observed"]["ttft_ns"]["reason"] == "unknown: the trace has no ttft"
    assert "50.0%" in matrix["profile"]["error_on_trace"]
    none = build_matrix(replace(full_inputs(4), outcomes=rows, observed=None))
    assert none["profile"]["error_on_trace"]["reason"] == "unknown: the trace has no latencies"


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 60), st.data())
def test_invariants_of_the_definitions(seed: int, n: int, data: st.DataObject) -> None:
    rows = finished_rows(n, seed)
    for at in data.draw(st.lists(st.integers(0, n - 1), max_size=5)):
        unfinished(rows, at, data.draw(st.sampled_from([s for s in RequestState if s not in (0, RequestState.cancelled)])))
    matrix = build_matrix(replace(full_inputs(n), outcomes=rows))
    ends, slo, figures = matrix["ends"], matrix["slo"], matrix["throughput"]
    assert sum(ends[state.name] for state in RequestState) == matrix["counted"]["requests"] == n
    if n > 1:
        assert slo["goodput_requests_per_s"] <= figures["window_requests_per_s"] + 1e-12
        assert slo["goodput_tokens_per_s"] <= figures["window_output_tokens_per_s"] + 1e-9
    reached = slo["attainment"]
    assert reached["low"] <= reached["share"] <= reached["high"]
    for group in ("by_tenant", "by_class"):
        assert sum(row["attainment"]["n"] for row in slo[group].values()) == n
        assert sum(row["attainment"]["met"] for row in slo[group].values()) == reached["met"]
    if ends["finished"]:
        latency = matrix["latency"]
        for point in ("mean", "p50", "p95", "p99", "max"):
            assert latency["queue_ns"][point] <= latency["ttft_ns"][point] <= latency["e2e_ns"][point]


def test_many_tenants_are_summed_beyond_the_first_hundred() -> None:
    labels = Labels(codes=np.arange(500) % 250, names=[f"t{i}" for i in range(250)])
    groups = build_matrix(replace(full_inputs(500), tenants=labels))["slo"]["by_tenant"]
    assert len(groups) == 101
    assert groups["(150 more)"]["attainment"]["n"] == 300


def test_foreign_names_cannot_steer_the_terminal_or_break_the_table() -> None:
    nasty = "a\x1b[31m\nb|c<i>"
    matrix = build_matrix(
        replace(full_inputs(50), tenants=Labels(codes=np.zeros(50, np.int64), names=[nasty]), run={"name": nasty})
    )
    text, markdown = render_text(matrix), render_markdown(matrix)
    assert "\x1b" not in text + markdown
    assert "\\x1b[31m\\nb|c<i>" in text
    assert all(line.count("|") - line.count("\\|") in (0, 3, 8) for line in markdown.splitlines() if line.startswith("|"))


def test_the_answer_stands_first() -> None:
    lines = render_text(build_matrix(full_inputs())).splitlines()
    head = "\n".join(lines[:14])
    for word in ("Tail", "P99", "SLO-goodput", "missed by", "kv_free 75.0 %", "KV high-water 90.0 %", "Ended", "nightly"):
        assert word in head


FIT: dict[str, Any] = {
    "iterations": 1077, "fitted_decode_seqs": [0.0, 100.0], "sizes": [8, 16, 32], "counting": "engine", "shared": True,
    "left_out": ["egress is 0: no way back", "skew is no term"], "note": "as long as it runs",
    "settings": {"max_num_seqs": 128, "async_scheduling": True, "engine_version": "0.20.0"}, "trust": "does not serve: it is off",
}  # fmt: skip


def made(*, fit: dict[str, Any], kind: str | None, synthetic: bool, observed: bool) -> str:
    given, h100 = full_inputs(60), load_profile("h100")
    profile = replace(h100, synthetic=synthetic, fit=fit, provenance={} if kind is None else {"kind": kind})
    return render_text(build_matrix(replace(given, profile=profile, observed=given.observed if observed else {})))


def test_a_fit_is_read_part_by_part() -> None:
    """Ranges are ranges and lists are lists; tables and sentences stand in lines of their own, without a programmer's marks."""
    text = made(fit=FIT, kind="fitted to x", synthetic=True, observed=False)
    lines = {line.split("  ")[0]: line.split("  ", 1)[1].strip() for line in map(str.strip, text.splitlines()) if "  " in line}
    assert lines["Fit"] == "iterations 1,077, fitted_decode_seqs 0 to 100, sizes 8, 16, 32, counting engine, shared yes"
    assert lines["left_out"] == "egress is 0: no way back; skew is no term"
    assert lines["note"] == "as long as it runs"
    assert lines["settings"] == "max_num_seqs 128, async_scheduling yes, engine_version 0.20.0"
    assert lines["Trust"] == "does not serve: it is off" and "trust" not in lines
    assert "{" not in text and "True" not in text


@pytest.mark.parametrize(
    ("kind", "synthetic", "origin"),
    [
        ("fitted to latencies", True, "fitted to latencies; held to no card's peaks"),
        ("measured here", True, "measured here; held to no card's peaks"),
        ("fitted to latencies", False, "fitted to latencies"),
        ("estimate: a roofline", False, "estimate: a roofline"),
        ("planted", True, "synthetic coefficients, not held to physics"),
        (None, True, "synthetic coefficients, not held to physics"),
    ],
)
def test_where_numbers_come_from_is_said_alike_in_matrix_and_head(kind: str | None, synthetic: bool, origin: str) -> None:
    text = made(fit={}, kind=kind, synthetic=synthetic, observed=False)
    (line,) = (line for line in text.splitlines() if line.strip().startswith("Origin"))
    assert line.split("  ")[-1].strip() == origin
    profile = replace(load_profile("h100"), synthetic=synthetic, provenance={} if kind is None else {"kind": kind})
    assert profile.describe().endswith(f"{origin})")


@pytest.mark.parametrize("bound", ["lower", "none", None])
@pytest.mark.parametrize("observed", [True, False])
@pytest.mark.parametrize("trust", ["does not serve: it is off", None])
def test_how_far_to_believe_the_times_stands_in_the_first_lines(bound: str | None, observed: bool, trust: str | None) -> None:
    fit = {"bound": bound, "trust": trust, "iterations": 3}
    fit = {key: value for key, value in fit.items() if value is not None}
    text = made(fit=fit, kind="fitted", synthetic=True, observed=observed)
    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("Model "))
    assert at < 16
    said = lines[at + 1].strip()
    assert said.startswith("LOWER BOUND, the engine takes longer; ") == (bound == "lower")
    told = "on this trace: " if observed else trust or "never checked: tracekit calibrate --check PROFILE TRACE"
    assert f"trust: {told}" in said


def test_a_reason_that_many_fields_share_is_said_once() -> None:
    bare = build_matrix(replace(full_inputs(50), tenants=None, slo=None))
    text = render_text(bare)
    reasons = [field_value(bare, spec)["reason"] for spec in FIELDS if is_missing(field_value(bare, spec))]
    several = {reason for reason in reasons if reasons.count(reason) > 1}
    below = "".join(text.split("\n\n")[2:])  # the answer that stands first says it in full
    assert len(several) > 3 and not [reason for reason in several if f"- ({reason})" in below]
    marks = {line.split("] ")[1]: line.split("]")[0] + "]" for line in text.splitlines() if line.startswith("[")}
    assert several <= marks.keys()
    assert all(text.count(f"- {mark}\n") > 1 for mark in marks.values())


def test_words_for_numbers() -> None:
    spans = {
        0: "0 ns",
        999: "999 ns",
        1_500: "1.5 us",
        12_345_678: "12.3 ms",
        999_999_999: "1 s",
        812e9: "812 s",
        3e12: "3,000 s",
    }
    assert {ns: span_text(ns) for ns in spans} == spans
    assert (share(1), share(0.99999), share(0.1234), share(0.00001)) == ("100.0 %", "99.999 %", "12.3 %", "0.001 %")


def test_the_page_in_docs_is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "matrix.md"
    assert page.read_text() == matrix_page()


def test_fast_enough_for_a_million_requests() -> None:
    inputs = full_inputs(1_000_000)
    begin = time.process_time()
    build_matrix(inputs)
    # measured 1.0 s on one slow core; the bound catches a quadratic or per-row loop
    assert time.process_time() - begin < 5
