"""Capacity: the knee by value, what follows it, replicas, and what-ifs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tracekit.cli.main import main
from tuner import CapacityReport, capacity

OPTIONS = {"slo": "ttft=2s", "windows": 2, "length": "10s"}


@pytest.fixture(scope="module")
def report(bursts: str, tmp_path_factory: pytest.TempPathFactory) -> CapacityReport:
    db = tmp_path_factory.mktemp("capacity") / "a.duckdb"
    return capacity(bursts, db=db, what_if=["max_num_seqs=4", "fleet.replicas=2 fleet.router=least_tokens"], **OPTIONS)  # type: ignore[arg-type]


def test_the_knee_is_enclosed_and_the_curve_falls_past_it(report: CapacityReport) -> None:
    document = report.document
    assert 0 < document["factor"] < document["above"] <= document["factor"] * 1.03
    curve = {round(row["factor"] / document["factor"], 3): row["attainment"] for row in document["curve"]}
    assert curve[1.0] >= 0.9 and curve[1.5] < 0.9
    assert document["slope"] == pytest.approx((curve[1.2] - curve[1.0]) / 2)
    assert "the knee is at x" in report.text and "past the knee" in report.text


def test_replicas_by_the_bound_and_as_replayed(report: CapacityReport) -> None:
    replicas = report.document["replicas"]
    assert replicas["bound_peak"] == max(replicas["bound"]) >= replicas["bound_mean"] >= 1
    assert all(bound == max(-(-rate // replicas["per_replica_per_s"]), 1)
               for rate, bound in zip(replicas["slots"], replicas["bound"], strict=True))  # fmt: skip
    assert replicas["replayed"] == 1 if report.document["attainment_now"] >= 0.9 else replicas["replayed"] > 1


def test_fewer_seats_take_less_and_more_replicas_take_more(report: CapacityReport) -> None:
    seats, replicas = report.document["what_if"]
    assert seats["over_current"] < 1 < replicas["over_current"]


def test_the_command_line_says_the_same(bursts: str, report: CapacityReport, tmp_path: Path,
                                        capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    command = ["capacity", bursts, "--slo", "ttft=2s", "--windows", "2", "--length", "10s", "--db", str(tmp_path / "a.duckdb")]
    assert main([*command, "--json"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert "space:" not in err, "nothing is searched"
    assert document["factor"] == report.document["factor"] and document["what_if"] == []
    assert main([*command, "--what-if", "no_knob=1"]) == 2
    assert "no_knob" in capsys.readouterr().err.splitlines()[-1]
