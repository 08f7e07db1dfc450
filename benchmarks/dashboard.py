"""How long a page of a large run takes: read from the database, cut to buckets, made a figure; then zoomed.

``python -m benchmarks.dashboard [--json] [--iterations N] [--repeats N]``. The time the server takes, without the browser:
CPU seconds of the process with all its threads, the fastest of N. The run is made up, with eight reasons of refusal and one
iteration of 10 s.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure, Report, reference_figure, run_main
from dashboards.pages.timeline_answer import Answer, render
from dashboards.queries import RunBook
from replay_engine.tables import ITERATIONS
from tracekit.store import SpoolSink, Store, commit_run

__all__ = ["main", "measure", "record_run"]

CONSTANTS = {"iterations": {"budget": 8192, "kv_total": 30_000, "mode": "simulated"}}


def record_run(store: Store, iterations: int) -> int:
    """A finished run with that many iterations; the one in its middle takes 10 s."""
    rng = np.random.default_rng(0)
    rows = np.zeros(iterations, ITERATIONS)
    rows["iteration"] = np.arange(iterations)
    rows["duration_ns"] = rng.integers(5_000_000, 30_000_000, iterations)
    rows["duration_ns"][iterations // 2] = 10_000_000_000
    rows["start_ns"] = np.cumsum(rows["duration_ns"]) - rows["duration_ns"]
    rows["prefill_tokens"] = np.where(rng.random(iterations) < 0.2, rng.integers(1, 8000, iterations), 0)
    rows["decode_seqs"] = rows["running"] = rng.integers(1, 190, iterations)
    rows["waiting"] = np.abs(np.cumsum(rng.integers(-1, 2, iterations))) % 700
    rows["head_refused_by"] = np.where(rows["waiting"] > 0, 1 + (rows["iteration"] // 5000) % 8, 0)
    rows["kv_used"] = rng.integers(1, 20_000, iterations)
    rows["kv_cached"] = 10_000
    rows["preempted"] = rng.random(iterations) < 0.0005
    sink = SpoolSink(store.spool_folder, {"name": "large"}, constants=CONSTANTS)
    sink.append("iterations", rows)
    return commit_run(store, sink, {"name": "large", "events": "full", "iterations": iterations, "requests": 0})


def _timed(ask: Callable[[], Answer]) -> tuple[float, Answer]:
    began = time.process_time()
    answer = ask()
    return time.process_time() - began, answer


def measure(options: argparse.Namespace) -> Report:
    """All figures; ``options`` has ``iterations`` and ``repeats``."""
    report = Report(benchmark="dashboard", notes=[f"{options.iterations:,} iterations; CPU time of the server, the fastest run"])
    with tempfile.TemporaryDirectory(prefix="tracekit-bench-") as folder:
        store = Store(Path(folder) / "large.duckdb")
        run = record_run(store, options.iterations)
        opened, whole, zoomed = [], [], []
        for _ in range(options.repeats):
            book = RunBook(store.path)
            opened.append(_timed(lambda book=book: render(book, f"?run={run}", "light", {})))
            whole.append(_timed(lambda book=book: render(book, f"?run={run}", "dark", {})))
            begin, end = float(whole[-1][1].begin), float(whole[-1][1].end)
            part = f"?run={run}&t={begin + (end - begin) * 0.4:g}-{begin + (end - begin) * 0.6:g}"
            zoomed.append(_timed(lambda book=book, part=part: render(book, part, "light", {})))
        seen = "longest iteration 10 s" in str(whole[-1][1].summary)
    figures = (
        ("open_s", opened, 2.0, "read from the database and drawn whole"),
        ("redraw_s", whole, 0.3, "drawn whole again"),
        ("zoom_s", zoomed, 0.3, "a fifth of it"),
    )
    for name, runs, target, what in figures:
        report.figures[name] = Figure(value=min(s for s, _ in runs), unit="s", target=target, at_most=True, note=what)
    report.figures["worst_seen"] = Figure(value=float(seen), unit="", target=1, reference="the one iteration of 10 s is named")
    report.figures["python_reference"] = reference_figure()
    return report


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--iterations", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3, help="runs of each; the fastest counts")


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    run_main("dashboard", "Time to the page of a large run.", measure, argv, _options)


if __name__ == "__main__":
    main()
