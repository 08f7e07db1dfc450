"""The benchmarks of the served dashboard at small size: what does not hang on the machine must hold here too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def figures_of(*words: str) -> dict[str, Any]:
    """What a benchmark found, run as its own process: it starts a browser, and one may be open here."""
    command = [sys.executable, "-m", *words, "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["figures"]
    return found


def test_a_page_weighs_little_and_shows_the_planted_iteration() -> None:
    words = ("--iterations", "60000", "--clients", "4", "--brushes", "3", "--alone", "20", "--visits", "1")
    figures = figures_of("benchmarks.dashboard_served", *words)
    assert figures["worst_seen"]["met"]
    assert figures["figure_mb"]["met"]
    if figures["page_mb"]["value"] is not None:
        assert figures["page_mb"]["met"]
    assert figures["memory_mb"]["met"]


@pytest.mark.slow
def test_a_minute_of_jobs_and_pages_leaves_nothing_behind() -> None:
    figures = figures_of("benchmarks.dashboard_soak", "--minutes", "1", "--every-s", "6")
    for name in ("children_left", "jobs_not_finished", "runs_lost", "polls_failed"):
        assert figures[name]["value"] == 0, (name, figures[name])
    assert figures["files_growth"]["met"], figures["files_growth"]
    assert figures["memory_growth"]["value"] < 0.15, figures["memory_growth"]  # in a minute caches still fill; twenty: 0.10
