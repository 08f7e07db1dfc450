"""SLO rules by value: parsing, overrides, who met, attainment and goodput."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay_engine.tables import OUTCOMES
from replay_engine.types import RequestState
from tests.metrics.synthetic import CONFIG, Totals, finished_rows, unfinished, walk
from tracekit.errors import UsageError
from tracekit.metrics import Labels, MatrixInputs, Slo, SloTable, build_matrix, evaluate_slo, parse_goodput, parse_slo
from tracekit.metrics.distributions import wilson
from tracekit.metrics.gaps import token_gaps
from tracekit.metrics.slo import stall_threshold

MS = 1_000_000


def inputs_of(rows: np.ndarray, **more: object) -> MatrixInputs:
    return MatrixInputs(outcomes=rows, totals=Totals(), scheduler=CONFIG, **more)  # type: ignore[arg-type]


def test_both_spellings_parse_to_nanoseconds() -> None:
    assert parse_slo("ttft=500ms,tpot=50ms,e2e=30s") == Slo(ttft_ns=500 * MS, tpot_ns=50 * MS, e2e_ns=30_000 * MS)
    assert parse_slo("itl=1.5us, stall=2m") == Slo(itl_ns=1_500, stall_ns=120_000 * MS)
    assert parse_slo("e2e=1.5h") == Slo(e2e_ns=5_400_000 * MS)
    assert parse_goodput("ttft:200 tpot:50 e2el:5000") == Slo(ttft_ns=200 * MS, tpot_ns=50 * MS, e2e_ns=5_000 * MS)
    assert parse_goodput(["ttft:0.5"]) == Slo(ttft_ns=500_000)


LIMITS = st.none() | st.integers(1, 10**12)


@given(st.builds(Slo, ttft_ns=LIMITS, tpot_ns=st.integers(1, 10**12), e2e_ns=LIMITS))
def test_an_slo_is_written_as_it_is_read(slo: Slo) -> None:
    assert parse_slo(slo.text()) == slo


def test_an_slo_is_written_in_the_units_of_people() -> None:
    assert Slo(ttft_ns=2_000 * MS, tpot_ns=50 * MS, itl_ns=1_500, stall_ns=3).text() == "ttft=2s,tpot=50ms,itl=1500ns,stall=3ns"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("ttft=500", "expected a number with its unit (ns, us, ms, s, m, h)"),
        ("ttft=0ms", "between 1 ns and a year"),
        ("ttft=1e30s", "between 1 ns and a year"),
        ("ttft=nan", "expected a number"),
        ("first=1s", "expected one of ttft, tpot, itl, stall, e2e"),
        ("ttft=1s,ttft=2s", "given twice"),
        ("ttft", "expected NAME=TIME"),
        ("", "expected NAME=TIME"),
    ],
)
def test_bad_slo_text_is_refused_in_one_line(text: str, part: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_slo(text)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "ttft", "ttft:x", "ttft:-1", "e2x:5"])
def test_bad_goodput_text_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_goodput(text)


def test_policy_tables_override_part_by_part() -> None:
    table = SloTable.from_policy(
        {
            "ttft": "500ms",
            "tpot": "50ms",
            "class": {"batch": {"ttft": "60s", "tpot": "none"}},
            "tenant": {"gold": {"ttft": "200ms"}},
        },
        default=Slo(tpot_ns=40 * MS),
    )
    assert table.default == Slo(ttft_ns=500 * MS, tpot_ns=40 * MS)
    classes, tenants = np.array([0, 0, -1, -1]), np.array([1, -1, 1, -1])
    names = {"class_codes": classes, "class_names": ["batch"], "tenant_codes": tenants, "tenant_names": ["x", "gold"]}
    ttft = table.limits("ttft", 4, **names)  # type: ignore[arg-type]
    assert ttft.tolist() == [200 * MS, 60_000 * MS, 200 * MS, 500 * MS]
    tpot = table.limits("tpot", 4, **names)  # type: ignore[arg-type]
    assert tpot.tolist() == [np.iinfo(np.int64).max] * 2 + [40 * MS] * 2
    assert SloTable.from_dict(table.to_dict()) == table  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "table",
    [{"ttft": 5}, {"first": "1s"}, {"class": 5}, {"tenant": {"x": 5}}, {"tenant": {"x": {"ttft": "1"}}}],
)
def test_bad_policy_tables_are_refused(table: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        SloTable.from_policy(table)


def test_stall_threshold_rule() -> None:
    assert stall_threshold(SloTable(default=Slo(tpot_ns=10))) == (30, "3 x the tpot SLO")
    assert stall_threshold(SloTable(classes={"a": {"tpot_ns": 7}, "b": {"tpot_ns": None}}))[0] == 21
    assert stall_threshold(None, 5) == (15, "3 x the baseline's median gap")
    assert stall_threshold(SloTable(default=Slo(ttft_ns=1))) == (None, "no tpot SLO and no baseline")


def cases() -> np.ndarray:
    """Eight requests, each of which isolates one rule (limits: ttft 100, tpot 10, stall 50, e2e 1000)."""
    rows = np.zeros(8, OUTCOMES)
    rows["request"] = np.arange(8)
    rows["arrival_ns"] = np.arange(8) * 1_000_000_000
    rows["output_tokens"], rows["prompt_tokens"] = 10, 5
    rows["ttft_ns"], rows["tpot_ns"], rows["max_gap_ns"], rows["e2e_ns"] = 100, 10.0, 50, 1_000
    rows["last_token_ns"] = rows["arrival_ns"] + rows["e2e_ns"]
    rows["ttft_ns"][1] = 101
    rows["tpot_ns"][2] = 10.001
    rows["max_gap_ns"][3] = 51
    rows["e2e_ns"][4] = 1_001
    rows["output_tokens"][5], rows["tpot_ns"][5], rows["max_gap_ns"][5] = 1, np.nan, -1
    unfinished(rows, 6, RequestState.rejected)
    unfinished(rows, 7, RequestState.timed_out)
    return rows


LIMITS = SloTable(default=Slo(ttft_ns=100, tpot_ns=10, stall_ns=50, e2e_ns=1_000))


def test_each_part_and_the_undefined_and_the_unfinished() -> None:
    result = evaluate_slo(inputs_of(cases(), slo=LIMITS), cases())
    assert not isinstance(result, str)
    assert result.met.tolist() == [True, False, False, False, False, True, False, False]
    assert result.missed_by == {"ttft": 1, "tpot": 1, "stall": 1, "e2e": 1, "not_finished": 2}


def test_goodput_attainment_and_groups_by_value() -> None:
    tenants = Labels(codes=np.array([0, 0, 1, 1, 0, 1, -1, 0]), names=["a", "b"])
    matrix = build_matrix(inputs_of(cases(), slo=LIMITS, tenants=tenants))
    slo = matrix["slo"]
    assert slo["window_ns"] == 7_000_000_000
    assert slo["attainment"] == {"share": 0.25, "low": wilson(2, 8)[0], "high": wilson(2, 8)[1], "met": 2, "n": 8}
    assert slo["goodput_requests_per_s"] == pytest.approx(2 / 7)
    assert slo["goodput_tokens_per_s"] == pytest.approx(11 / 7)
    assert {name: (row["attainment"]["met"], row["attainment"]["n"]) for name, row in slo["by_tenant"].items()} == {
        "a": (1, 4),
        "b": (1, 3),
        "(no tenant)": (0, 1),
    }
    assert slo["by_class"] == {"value": None, "reason": "the trace has no class column"}
    assert matrix["throughput"]["window_requests_per_s"] >= slo["goodput_requests_per_s"]


def test_requests_without_an_outcome_are_missed() -> None:
    matrix = build_matrix(inputs_of(cases(), slo=LIMITS, requests=10))
    assert matrix["slo"]["attainment"]["n"] == 10
    assert matrix["slo"]["missed_by"]["not_ended"] == matrix["counted"]["not_ended"] == 2


def test_lead_in_is_left_out_of_every_denominator() -> None:
    counted = np.array([False, True, True, True, True, True, True, True])
    matrix = build_matrix(inputs_of(cases(), slo=LIMITS, counted=counted))
    assert (matrix["slo"]["attainment"]["met"], matrix["slo"]["attainment"]["n"]) == (1, 7)
    assert matrix["counted"]["lead_in_requests"] == 1


def test_cancelled_is_met_until_a_part_was_violated() -> None:
    rows = cases()[:4].copy()
    rows["state"] = RequestState.cancelled
    rows["e2e_ns"] = -1
    rows["ttft_ns"] = [50, -1, -1, 50]
    rows["tpot_ns"], rows["max_gap_ns"] = np.nan, -1
    rows["last_token_ns"] = np.where(rows["ttft_ns"] >= 0, rows["arrival_ns"] + 50, -1)
    cancel = rows["arrival_ns"] + [90, 90, 101, 101]
    result = evaluate_slo(inputs_of(rows, slo=LIMITS, cancel_ns=cancel), rows)
    assert not isinstance(result, str)
    # the third waited 101 for its first token, the fourth 51 for its second
    assert result.met.tolist() == [True, True, False, False]
    assert result.cancelled_met == 2
    assert result.missed_by["not_finished"] == 0


def test_degraded_is_missed_unless_accepted() -> None:
    degraded = np.zeros(8, np.bool_)
    degraded[0] = True
    given = inputs_of(cases(), slo=LIMITS, degraded=degraded)
    assert build_matrix(given)["slo"]["attainment"]["met"] == 1
    assert build_matrix(given)["slo"]["degraded_requests"] == 1
    assert build_matrix(replace(given, accept_degraded=True))["slo"]["attainment"]["met"] == 2


def test_request_columns_and_deadlines_beat_the_table() -> None:
    own = np.full(8, -1)
    own[1] = 101
    deadline = np.full(8, -1)
    deadline[0] = 999
    given = inputs_of(cases(), slo=LIMITS, request_slo={"ttft_ns": own, "deadline_ns": deadline})
    result = evaluate_slo(given, cases())
    assert not isinstance(result, str)
    assert result.met.tolist()[:2] == [False, True]
    alone = evaluate_slo(inputs_of(cases(), request_slo={"deadline_ns": deadline}), cases())
    assert not isinstance(alone, str)
    assert alone.met.tolist() == [False, *[True] * 5, False, False]


def test_itl_part_is_the_p99_of_the_requests_gaps() -> None:
    world = walk(11, requests=40, iterations=400)
    gaps = token_gaps(world.iterations, world.spans, world.outcomes)
    table = SloTable(default=Slo(itl_ns=20_050))
    result = evaluate_slo(inputs_of(world.outcomes, slo=table, gaps=gaps), world.outcomes)
    assert not isinstance(result, str)
    for row, met in zip(world.outcomes, result.met, strict=True):
        own = world.gaps(int(row["request"]))
        fits = not own or np.percentile(own, 99) <= 20_050
        assert met == (fits and row["state"] == RequestState.finished)
    assert 0 < result.met.sum() < 40
    without = build_matrix(inputs_of(world.outcomes, slo=table))["slo"]["attainment"]
    assert without["value"] is None
    assert "--events full" in without["reason"]


def test_goodput_is_null_without_an_slo() -> None:
    slo = build_matrix(inputs_of(finished_rows(5)))["slo"]
    assert all(value["value"] is None and "no SLO" in value["reason"] for value in slo.values())


def test_rates_are_per_run_where_arrivals_depend_on_completions() -> None:
    rows = finished_rows(50)
    table = SloTable(default=Slo(e2e_ns=10**15))
    slo = build_matrix(inputs_of(rows, slo=table, arrivals_depend=True))["slo"]
    run_ns = int(rows["last_token_ns"].max() - rows["arrival_ns"].min())
    assert slo["window_ns"] == run_ns
    assert slo["goodput_requests_per_s"] == pytest.approx(50 / run_ns * 1e9)
    assert "depend" in slo["window_basis"]


def test_wilson_interval_known_values() -> None:
    low, high = wilson(8, 10)
    assert (low, high) == pytest.approx((0.4901625, 0.9433178), abs=1e-6)
    assert wilson(0, 5)[0] == 0.0
    assert wilson(5, 5)[1] == 1.0
