"""Three drawn orders of kill, restart and reload, and meanwhile a minute of jobs and polling pages in processes of their own.

``python -m benchmarks.dashboard_served --sequences 30`` plays thirty, ``python -m benchmarks.dashboard_soak`` takes twenty
minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
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


@pytest.fixture(scope="module")
def soak() -> Iterator[subprocess.Popen[str]]:
    """The minute, under way: it waits more than it works."""
    command = [sys.executable, "-m", "benchmarks.dashboard_soak", "--minutes", "1", "--every-s", "6", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as began:
        yield began
        began.terminate()


@pytest.mark.slow
@pytest.mark.usefixtures("soak")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nothing_is_lost_and_what_is_said_is_true(tmp_path: Path, trace: tuple[Path, int], seed: int) -> None:
    path, iterations = trace
    words = ["replay", "--engine=sim", "--set=max_num_seqs=8", "--no-diagnose", "--", str(path)]
    assert len(play(tmp_path, words, seed, iterations)) == 5


@pytest.mark.slow
def test_a_minute_of_jobs_and_pages_leaves_nothing_behind(soak: subprocess.Popen[str]) -> None:
    said, wrong = soak.communicate(timeout=500)
    assert soak.returncode == 0, wrong
    figures = json.loads(said)["figures"]
    for name in ("children_left", "jobs_not_finished", "runs_lost", "polls_failed"):
        assert figures[name]["value"] == 0, (name, figures[name])
    assert figures["files_growth"]["met"], figures["files_growth"]
    assert figures["memory_growth"]["value"] < 0.15, figures["memory_growth"]  # in a minute caches still fill; twenty: 0.10
