"""Iterations and runs whose values are known, put into real stores and spools."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dashboards.columns import COLUMNS, Columns, Frame
from replay_engine.tables import ITERATIONS, TABLES
from tracekit.store import SpoolSink, Store, commit_run

ROOT = Path(__file__).parents[2]
CONSTANTS = {"iterations": {"budget": 1024, "kv_total": 1000, "paused": 0, "swapped": 0, "mode": "simulated"}}


def iteration_rows(count: int, first: int = 0, duration_ns: int = 10_000_000) -> npt.NDArray[np.void]:
    """Back-to-back iterations; values follow from their numbers. Every seventh leaves requests waiting."""
    numbers = np.arange(first, first + count)
    rows = np.zeros(count, ITERATIONS)
    rows["iteration"] = numbers
    rows["start_ns"] = numbers * duration_ns
    rows["duration_ns"] = duration_ns
    rows["prefill_tokens"] = np.where(numbers % 5 == 0, 512, 0)
    rows["decode_seqs"] = 20 + numbers % 11
    rows["running"] = 25 + numbers % 13
    rows["waiting"] = np.where(numbers % 7 == 0, 3, 0)
    rows["head_refused_by"] = np.where(numbers % 7 == 0, 2, 0)
    rows["kv_used"] = 400 + numbers % 17
    rows["kv_cached"] = 100
    return rows


def frame_of(rows: npt.NDArray[np.void]) -> Frame:
    columns = Columns()
    columns.append(rows)
    return columns.frame()


def frame_from(**values: object) -> Frame:
    """A frame with the given columns; the rest is zero."""
    count = len(values["start_ns"])  # type: ignore[arg-type]
    rows = np.zeros(count, [(name, kind) for name, kind in COLUMNS.items()])
    rows["iteration"] = np.arange(count)
    for name, column in values.items():
        rows[name] = column
    return frame_of(rows)


def spooled(store: Store, name: str = "live", rows: int = 100, events: str = "full", **run: object) -> SpoolSink:
    """A run under way with ``rows`` iterations written."""
    about = {"name": name, "trace_name": "made up", "engine": "sim", "profile": "h100", "requests": 40, **run}
    sink = SpoolSink(store.spool_folder, about, constants=CONSTANTS, events=events)
    sink.append("iterations", iteration_rows(rows))
    sink.append("outcomes", np.zeros(12, TABLES["outcomes"]))
    return sink


def recorded(store: Store, name: str = "x", rows: int = 100, events: str = "full", **columns: object) -> int:
    """A finished run in the database; its number."""
    sink = spooled(store, name, rows, events)
    about = {"name": name, "trace_name": "made up", "engine": "sim", "profile": "h100", "requests": 40}
    return commit_run(store, sink, {**about, "events": events, "iterations": rows, "matrix": {}, **columns})


def in_a_killed_process(work: Callable[[], object]) -> None:
    """Do ``work`` in a child process that dies without cleaning up."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(9)
    os.waitpid(pid, 0)


@contextmanager
def a_writer_at_work(store: Store) -> Iterator[None]:
    """Another process holds the database until the block ends."""
    code = (
        "import sys; from tracekit.store import Store\n"
        "with Store(sys.argv[1]).write('a long load'):\n  print('writing', flush=True); sys.stdin.readline()"
    )
    argv = [sys.executable, "-c", code, str(store.path)]
    writer = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "writing\n"
    try:
        yield
    finally:
        writer.communicate("\n", timeout=30)
        assert writer.returncode == 0
