"""Whole experiments on real traces and a real database: figures, verdicts, what is kept, what a kill leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tracekit.cli.main import main
from tracekit.experiments import ExperimentReport
from tracekit.experiments.measures import MEASURES
from tracekit.replay import replay
from tracekit.store import Store, list_experiments, load_experiment

SLO = "stall=60ms"
VARY = "max_num_batched_tokens=8192,512"
COMMAND = [sys.executable, "-m", "tracekit.cli.main", "experiment"]


def run(traces: list[str] | str, db: Path, **options: Any) -> ExperimentReport:
    return tracekit.experiment(traces, db=db, **{"vary": VARY, "pin": True, "slo": SLO, "windows": 4, "jobs": 1, **options})


@pytest.fixture(scope="module")
def report(traces: list[str], tmp_path_factory: pytest.TempPathFactory) -> ExperimentReport:
    """Both traces, one process; its database is ``report.lines[-1]``'s neighbour."""
    db = tmp_path_factory.mktemp("experiment") / "a.duckdb"
    found = run(traces, db)
    assert found.replayed == 16
    return found


def change(document: dict[str, Any], measure: str, trace: int = 0, level: int = 1) -> dict[str, Any]:
    key = (trace, level, measure)
    found: dict[str, Any] = next(c for c in document["changes"] if (c["trace"], c["level"], c["measure"]) == key)
    return found


def test_a_small_budget_shortens_the_gaps_of_bursts_and_the_report_says_so(report: ExperimentReport) -> None:
    document = report.document
    found = change(document, "longest_gap", trace=1)
    assert found["verdict"] == "better"
    assert found["interval"]["n"] == 4 and found["interval"]["high"] < -0.3
    assert change(document, "attainment", trace=1)["verdict"] == "better"
    assert change(document, "rejections", trace=1)["verdict"] == "same"
    first, *_ = report.text.splitlines()
    assert first.startswith("max_num_batched_tokens=512 against 8192: SLO-goodput, requests/s ")
    assert "light " in first and "bursts better, " in first
    for line in ("light: 240 requests, ", "bursts: 200 requests, ", "pinned: max_num_seqs=512"):
        assert line in report.text
    assert report.conclusive


def test_what_holds_in_all_traces_in_some_and_in_none(report: ExperimentReport) -> None:
    across = {each["measure"]: each for each in report.document["across"]}
    for measure in MEASURES:
        verdicts = [change(report.document, measure, trace)["verdict"] for trace in (0, 1)]
        clear = {v for v in verdicts if v in ("better", "worse", "higher", "lower")}
        expected = "none" if not clear else "all" if len(set(verdicts)) == 1 else "some"
        assert across[measure]["holds"] == expected, measure
        assert sorted(t for where in across[measure]["where"].values() for t in where) == [0, 1]
    assert "some" in {each["holds"] for each in across.values()}


def test_a_cell_is_what_replay_gives_for_its_window(report: ExperimentReport, traces: list[str], tmp_path: Path) -> None:
    cell = next(each for each in report.document["replays"] if (each["trace"], each["window"], each["level"]) == (1, 2, 1))
    window = report.document["traces"][1]["windows"][2]
    option = f"{window['begin_ns']}ns:{window['end_ns']}ns"
    matrix = replay(
        traces[1],
        sets=["max_num_batched_tokens=512", *report.document["pinned"]],
        slo=SLO,
        window=option,
        db=str(tmp_path / "b.duckdb"),
    ).matrix
    assert cell["requests"] == matrix["counted"]["requests"] == window["requests"]
    assert cell["figures"]["ttft_p95"]["value"] == matrix["latency"]["ttft_ns"]["p95"]
    assert cell["figures"]["goodput"]["value"] == matrix["slo"]["goodput_requests_per_s"]
    assert cell["figures"]["longest_gap"]["value"] == matrix["latency"]["longest_gap_ns"]["max"]
    assert cell["figures"]["kv_high_water"]["value"] == matrix["kv"]["high_water_share"]
    assert cell["figures"]["preemptions"]["value"] == matrix["preemption"]["preemptions"]


def without_times(document: dict[str, Any]) -> dict[str, Any]:
    replays = [{name: value for name, value in each.items() if name != "wall_s"} for each in document["replays"]]
    return {**document, "replays": replays, "experiment": 0}


def test_workers_give_the_same_and_what_is_recorded_is_not_replayed(
    report: ExperimentReport, traces: list[str], tmp_path: Path
) -> None:
    db = tmp_path / "a.duckdb"
    several = run(traces, db, jobs=2)
    assert several.replayed == 16
    assert without_times(several.document) == without_times(report.document)
    assert [each.name for each in (tmp_path / "a.duckdb.d" / "experiments").iterdir()] == ["1.manifest.json"]  # no piece is left
    again = run(["light", "bursts"], db)  # by name: the same bytes
    assert (again.experiment, again.replayed) == (several.experiment, 0)
    assert again.document == several.document
    fresh = run(traces, db, fresh=True, name="afresh")
    assert (fresh.experiment, fresh.replayed) == (2, 16)
    assert without_times(fresh.document) == without_times(report.document)
    listed = list_experiments(Store(db))
    assert [(each["experiment"], each["name"], each["factor"]) for each in listed] == [
        (1, None, "max_num_batched_tokens"), (2, "afresh", "max_num_batched_tokens")
    ]  # fmt: skip
    row = load_experiment(Store(db), 2)
    assert row["levels"] == ["8192", "512"] and row["traces"] == ["light", "bursts"]
    assert len(row["results"]) == 16 and len(row["verdicts"]["changes"]) == 2 * len(MEASURES)


def test_another_question_is_another_experiment(report: ExperimentReport, traces: list[str], tmp_path: Path) -> None:
    options: list[dict[str, Any]] = [{}, {"slo": "ttft=200ms"}, {"windows": 3}, {"rate_scale": 2.0}]
    keys = {run(traces[0], tmp_path / "a.duckdb", **{"windows": 2, **each}).document["key"] for each in options}
    assert len(keys) == len(options)


def test_a_knob_without_effect_is_the_same_everywhere(traces: list[str], tmp_path: Path) -> None:
    found = run(traces[0], tmp_path / "a.duckdb", vary="watermark=0,0.0001")
    assert {each["verdict"] for each in found.document["changes"]} == {"same"}
    assert "the same in all 4 windows" in found.text and "exactly the same in this trace: " in found.text
    assert found.conclusive


def test_without_an_slo_the_tail_decides_and_goodput_says_why_not(traces: list[str], tmp_path: Path) -> None:
    found = run(traces[1], tmp_path / "a.duckdb", slo=None)
    assert found.document["leading"] == "ttft_p99"
    goodput = change(found.document, "goodput")
    assert (goodput["verdict"], goodput["left_out"]) == ("cannot tell", 4)
    assert "no SLO given" in goodput["why"]


def test_gaps_are_kept_where_the_slo_asks_for_them(traces: list[str], tmp_path: Path) -> None:
    found = run(traces[0], tmp_path / "a.duckdb", slo="itl=30ms", windows=2)
    assert change(found.document, "attainment")["interval"]["n"] == 2


def test_sessions_are_windowed_by_their_roots(tmp_path: Path) -> None:
    path = str(tmp_path / "talks.jsonl")
    sessions = ["--sessions", "turns=geometric:mean=4 think=fixed:2"]
    assert (
        main(["synth", path, "--requests", "800", "--arrival", "poisson:rate=1", "--input", "400", "--output", "50", *sessions])
        == 0
    )
    found = run(path, tmp_path / "a.duckdb", windows=3)
    assert change(found.document, "ttft_p50")["interval"]["n"] == 3
    assert found.document["traces"][0]["traffic"]["sessions"] > 50
    assert " sessions, " in found.text


def command(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen([*COMMAND, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("experiments/*/t*.json")}


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_killed_experiment_goes_on_where_it_was(traces: list[str], tmp_path: Path, jobs: str) -> None:
    db, folder = tmp_path / "a.duckdb", tmp_path / "a.duckdb.d"
    options = ["--vary", VARY, "--pin", "--slo", SLO, "--windows", "4", "--jobs", jobs, "--db", db, "--json"]
    before: dict[str, bytes] = {}
    for wanted in (1, 4):
        child = command(traces[0], *options)
        deadline = time.monotonic() + 120
        while len(finished(folder)) < wanted and time.monotonic() < deadline:
            time.sleep(0.002)
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
        time.sleep(0.5)  # a worker ends with the replay that it is in
        now = finished(folder)
        assert len(now) >= wanted and before.items() <= now.items()
        before = now
    there = len(before)
    report = run(traces[0], db)
    assert report.replayed == 8 - there
    assert there == 8 or f"{there} of 8 replays are there from before; {8 - there} to go" in report.lines
    whole = run(traces[0], tmp_path / "b.duckdb")
    assert without_times(report.document) == without_times(whole.document)
    kept = {f"t{each['trace']}-w{each['window']}-l{each['level']}.json": each["wall_s"] for each in report.document["replays"]}
    assert all(kept[name] == json.loads(text)["wall_s"] for name, text in before.items())


@pytest.mark.parametrize("jobs", ["2"])
def test_an_interrupted_experiment_says_130_and_goes_on(traces: list[str], tmp_path: Path, jobs: str) -> None:
    db, folder = tmp_path / "a.duckdb", tmp_path / "a.duckdb.d"
    options = [traces[0], "--vary", VARY, "--pin", "--windows", "4", "--jobs", jobs, "--db", db]
    child = command(*options)
    deadline = time.monotonic() + 120
    while len(finished(folder)) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=120)
    assert child.returncode == 130
    assert "the same command goes on where it stopped" in err and "Traceback" not in err
    there = len(finished(folder))
    assert 2 <= there < 8
    results = [json.loads(path.read_text()) for path in folder.glob("jobs/*/result.json")]
    assert [(each["exit_code"], each["cancelled"]) for each in results] == [(130, True)]
    assert run(traces[0], db, slo=None).replayed == 8 - there


def test_a_worker_that_dies_is_one_line_and_loses_nothing(traces: list[str], tmp_path: Path) -> None:
    import psutil

    db, folder = tmp_path / "a.duckdb", tmp_path / "a.duckdb.d"
    child = command(traces[0], "--vary", VARY, "--pin", "--windows", "4", "--jobs", "2", "--db", db)
    deadline = time.monotonic() + 120
    while len(finished(folder)) < 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    (template,) = psutil.Process(child.pid).children()
    assert template.num_threads() == 1  # what forks has nothing beside it that a fork would cut off
    template.children()[0].kill()
    _, err = child.communicate(timeout=120)
    assert child.returncode == 5 and not psutil.pid_exists(template.pid)
    assert "a worker process ended with code -9" in err.splitlines()[-1] and "Traceback" not in err
    there = len(finished(folder))
    assert run(traces[0], db, slo=None).replayed == 8 - there


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--vary", VARY], 2, "two factors: max_num_seqs moves too"),
        (["--vary", "max_num_seqs=8"], 2, "expected at least two"),
        (["--vary", "max_num_seqs=8,16", "--vary", "block_size=16,32"], 2, "--vary block_size=16,32: a second factor"),
        (["--vary", VARY, "--pin", "--length", "soon"], 2, "--length"),
        (["--vary", VARY, "--pin", "--window", "5m"], 2, "--window"),
        (["--vary", VARY, "--pin", "--slo", "tfft=1s"], 2, "ttft"),
        (["--vary", "front_door.reject_hopeless=false,true"], 2, "no TTFT SLO is given"),
        (["--vary", VARY, "--pin", "--base", "nope.toml"], 2, "No such file"),
    ],
)
def test_mistakes_are_one_line_before_any_replay(
    traces: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str], options: list[str], code: int, message: str
) -> None:
    assert main(["experiment", traces[0], *options, "--db", str(tmp_path / "a.duckdb")]) == code
    out, err = capfd.readouterr()
    assert out == "" and message in err.splitlines()[-1] and "Traceback" not in err
    assert not list(tmp_path.glob("a.duckdb.d/experiments/*"))


def test_the_same_trace_twice_is_refused(traces: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", traces[0], traces[0], "--vary", VARY, "--pin", "--db", str(tmp_path / "a.duckdb")]) == 2
    assert "the same trace twice" in capfd.readouterr().err


def test_a_trace_too_short_to_tell_is_exit_code_4(traces: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["experiment", traces[0], "--vary", VARY, "--pin", "--window", "0:6s", "--db", str(tmp_path / "a.duckdb")]
    assert main(words) == 4
    out, err = capfd.readouterr()
    assert "fewer than two windows" in err and "1 of 8 windows" in err
    assert "cannot tell" in out.splitlines()[0]
