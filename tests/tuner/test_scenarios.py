"""Scenarios of capacity: other traffic, KV, SLO and price, against the same asked with options, and arithmetic done here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replay_engine.config import ConfigError
from replay_engine.profile import load_profile
from replay_engine.tables import ITERATIONS
from tracekit.capacities import list_capacities, load_capacity
from tracekit.cli.main import main
from tracekit.errors import UsageError
from tracekit.jobs import JOB_VARIABLE, Job, list_jobs, show
from tracekit.store import Store
from tracekit.trust.regime import extrapolation
from tuner import CapacityReport, capacity
from tuner.objective import attainment
from tuner.planning import cards_of
from tuner.ranges import RangeMeter, fitted_ranges, outside_words

SMALL: dict[str, Any] = {"slo": "ttft=2s", "windows": 1, "length": "10s", "price_per_hour": 3.0}
QUESTIONS = ("isl_scale=2 burst_scale=0.5", "rate_scale=2 fleet.replicas=2 fleet.router=least_tokens price_per_hour=4",
             "kv_scale=0.5 slo=ttft=4s hardware=h200")  # fmt: skip
H100 = load_profile("h100")


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scenarios") / "a.duckdb"


@pytest.fixture(scope="module")
def report(bursts: str, db: Path) -> CapacityReport:
    return capacity(bursts, db=db, what_if=QUESTIONS, **SMALL)


def test_traffic_of_a_what_if_is_that_of_the_option(report: CapacityReport, bursts: str, db: Path) -> None:
    asked = capacity(bursts, db=db, isl_scale=2.0, burst_scale=0.5, **SMALL).document
    same, both = report.document["what_if"][0], ("factor", "attainment_now", "points", "curve", "slope")
    assert {name: same[name] for name in both} == {name: asked[name] for name in both}
    assert asked["factor"] < report.document["factor"]
    assert same["replicas"] == asked["replicas"]


def test_every_rate_that_was_tried_is_a_point(report: CapacityReport) -> None:
    for row in (report.document, *report.document["what_if"]):
        points = {point["factor"]: point for point in row["points"]}
        assert list(points) == sorted(points) and {row["rate_scale"], row["factor"]} <= set(points)
        assert points[row["rate_scale"]]["attainment"] == row["attainment_now"]
        assert points[row["factor"]]["attainment"] >= 0.9 > points[row["above"]]["attainment"]
        for point in points.values():
            assert point["requests_per_s"] == pytest.approx(point["factor"] * row["requests_per_s"] / row["factor"])


def test_each_kind_of_extrapolation_is_marked_in_words(report: CapacityReport) -> None:
    base, longer, doubled, other = (report.document, *report.document["what_if"])
    assert base["range_known"] and base["extrapolation"] == []
    assert longer["extrapolation"] == []  # a trace without prefix blocks has none that could break
    assert other["extrapolation"] == ["hardware by arithmetic on h100-llama-3.1-8b, nothing of it was measured"]
    assert all(point["extrapolation"][0] == other["extrapolation"][0] for point in other["points"])
    assert "EXTRAPOLATION at every rate: hardware by arithmetic" in report.text
    assert doubled["rate_scale"] == 2.0


def test_scaled_prefixes_are_an_extrapolation(tmp_path: Path) -> None:
    rows = [{"timestamp": 400 * i, "input_length": 2048, "output_length": 20, "hash_ids": [0, 1, i % 5 + 2, 100 + i]}
            for i in range(60)]  # fmt: skip
    trace = tmp_path / "mooncake.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = capacity(str(trace), db=tmp_path / "a.duckdb", what_if=["isl_scale=0.5", "rate_scale=2"], slo="ttft=1s",
                     windows=1, length="20s").document  # fmt: skip
    shorter, faster = found["what_if"]
    assert "its prefix hashes break there: what was shared behind the cut is shared no more" in shorter["extrapolation"][0]
    assert all(point["extrapolation"] for point in shorter["points"])
    assert faster["extrapolation"] == []


def test_kv_is_scaled_and_sized_by_arithmetic(bursts: str, db: Path, report: CapacityReport) -> None:
    from tuner.capacity import _DEFAULTS, _READING
    from tuner.planning import make_plan
    from tuner.what_if import resolve_what_if

    given = {**_DEFAULTS, **_READING, **SMALL, "trace": "bursts"}
    plan = make_plan(Store(db), given, lambda _: None)
    whole = plan.policy.scheduler.num_gpu_blocks
    assert resolve_what_if(plan, "kv_scale=0.5").policy.scheduler.num_gpu_blocks == round(whole / 2)
    assert H100.model is not None
    block = H100.model.kv_bytes_per_token * plan.policy.scheduler.block_size
    assert resolve_what_if(plan, "kv_memory=8GiB").policy.scheduler.num_gpu_blocks == 8 * 2**30 // block
    two = resolve_what_if(plan, "fleet.replicas=2 fleet.router=least_tokens kv_scale=2")
    assert (two.policy.scheduler.num_gpu_blocks, cards_of(two.policy, two.profile)) == (2 * whole, 2)
    changed = resolve_what_if(plan, "slo=ttft=4s,tpot=80ms rate_scale=1.5 price_per_hour=7")
    assert changed.slo is not None and changed.slo.default is not None
    assert (changed.slo.default.limit("ttft"), changed.slo.default.limit("tpot")) == (4 * 10**9, 80 * 10**6)
    assert (changed.traffic, changed.price, changed.policy) == ({"rate_scale": 1.5}, 7.0, plan.policy)
    assert resolve_what_if(plan, "mix=a:2,b:0").mix == "a:2,b:0"
    for text, why in (("kv_scale=0", "above 0"), ("kv_scale=1 kv_memory=1GiB", "expected one of them"),
                      ("rate_scale=x", "above 0"), ("burst_scale=-1", "from 0"), ("slo=fast", "SLO part"),
                      ("mix=a", "cannot be read"), ("kv_memory=nanGiB", "above 0")):  # fmt: skip
        with pytest.raises((UsageError, ConfigError), match=why):
            resolve_what_if(plan, text)


def test_costs_are_of_the_cards_hours_and_the_tokens_that_counted(report: CapacityReport) -> None:
    base, _, doubled, _ = (report.document, *report.document["what_if"])
    for row, price, cards in ((base, 3.0, 1), (doubled, 4.0, 2)):
        now, knee, needed = row["cost"]["rows"]
        assert (now["at"], knee["at"], needed["at"]) == ("now", "knee", "needed")
        assert now["per_hour"] == price * cards == knee["per_hour"] and now["rate"] == row["rate_scale"]
        assert needed["per_hour"] == price * row["replicas"]["replayed"]
        for each in (now, knee, needed):
            hours = 10 / 3600 / each["rate"]
            assert each["per_million_output"] == pytest.approx(each["per_hour"] * hours / each["output_tokens"] * 1e6, rel=0.02)
            total = each["output_tokens"] + each["input_tokens"] + each["cached_input_tokens"]
            assert each["per_million_input_and_output"] * total == pytest.approx(
                each["per_million_output"] * each["output_tokens"]
            )
            assert 0 <= each["idle"] <= 1
        assert knee["per_million_output"] < now["per_million_output"] or row["factor"] < row["rate_scale"]
    assert "cost at the knee: 3 an hour for 1 card" in report.text


def test_replicas_window_by_window(report: CapacityReport) -> None:
    for row in (report.document, *report.document["what_if"]):
        replicas = row["replicas"]
        assert len(replicas["slot_s"]) == len(replicas["slots"]) == len(replicas["bound"])
        ((begin, end),) = replicas["window_s"]
        ends = [replicas["slot_s"][0][0], replicas["slot_s"][-1][1]]
        assert ends == pytest.approx([begin, end], abs=1e-3)
        assert replicas["replayed_by_window"] == [replicas["replayed"]]  # one window: the same question twice
    doubled, base = report.document["what_if"][1]["replicas"], report.document["replicas"]
    np.testing.assert_allclose(doubled["slots"], np.array(base["slots"]) * 2, rtol=0.02)


def test_a_meter_says_what_the_trust_report_says() -> None:
    rng = np.random.default_rng(1)
    rows = np.zeros(500, ITERATIONS)
    rows["duration_ns"] = rng.integers(10**6, 10**8, 500)
    rows["decode_seqs"] = rng.integers(0, 200, 500)
    rows["prefill_tokens"] = rng.integers(0, 9000, 500)
    kept: list[str] = []

    class Sink:
        def append(self, table: str, rows: Any) -> None:
            kept.append(table)

    meters = [RangeMeter(H100, Sink(), keep=keep) for keep in (True, False)]
    for meter in meters:
        for part in (rows[:200], rows[200:]):
            meter.append("iterations", part)
        meter.append("outcomes", rows[:0])
    assert kept == ["iterations", "iterations", "outcomes", "outcomes"]
    found = meters[0].result()
    for each in extrapolation(H100, rows):
        (column,) = [name for name, span in fitted_ranges(H100).items() if list(span) == each["fitted"]]
        outside, high = found["columns"][column]
        assert outside / found["total_ns"] == pytest.approx(each["time_outside"]) and high == each["reached"][1]
    words = outside_words(H100, [found])
    assert any("decoding sequences (up to 199)" in text and "(1 to 128)" in text for text in words)
    inside = {"total_ns": 10**9, "columns": {"decode_seqs": [10**6, 130], "prefill_tokens": [0, 100]}}
    assert outside_words(H100, [inside]) == []  # a thousandth of the time


def test_the_answer_is_kept_and_found_again(report: CapacityReport, db: Path) -> None:
    store, key = Store(db), report.document["capacity"]
    assert load_capacity(store, key[:8]) == json.loads(json.dumps(report.document))
    assert key in [each.key for each in list_capacities(store)]
    (job,) = [job for job in list_jobs(store.folder) if (job.result or {}).get("capacity") == key]
    assert (job.kind, job.state, job.id) == ("capacity", "finished", report.document["job"])
    assert job.progress is not None and job.progress["done"] == job.progress["total"]
    for ref in ("", "..", "*", "0000", key + "0"):
        with pytest.raises(UsageError, match="no such answer"):
            load_capacity(store, ref)


def test_it_stops_when_asked_and_goes_on_where_it_stopped(bursts: str, db: Path, report: CapacityReport,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    job = Job.create(Store(db).folder, "capacity", {"argv": []})
    (job.folder / "cancel").touch()
    monkeypatch.setenv(JOB_VARIABLE, str(job.folder))
    with pytest.raises(KeyboardInterrupt):
        capacity(bursts, db=db, what_if=QUESTIONS, **SMALL)
    assert show(Store(db).folder, job.id).state == "cancelled"
    again: list[str] = []
    second = capacity(bursts, db=db, what_if=QUESTIONS, progress=lambda done, total, note: again.append(note), **SMALL)
    different = {"job", "answered_at"}
    assert {name: value for name, value in second.document.items() if name not in different} == {
        name: value for name, value in report.document.items() if name not in different
    }
    assert any("rate_scale=2" in note for note in again)


def test_the_options_of_the_command(bursts: str, db: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["capacity", bursts, "--slo", "ttft=2s", "--windows", "1", "--length", "10s", "--db", str(db)]
    assert main([*words, "--burst-scale", "-1"]) == 2
    assert "--burst-scale -1.0: expected 0 (even arrivals)" in capsys.readouterr().err
    assert main([*words, "--price-per-hour", "0"]) == 2
    assert "expected a price above 0" in capsys.readouterr().err
    assert main([*words, "--price-per-hour", "3", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["cost"]["price_per_hour"] == 3.0 and attainment([{"met": 1, "n": 2}]) == 0.5
