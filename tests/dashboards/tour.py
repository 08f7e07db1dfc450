"""The way of a first-time user through the database that ``make demo`` leaves: what is clicked, and what is seen then.

The test walks it, and the pictures of ``docs/tour.md`` are taken on it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.dashboards.browser import ROOT

__all__ = ["STEPS", "Step", "demo_commands", "run_demo", "told_by_make", "walk"]


class Step(NamedTuple):
    """``click``: the visible text of what is clicked; ``sees``: a pattern of what the page says then; ``at``: a text that is
    scrolled to before a picture is taken."""

    name: str
    click: str | None
    sees: str
    at: str | None = None


STEPS = (
    Step("runs", None, r"requests missed their SLO"),
    Step("verdict", "Why was it slow?", r"short requests wait behind long prompts"),
    Step("timeline", "Show me", r"Found here: HOL_LONG_PROMPT"),
    Step("change", "← Back to the verdict", r"Change long_prefill_token_threshold", "It is not: "),
    Step("started", "Replay this change", r"Started as job", "It is not: "),
    Step("proof", "Compare the two runs", r"SLO-goodput, requests/s better"),
    Step("experiments", "Experiments", r"long_prefill_token_threshold=1024 against 0"),
)


def walk(page: Any, home: str) -> Iterator[Step]:
    """Go the whole way; each step is given when what it promises is seen."""
    page.goto(home)
    for step in STEPS:
        if step.click is not None:
            page.get_by_text(step.click, exact=True).first.click()
        page.get_by_text(re.compile(step.sees)).first.wait_for()
        yield step


def told_by_make(db: Path) -> str:
    """What ``make demo`` would run, from the Makefile."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    argv = ["make", "--no-print-directory", "-n", "demo", f"DEMO_DB={db}"]
    return subprocess.run(argv, cwd=ROOT, env=clean, capture_output=True, text=True, check=True).stdout.replace("\\\n", " ")


def demo_commands(db: Path) -> list[list[str]]:
    """Its commands of tracekit, as words without the program's name."""
    lines = [line for line in told_by_make(db).splitlines() if line.startswith(".venv/bin/tracekit ")]
    return [[word for word in shlex.split(line)[1:] if word != ">/dev/null"] for line in lines]


def run_demo(db: Path) -> list[str]:
    """Make the database that ``make demo`` leaves; what each command wrote to standard output."""
    said = []
    for words in demo_commands(db):
        argv = [sys.executable, "-m", "tracekit.cli.main", *words]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        said.append(done.stdout)
    return said
