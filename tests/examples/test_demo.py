"""``make demo``: its commands as the Makefile has them, and the trace they replay."""

from __future__ import annotations

from pathlib import Path

from tests.dashboards.browser import ROOT
from tests.dashboards.tour import demo_commands, told_by_make
from tracekit.cli.main import main

FOLDER = ROOT / "examples" / "contracts"


def test_the_shipped_trace_is_what_its_generator_makes(tmp_path: Path) -> None:
    out = tmp_path / "contracts.jsonl.gz"
    assert main(["synth", str(out), "--spec", str(FOLDER / "traffic.toml")]) == 0
    assert out.read_bytes() == (FOLDER / "contracts.jsonl.gz").read_bytes()
    assert out.stat().st_size < 60_000


def test_the_demo_is_the_main_job_then_why_and_what_comes_next(tmp_path: Path) -> None:
    db = tmp_path / "demo.duckdb"
    assert [words[0] for words in demo_commands(db)][:2] == ["replay", "diagnose"]
    told = told_by_make(db)
    assert f"tracekit dashboard --db {db}" in told.splitlines()[-1]
    assert "docs/tour.md" in told and (ROOT / "docs" / "tour.md").is_file()
