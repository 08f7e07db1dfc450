"""The benchmarks of the served dashboard at small size: what does not hang on the machine must hold here too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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
