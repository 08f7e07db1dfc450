"""Runs the package's own commands in processes of their own: how triton behaves is settled when a kernel is first imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["BUILD", "ROOT", "lines_of"]

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"


def lines_of(*words: str, first_on_path: Path | None = None) -> tuple[int, list[dict[str, Any]], str]:
    """Exit code, JSON lines and stderr of ``python -m replay_kernels.WORDS --json``, on one thread, with its own cache."""
    path = os.pathsep.join(filter(None, [str(first_on_path or ""), os.environ.get("PYTHONPATH", "")]))
    cache = BUILD / f"triton-cache{'-' + first_on_path.name if first_on_path else ''}"
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TRITON_CACHE_DIR": str(cache)}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-W", "ignore", "-m", f"replay_kernels.{words[0]}", *words[1:], "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr
