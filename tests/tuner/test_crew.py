"""Worker processes: forked by one, ending with whom they work for, replaced where they die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.tuner.workers import forks, workers
from tracekit.errors import TracekitError
from tuner import tune

SMALL: dict[str, Any] = {"slo": "stall=60ms", "windows": 3, "holdout": 3, "trials": 8, "workers": 2}


def until(found: Callable[[], bool]) -> bool:
    """Whether it came about in a minute."""
    ends = time.monotonic() + 60
    while not found() and time.monotonic() < ends:
        time.sleep(0.05)
    return found()


def alive(process: psutil.Process) -> bool:
    """Whether it runs; whoever it was left to may not have been told yet that it has ended."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.parametrize("whom", ["the one that forks", "a worker", "both"])
def test_whoever_dies_nothing_is_lost_and_nobody_is_left(bursts: str, tmp_path: Path, whom: str) -> None:
    killed: list[int] = []
    there: list[psutil.Process] = []

    def kill(done: int, _total: int, note: str) -> None:
        if not killed and note.startswith("best so far") and len(workers()) == 2:
            killed.extend([forks()[0].pid] if whom != "a worker" else [])
            killed.extend(workers()[:1] if whom != "the one that forks" else [])
            there.extend(psutil.Process().children(recursive=True))
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    found = tune(bursts, db=tmp_path / "a.duckdb", progress=kill, **SMALL)
    assert killed and found.document["trials"]["complete"] + found.document["trials"]["pruned"] == 8
    assert forks() == [] and until(lambda: not any(map(alive, there)))


def test_workers_that_die_again_and_again_end_it(bursts: str, tmp_path: Path) -> None:
    def kill(_done: int, _total: int, note: str) -> None:
        for pid in workers():
            os.kill(pid, signal.SIGKILL)

    with pytest.raises(TracekitError, match="worker processes ended on their own; what is done is kept"):
        tune(bursts, db=tmp_path / "a.duckdb", progress=kill, **{**SMALL, "trials": 60})
    assert forks() == []


def test_workers_end_with_whom_they_work_for(bursts: str, tmp_path: Path) -> None:
    """Killed with -9 amid its trials: its workers do not go on by themselves."""
    command = [sys.executable, "-m", "tracekit.cli.main", "tune", bursts, "--slo", "stall=60ms", "--trials", "60"]
    command += ["--workers", "2", "--db", str(tmp_path / "a.duckdb")]
    parent = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    below = psutil.Process(parent.pid)
    assert until(lambda: len(below.children(recursive=True)) == 3)
    there = below.children(recursive=True)
    parent.kill()
    parent.wait()
    assert until(lambda: not any(map(alive, there)))
