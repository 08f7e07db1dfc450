"""The benchmarks at tiny sizes: figures by name, targets judged the right way round, and comparisons that check themselves."""

from __future__ import annotations

import argparse
import json
import re
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import all as every
from benchmarks import (
    blame,
    dashboard,
    experiment,
    fleet,
    iterations,
    lean,
    lean_side,
    load,
    mooncake,
    policies,
    startup,
    whole,
    workloads,
)
from benchmarks.engine_run import best, replay_nowhere, replay_spooled
from benchmarks.figures import Figure, Report, document, machine, python_reference, table
from benchmarks.workloads import ColumnSource, Load, planned
from replay_engine.config import SchedulerConfig
from replay_engine.profile import load_profile

ROOT = Path(__file__).resolve().parents[2]
LATENCY = load_profile("h100").latency
TINY = Load(name="tiny", requests=60, batch=8, output=(5, 60), target=1e-9)
CONFIG = SchedulerConfig(enable_prefix_caching=False, async_scheduling=False, max_model_len=8192)


def run(main: Any, *arguments: str, capsys: pytest.CaptureFixture[str]) -> str:
    main(list(arguments))
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "target", "at_most", "met"),
    [
        (2.0, 1.0, False, True),
        (0.5, 1.0, False, False),
        (0.5, 1.0, True, True),
        (2.0, 1.0, True, False),
        (0.0, 0.0, True, True),
        (None, 1.0, False, None),
        (1.0, None, False, None),
    ],
)
def test_targets_are_judged_right(value: float | None, target: float | None, at_most: bool, met: bool | None) -> None:
    assert Figure(value=value, unit="x", target=target, at_most=at_most).met is met


def test_a_table_says_what_was_missed() -> None:
    figures = {
        "fast": Figure(value=123_456.0, unit="it/s", target=100_000.0, reference="beside"),
        "slow": Figure(value=3.25, unit="s", target=3.0, at_most=True, note="why"),
        "alone": Figure(value=None, unit="s"),
    }
    text = table({name: figure.as_dict() for name, figure in figures.items()})
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    assert rows[2] == ["fast", "123,456 it/s", ">= 100,000", "yes", "beside"]
    assert rows[3] == ["slow", "3.250 s", "<= 3.000", "NO", "why"]
    assert rows[4] == ["alone", "- s", "", "", ""]


def test_a_document_has_a_figure_per_name_and_the_machine() -> None:
    result = document(Report(benchmark="x", figures={"a": Figure(value=1.0, unit="s")}), machine())
    assert json.loads(json.dumps(result)) == result
    assert result["figures"]["a"]["value"] == 1.0
    assert {"cpu", "cores", "memory_gib", "python", "versions", "load_average_before"} <= set(result["machine"])
    assert str(ROOT) not in json.dumps(result)


def test_the_python_reference_is_a_speed() -> None:
    assert 0.05 < python_reference(2000) < 1000


def test_iterations(capsys: pytest.CaptureFixture[str]) -> None:
    figures = json.loads(run(iterations.main, "--json", "--repeats", "1", "--limit", "40", capsys=capsys))["figures"]
    assert {"caching_on_per_s", "caching_off_per_s", "caching_on_sync_per_s", "caching_off_sync_per_s", "lean_walk_per_s",
            "mean_batch", "python_reference"} == set(figures)  # fmt: skip
    assert figures["caching_on_per_s"]["target"] == 350_000
    assert all(figure["value"] > 0 for figure in figures.values())


def test_mooncake(capsys: pytest.CaptureFixture[str]) -> None:
    figures = json.loads(run(mooncake.main, "--json", "--repeats", "1", "--limit", "60", capsys=capsys))["figures"]
    assert figures["mooncake_per_s"]["target"] == pytest.approx(figures["azure_per_s"]["value"] / 2)
    assert 0 < figures["hit_share"]["value"] < 1


def test_engine(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="the torch engine needs the extra [engine]")
    from benchmarks import engine

    figures = json.loads(run(engine.main, "--json", "--repeats", "1", "--quick", capsys=capsys))["figures"]
    assert {"decode_per_s", "decode_ratio", "host_us", "host_warm_us", "event_log_us"} <= set(figures)
    assert (figures["host_us"]["target"], figures["event_log_us"]["target"], figures["decode_ratio"]["target"]) == (150, 10, 1)
    assert figures["host_us"]["value"] > 0


def test_blame(capsys: pytest.CaptureFixture[str]) -> None:
    figures = json.loads(run(blame.main, "--json", "--repeats", "1", "--requests", "400", capsys=capsys))["figures"]
    assert figures["attribution_s"]["value"] > 0 and figures["attribution_s"]["target"] is None
    assert figures["attribution_ratio"]["value"] == figures["attribution_s"]["value"] / figures["one_pass_s"]["value"]


def test_policies(capsys: pytest.CaptureFixture[str]) -> None:
    figures = json.loads(run(policies.main, "--json", "--repeats", "1", "--scale", "0.02", capsys=capsys))["figures"]
    assert {"plain_per_s", "fair_per_s", "fair_ratio", "priority_per_s", "priority_ratio", "python_reference"} == set(figures)
    for order in policies.ORDERS:
        assert figures[f"{order}_ratio"]["target"] == 0.5
        assert re.search(r", [1-9][\d,]* preemptions", figures[f"{order}_per_s"]["note"])


def test_fleet(capsys: pytest.CaptureFixture[str]) -> None:
    figures = json.loads(run(fleet.main, "--json", "--requests", "800", "--replicas", "3", capsys=capsys))["figures"]
    assert {"us_per_request_200", "us_per_request_800", "peak_800", "growth"} <= set(figures)
    assert figures["peak_800"]["target"] == 2560
    share = float(re.search(r"prefix hit share ([\d.]+)", figures["us_per_request_800"]["note"])[1])  # type: ignore[index]  # no match: the test fails here
    assert 0.1 < share < 0.9


def test_lean(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(lean.main, "--repeats", "1", "--scale", "0.01", capsys=capsys)
    for load_ in lean.LOADS:
        assert re.search(rf"^\| {load_.name}_ratio +\| [\d.]+ x", out, re.MULTILINE), load_.name
    assert out.count("times identical") == len(lean.LOADS)


def test_saturated_loads_preempt() -> None:
    figures = lean.compare(replace(TINY, blocks=600, requests=60, output=(300, 400)), LATENCY, 1)
    assert re.search(r", [1-9]\d* preemptions, times identical", figures["tiny_ratio"].note)


def test_the_lean_comparison_notices_another_time() -> None:
    columns = planned(TINY, LATENCY)
    source = ColumnSource(columns)
    told = lean_side.run_lean(columns.arrival_ns, columns.input_tokens, columns.output_tokens, CONFIG, LATENCY)
    lean_side.check_equal(told, source, CONFIG, LATENCY)
    later = [*told.end_ns[:17], told.end_ns[17] + 1, *told.end_ns[18:]]
    with pytest.raises(RuntimeError, match=r"request 17: .* no comparison"):
        lean_side.check_equal(replace(told, end_ns=later), source, CONFIG, LATENCY)
    with pytest.raises(RuntimeError, match="iterations against"):
        lean_side.check_equal(replace(told, iterations=told.iterations + 1), source, CONFIG, LATENCY)


def test_the_lean_side_refuses_what_it_cannot_do() -> None:
    columns = planned(TINY, LATENCY)
    with pytest.raises(ValueError, match="no prefix cache"):
        lean_side.run_lean(columns.arrival_ns, columns.input_tokens, columns.output_tokens, SchedulerConfig(), LATENCY)
    with pytest.raises(ValueError, match="h1 = h2 = 0"):
        lean_side.lean_latency(replace(LATENCY, h1_ns=1.0))


def test_planned_loads_reach_their_batch() -> None:
    load_ = Load(name="planned", requests=1500, batch=40)
    timed = replay_nowhere(ColumnSource(planned(load_, LATENCY)), CONFIG, LATENCY)
    assert 30 < timed.mean_batch < 50


def test_the_spool_is_written_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    source = ColumnSource(planned(TINY, LATENCY))
    timed = best(2, lambda: replay_spooled(source, CONFIG, LATENCY))
    assert timed.spooled_bytes > 100 * timed.totals.iterations
    assert timed.totals.finished == source.total
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("make", [workloads.azure_conv, workloads.mooncake_conversation])
def test_without_the_traces_synthetic_ones_stand_in(make: Any, tmp_path: Path) -> None:
    source, said = make(200, tmp_path)
    assert source.total == 200
    assert "SYNTHETIC" in said


def test_the_stand_in_is_like_the_trace(tmp_path: Path) -> None:
    source, _ = workloads.azure_conv(None, tmp_path)
    assert source.total == 13_000
    assert source.arrival_ns[-1] / 1e9 == pytest.approx(2190, rel=0.02)
    assert source.prompt_tokens.mean() == pytest.approx(1224, rel=0.1)
    assert source.output_tokens.mean() == pytest.approx(201, rel=0.1)


def test_startup(capsys: pytest.CaptureFixture[str]) -> None:
    figures = json.loads(run(startup.main, "--json", "--repeats", "1", capsys=capsys))["figures"]
    assert figures["help_forbidden"]["value"] == figures["import_forbidden"]["value"] == 0
    assert figures["help_s"]["value"] > figures["import_s"]["value"] / 2 > 0


def test_whole_input_is_the_trace_over_and_over(tmp_path: Path) -> None:
    whole.write_input(tmp_path / "in.csv", 50, 120)
    source = workloads._source(tmp_path / "in.csv", None)
    assert source.total == 120
    assert (source.prompt_tokens[:50] == source.prompt_tokens[50:100]).all()
    assert (source.output_tokens[:20] == source.output_tokens[100:]).all()
    assert (source.arrival_ns[1:] >= source.arrival_ns[:-1]).all()


@pytest.mark.timeout(60)
def test_whole(capsys: pytest.CaptureFixture[str]) -> None:
    figures = json.loads(run(whole.main, "--json", "--quick", "--repeats", "1", "--requests", "30", capsys=capsys))["figures"]
    assert {"replay_19k_wall_s", "replay_19k_cpu_s", "replay_19k_peak_mib", "replay_97k_wall_s", "replay_97k_cpu_s",
            "replay_97k_peak_mib", "python_reference"} == set(figures)  # fmt: skip
    assert figures["replay_97k_wall_s"]["note"].startswith("150 requests, ")
    assert figures["replay_19k_wall_s"]["target"] is None
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # counted into a child's peak at the fork
    assert 20 < figures["replay_19k_peak_mib"]["value"] < 1000 + own


def test_dashboard(capsys: pytest.CaptureFixture[str]) -> None:
    figures = json.loads(run(dashboard.main, "--json", "--iterations", "30000", "--repeats", "1", capsys=capsys))["figures"]
    assert figures["worst_seen"]["value"] == 1
    assert figures["open_s"]["value"] > figures["zoom_s"]["value"] > 0


def test_all_writes_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    every.main(["--only", "startup", "--results", str(tmp_path)])
    assert "== startup" in capsys.readouterr().out
    (stored,) = tmp_path.glob("*.json")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-[a-z0-9-]+-\d+-cores\.json", stored.name)
    (result,) = json.loads(stored.read_text(encoding="utf-8"))["benchmarks"]
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert all(f"| {name} " in text for name in result["figures"])
    assert "## startup" in text


def test_all_puts_targets_to_the_load_figures() -> None:
    given = {"azure_ratio": 3.0, "mooncake_ratio": 5.0, "azure_peak_mib": 200.0, "azure_load_s": 1.0}
    figures = every._load_document(given, machine())["figures"]
    assert [figures[name]["met"] for name in given] == [True, False, True, None]


def test_every_benchmark_is_run_by_all_and_stands_in_the_docs() -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    runnable = {p.stem for p in (ROOT / "benchmarks").glob("*.py") if "__main__" in p.read_text(encoding="utf-8")}
    by_hand = {  # minutes, gigabytes
        "load_large", "case_references", "fleet", "calibration", "calibrate_logs", "observed_fit", "rank_agreement", "tuner_grid",
        "cases", "cases_observed", "planted", "diagnose", "tuner", "gate",
    }  # fmt: skip
    assert runnable - {"all"} - by_hand == set(every.NAMES)
    assert all(f"benchmarks.{name}" in text for name in runnable)
    assert load.main.__doc__


def test_options_are_those_that_measure_reads() -> None:
    parser = argparse.ArgumentParser()
    lean._options(parser)
    assert vars(parser.parse_args([])) == {"repeats": 3, "scale": 1.0, "only": None}


def test_an_experiment_in_two_processes_concludes_as_one_does(capsys: pytest.CaptureFixture[str]) -> None:
    result = json.loads(run(experiment.main, "--json", "--quick", "--repeats", "1", capsys=capsys))
    figures = result["figures"]
    assert {"hour_speedup", "hour_speedup_by_cpu", "hour_one_process_s", "hour_several_s"} <= set(figures)
    assert figures["hour_speedup"]["value"] == pytest.approx(
        figures["hour_one_process_s"]["value"] / figures["hour_several_s"]["value"]
    )
    assert 0.2 < figures["hour_speedup_by_cpu"]["value"] <= 2.2
