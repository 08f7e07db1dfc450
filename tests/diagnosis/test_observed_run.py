"""Observed traces from the outside: plain logs of replays whose cause is known, named right or not at all, and measured runs."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cases_observed import export_observed, observed_reports, scored
from replay_engine.profile import Latency, load_profile
from tests.diagnosis.loads import CHAT, setup_of_recipe
from tests.diagnosis.test_cases import CASES, EXPECTED
from tracekit.calibration import SourceRequest, calibrate_source
from tracekit.cli.main import main
from tracekit.diagnosis import RunData
from tracekit.diagnosis.observed_run import ObservedReport, diagnose_trace
from tracekit.errors import InputError, UsageError

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "traces"
BESIDE = {"D06": "cannot tell", "D08": "cannot tell"}
"""Where a replay is no help: what decided (who of two came first; which prefixes are shared) is not in the log."""
ALONE = {"D01": "right", "D02": "right"}
SETTINGS = {**ALONE, "D03": "right", "D12": "right"}


@pytest.mark.parametrize("case", EXPECTED)
def test_a_log_of_a_case_is_named_right_or_not_at_all(case: str, tmp_path: Path) -> None:
    told = observed_reports(CASES / f"{case}.yaml", tmp_path)
    expected = tuple(EXPECTED[case][0]) or ("NONE",)
    scores = {way: scored(report, expected) for way, report in told.items()}
    assert "WRONG" not in scores.values()
    assert scores["alone"] == ALONE.get(case, "cannot tell")
    assert scores["with settings"] == SETTINGS.get(case, "cannot tell")
    if case not in BESIDE:
        assert scores["beside a replay"] == "right"


@dataclass(frozen=True)
class Service:
    """Sixteen seats, which are enough: its replay, and the files that an operator of it would have."""

    data: RunData
    folder: Path

    @property
    def options(self) -> dict[str, str]:
        return {"policy": str(self.folder / "policy.toml"), "profile": str(self.folder / "profile.toml")}

    def log(self, name: str, change: Callable[[dict[str, str]], None] | None = None) -> str:
        """The log, with each row changed."""
        path = export_observed(self.data, self.folder / name)
        if change is not None:
            with path.open(newline="") as file:
                rows = list(csv.DictReader(file))
            for row in rows:
                change(row)
            with path.open("w", newline="") as file:
                out = csv.DictWriter(file, list(rows[0]))
                out.writeheader()
                out.writerows(rows)
        return str(path)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    folder = tmp_path_factory.mktemp("service")
    setup = setup_of_recipe(CHAT, folder, sets=("max_num_seqs=64",))
    (folder / "policy.toml").write_text(setup.policy.to_toml(), "utf-8")
    (folder / "profile.toml").write_text(setup.profile.to_toml(), "utf-8")
    return Service(RunData.replayed(setup), folder)


def plus(row: dict[str, str], seconds: float, *names: str) -> None:
    for name in names:
        row[name] = f"{float(row[name]) + seconds:.6f}"


def test_a_log_that_its_replay_shows_is_calm(service: Service) -> None:
    report = diagnose_trace(service.log("calm.csv"), **service.options)
    assert report.beside is not None and report.beside.shows and report.beside.expected.unnamed == ()
    assert report.document["verdict"].startswith("nothing is wrong") and report.document["cannot_be_told"] == {}


@pytest.mark.parametrize(("t0", "t1", "delay"), [(40.0, 90.0, 2.0), (0.0, 1e6, 0.8)])
def test_a_delay_before_the_engine_is_not_explained_by_scheduling(service: Service, t0: float, t1: float, delay: float) -> None:
    hit: list[float] = []

    def late(row: dict[str, str]) -> None:
        if t0 <= float(row["arrival_s"]) < t1:
            hit.append(float(row["arrival_s"]))
            plus(row, delay, "ttft_s", "e2e_s")

    report = diagnose_trace(service.log("late.csv", late), **service.options)
    assert report.beside is not None and report.beside.holds
    (effect,) = report.beside.expected.unnamed
    assert effect.kind == "to the first token" and effect.over_ns == pytest.approx(len(hit) * delay * 1e9, rel=0.01)
    assert (effect.where.t0_ns / 1e9, effect.where.t1_ns / 1e9) == pytest.approx((min(hit), max(hit)), abs=0.01)
    assert "is not explained by scheduling" in report.document["verdict"] and effect.what in report.document["verdict"]
    assert report.diagnosis.findings == () and f"NO NAME YET: {effect.what}" in report.text


def test_streams_that_are_slow_for_a_while_show_after_the_first_token(service: Service) -> None:
    def slow(row: dict[str, str]) -> None:
        if 60 <= float(row["arrival_s"]) < 100:
            plus(row, 1.5 * (float(row["e2e_s"]) - float(row["ttft_s"])), "e2e_s")

    report = diagnose_trace(service.log("slow.csv", slow), **service.options)
    assert report.beside is not None
    effect = report.beside.expected.unnamed[0]
    assert effect.kind == "after the first token"
    assert (effect.where.t0_ns / 1e9, effect.where.t1_ns / 1e9) == pytest.approx((60, 100), abs=2)
    assert "not explained by scheduling" in report.document["verdict"]


def test_nothing_follows_from_the_profile_of_another_engine(service: Service, tmp_path: Path) -> None:
    profile = load_profile(service.options["profile"])
    quick = {name: getattr(profile.latency, name) / 2 for name in ("floor_ns", "a_ns", "b_ns", "c_ns", "d_ns", "e_ns")}
    other = tmp_path / "quick.toml"
    other.write_text(replace(profile, latency=Latency(**quick)).to_toml(), "utf-8")
    report = diagnose_trace(service.log("calm.csv"), policy=service.options["policy"], profile=str(other))
    assert report.beside is not None and not report.beside.holds and report.beside.expected.unnamed == ()
    assert report.diagnosis.findings == () and "not explained" not in report.document["verdict"]
    assert any("this is not the profile of that engine" in each for each in report.document["remarks"])


def test_who_is_late_is_who_misses_the_slo(service: Service) -> None:
    path = service.log("calm.csv")
    easy = diagnose_trace(path, slo="ttft=60s,e2e=60m")
    assert easy.document["verdict"] == "nothing is wrong: 0 of 360 requests miss the SLO" and easy.diagnosis.excess_ns == 0
    hard = diagnose_trace(path, slo="e2e=2s")
    assert hard.missed == int((service.data.outcomes["e2e_ns"] > 2_000_000_000).sum()) and hard.judged == 360
    with pytest.raises(UsageError, match="gaps between tokens are not in a trace"):
        diagnose_trace(path, slo="itl=50ms")


def test_what_can_be_told_of_seats_and_changes_to_them(tmp_path: Path) -> None:
    setup = setup_of_recipe(CHAT, tmp_path)
    trace = export_observed(RunData.replayed(setup), tmp_path / "seats.csv")
    seats = ("max_num_seqs=4", "num_gpu_blocks=25001", "max_num_batched_tokens=4096")
    own = diagnose_trace(str(trace), sets=seats)
    assert [each.id for each in own.diagnosis.findings] == ["QUEUE_SEATS"] and own.document["findings"][0]["recommend"] == []
    more = diagnose_trace(str(trace), sets=("max_num_seqs=2", *seats[1:]))  # told wrong: then four ran on two
    assert more.diagnosis.findings == () and "several engines" in more.document["verdict"]
    (tmp_path / "policy.toml").write_text(setup.policy.to_toml(), "utf-8")
    (tmp_path / "profile.toml").write_text(setup.profile.to_toml(), "utf-8")
    files = {"policy": str(tmp_path / "policy.toml"), "profile": str(tmp_path / "profile.toml")}
    proved = diagnose_trace(str(trace), **files, workers=1)
    first = proved.document["findings"][0]
    assert first["id"] == "QUEUE_SEATS" and first["confirmed_by_replay"] is True
    assert first["recommend"][0]["knob"] == "max_num_seqs"
    assert "observed moments and the replay both say so" in proved.text and "--max-num-seqs" in proved.text
    assert json.dumps(proved.document) == json.dumps(diagnose_trace(str(trace), **files, workers=1).document)


def test_from_the_command_line(service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = service.log("calm.csv")
    assert main(["diagnose", path, "--observed", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "tracekit.observed/1" and document["trace"]["has"] == ["queue", "ttft", "e2e"]
    assert "PREEMPTION_STORM" in document["cannot_be_told"] and document["replay"] is None
    assert main(["diagnose", path, "--observed", "--slo", "e2e=60m"]) == 0
    assert "nothing is wrong" in capsys.readouterr().out
    assert main(["diagnose", path]) == 2 and "--observed" in capsys.readouterr().err
    assert main(["diagnose", "last", "--set", "max_num_seqs=4"]) == 2 and "--observed" in capsys.readouterr().err
    bare = tmp_path / "bare.csv"
    bare.write_text("arrival_s,input_tokens,output_tokens\n0,10,5\n1,10,5\n", "utf-8")
    assert main(["diagnose", str(bare), "--observed"]) == 3
    said = capsys.readouterr().err
    assert "no request has a latency" in said and "Traceback" not in said


def test_a_trace_without_latencies_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bare.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0,10,5\n1,10,5\n", "utf-8")
    with pytest.raises(InputError, match="nothing to diagnose"):
        diagnose_trace(str(path))


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="no measured traces beside the checkout")
@pytest.mark.parametrize(
    ("name", "sets", "cause", "knob"),
    [
        ("rtxpro6000", ("max_num_seqs=128", "num_gpu_blocks=32768"), "QUEUE_SEATS", "max_num_seqs"),
        ("rtx4090", ("max_num_seqs=256", "num_gpu_blocks=2588"), "QUEUE_KV", "num_gpu_blocks"),
    ],
)
def test_measured_runs_are_named(name: str, sets: tuple[str, ...], cause: str, knob: str, tmp_path: Path) -> None:
    """Two runs of vLLM whose limits are known, from their requests and settings and a profile fitted to the same latencies."""
    trace, profile = str(SHARED / f"vllm_measured_llama8b_{name}.requests.jsonl"), tmp_path / "profile.toml"
    settings = (*sets, "max_num_batched_tokens=2048", "max_model_len=32768", "async_scheduling=true", "engine_version=0.19.0")
    calibrate_source(SourceRequest(source=trace, sets=settings)).write(profile)
    told: dict[str, ObservedReport] = {
        "alone": diagnose_trace(trace), "settings": diagnose_trace(trace, sets=sets),
        "replay": diagnose_trace(trace, profile=str(profile), prove_iterations=None),
    }  # fmt: skip
    names = {way: [each.id for each in report.diagnosis.findings if each.under is None] for way, report in told.items()}
    assert names == {"alone": [], "settings": [cause], "replay": [cause]}
    assert "cannot tell, because" in told["alone"].document["verdict"]
    beside = told["replay"].beside
    assert beside is not None and beside.shows and all(abs(error) < 0.05 for error in beside.errors.values())
    assert told["replay"].diagnosis.findings[0].changes[0].knob == knob
    assert np.isfinite(beside.over)
