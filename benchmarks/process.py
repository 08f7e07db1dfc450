"""Whole processes under the clock: wall, CPU and peak memory of one command, from the kernel's own accounting."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Spent", "run_python"]

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Seconds of wall and CPU time, peak resident memory in MiB, and what the process wrote to standard output.

    The kernel counts the parent's memory at the fork into the child's peak: a benchmark that measures processes stays small.
    """

    wall_s: float
    cpu_s: float
    peak_mib: float
    out: str


def run_python(arguments: Sequence[str], scratch: Path) -> Spent:
    """Run ``python ARGUMENTS`` from the repository's root; an exit code other than 0 is an error."""
    out, err = scratch / "out", scratch / "err"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "160"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else every process compiles every module it imports: no user's does
    with open(out, "wb") as stdout, open(err, "wb") as stderr:
        began = time.perf_counter()
        child = subprocess.Popen([sys.executable, *arguments], stdout=stdout, stderr=stderr, cwd=ROOT, env=environment)
        _, status, usage = os.wait4(child.pid, 0)
        wall_s = time.perf_counter() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        tail = err.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        raise RuntimeError(f"python {' '.join(arguments[:4])} ...: exit code {child.returncode}: {' '.join(tail)}")
    text = out.read_text(encoding="utf-8", errors="replace")
    return Spent(wall_s=wall_s, cpu_s=usage.ru_utime + usage.ru_stime, peak_mib=usage.ru_maxrss / 1024, out=text)
