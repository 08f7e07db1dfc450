"""Three drawn orders of kill, restart and reload; ``python -m benchmarks.dashboard_served --sequences 30`` plays thirty."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.page_sequences import play
from tests.dashboards.browser import ROOT
from tracekit.replay import replay
from tracekit.store import Store, list_runs

SHAPE = ["--requests", "3000", "--arrival", "poisson:rate=4", "--input", "200", "--output", "uniform:200,400"]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A trace, and how many iterations its replay takes when nobody disturbs it."""
    folder = tmp_path_factory.mktemp("sequences")
    path = folder / "trace.jsonl"
    command = [sys.executable, "-m", "tracekit.cli.main", "synth", *SHAPE, str(path)]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, capture_output=True)
    replay(str(path), db=str(folder / "plain.duckdb"), engine="sim", sets=("max_num_seqs=8",), diagnose=False)
    return path, int(list_runs(Store(folder / "plain.duckdb"))[0]["iterations"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nothing_is_lost_and_what_is_said_is_true(tmp_path: Path, trace: tuple[Path, int], seed: int) -> None:
    path, iterations = trace
    words = ["replay", "--engine=sim", "--set=max_num_seqs=8", "--no-diagnose", "--", str(path)]
    assert len(play(tmp_path, words, seed, iterations)) == 5
