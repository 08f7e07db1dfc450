"""The README's transcript is run: every command, and every line of output that is shown must come out."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def transcript() -> list[tuple[str, list[str]]]:
    """Commands of the ``console`` blocks, each with the lines shown after it ('...' stands for any lines)."""
    steps: list[tuple[str, list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", README, flags=re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                steps.append((line[2:], []))
            elif line.strip() and line.strip() != "...":
                steps[-1][1].append(line)
    return steps


def squeezed(text: str) -> str:
    return " ".join(text.split())


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150


def test_the_transcript_runs(tmp_path: Path) -> None:
    steps = [(command, shown) for command, shown in transcript() if command.startswith("tracekit ")]
    assert len(steps) >= 4
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    for command, shown in steps:
        words = [sys.executable, "-m", "tracekit.cli.main", *shlex.split(command)[1:]]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        said = [squeezed(line) for line in (done.stdout + done.stderr).splitlines()]
        for line in shown:
            assert squeezed(line) in said, f"{command}: {line!r} did not come out of\n{done.stdout}"


def test_make_targets_named_in_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"\bmake ([a-z-]+)", README):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_ci_runs_make_test() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text(encoding="utf-8").rstrip().endswith("make test")
