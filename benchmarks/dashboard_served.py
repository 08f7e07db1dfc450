"""The dashboard as it is served: what a page and a figure weigh, how long a brush takes, twenty who brush at once, and how
soon a job that is started on a page is seen there.

``python -m benchmarks.dashboard_served [--json] [--iterations N] [--clients 20] [--brushes N] [--sequences N]``. A server in a
process of its own over a made-up run; clients ask over HTTP as a page does, one thread each. ``--sequences N`` also plays N
drawn orders of killing a job, restarting the server and loading the page again (0: none).
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil

from benchmarks.dashboard import record_run
from benchmarks.export import record_run as record_replay
from benchmarks.figures import Figure, Report, run_main
from benchmarks.page_asking import Asker, over_http
from benchmarks.page_live import first_points
from benchmarks.page_sequences import play
from benchmarks.pages import served, visited
from tracekit.replay import replay
from tracekit.store import Store, list_runs

__all__ = ["main", "measure"]

MB = 1e6


def _compressed(url: str, body: bytes | None = None) -> tuple[bytes, int]:
    """An answer unpacked as far as it is text to look through, and its bytes on the wire."""
    import gzip

    headers = {"Accept-Encoding": "gzip", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=120) as answer:
        data = answer.read()
        packed = answer.headers.get("Content-Encoding") == "gzip"
    return gzip.decompress(data) if packed else data, len(data)


def _figure_mb(url: str, run: int) -> float:
    """MB on the wire of the answer that holds the timeline's figure."""
    sizes: list[int] = []

    def fetch(path: str, body: bytes | None) -> bytes:
        data, size = _compressed(url.rstrip("/") + path, body)
        sizes.append(size)
        return data

    Asker(fetch).ask(f"?run={run}")
    return sizes[-1] / MB


def _brushes(url: str, run: int, count: int, seed: int, span_s: float) -> list[float]:
    """Seconds of each of ``count`` windows drawn at random, asked for one after the other by one page."""
    draw = random.Random(seed)
    page = Asker(over_http(url))
    spent = []
    for _ in range(count):
        begin = draw.random() * span_s * 0.9
        end = begin + span_s * (0.01 + 0.09 * draw.random())
        began = time.perf_counter()
        page.ask(f"?run={run}&t={begin:.3f}-{end:.3f}")
        spent.append(time.perf_counter() - began)
    return spent


def measure(options: argparse.Namespace) -> Report:
    """All figures."""
    note = f"{options.iterations:,} iterations; wall time over HTTP unless a figure says otherwise"
    report = Report(benchmark="dashboard_served", notes=[note])
    with tempfile.TemporaryDirectory(prefix="tracekit-bench-") as name:
        store = Store(Path(name) / "large.duckdb")
        run = record_run(store, options.iterations)
        with served(store.path) as (url, server):
            _served(report, url, server, run, options)
        if options.visits:
            _painted(report, Path(name), options)
        if options.sequences:
            _sequences(report, Path(name), options.sequences)
    return report


def _served(report: Report, url: str, process: psutil.Process, run: int, options: argparse.Namespace) -> None:
    began = time.perf_counter()
    shown = Asker(over_http(url)).ask(f"?run={run}")
    first = time.perf_counter() - began
    span_s = float(shown["end.value"])
    seen = "longest iteration 10 s" in str(shown["summary.children"])
    figure_mb = _figure_mb(url, run)
    cpu = sum(process.cpu_times()[:2])
    alone = _brushes(url, run, options.alone, 0, span_s)
    cpu = (sum(process.cpu_times()[:2]) - cpu) / options.alone
    with ThreadPoolExecutor(options.clients) as pool:
        jobs = [pool.submit(_brushes, url, run, options.brushes, seed, span_s) for seed in range(options.clients)]
        together = [each for job in jobs for each in job.result()]
    figures = {
        "first_answer_s": (first, "s", 2.0, "read from the database, drawn whole, over HTTP"),
        "brush_p95_ms": (1e3 * float(np.percentile(alone, 95)), "ms", 300.0, f"one page, {options.alone} brushes"),
        "brush_server_cpu_ms": (1e3 * cpu, "ms", 60.0, "the server's CPU a brush, mean; columns cached"),
        "figure_mb": (figure_mb, "MB", 0.7, "the answer with the figure, gzip"),
        "clients_p95_s": (float(np.percentile(together, 95)), "s", 1.0, f"{options.clients} clients brushing at once"),
        "memory_mb": (process.memory_info().rss / 2**20, "MiB", 1024.0, "of the server after that"),
    }
    for name, (value, unit, target, note) in figures.items():
        report.figures[name] = Figure(value=value, unit=unit, target=target, at_most=True, note=note)
    report.figures["worst_seen"] = Figure(
        value=float(seen), unit="", target=1, reference="the planted 10-s iteration at full zoom-out"
    )


def _replayed(folder: Path, requests: int) -> tuple[Path, int, int]:
    """A run whose seats are taken at times, with the verdict that its replay ended with: database, number, iterations."""
    db, iterations = record_replay(folder, requests, sets=("max_num_seqs=24",), diagnose=True)
    return db, int(list_runs(Store(db))[0]["run"]), iterations


def _painted(report: Report, folder: Path, options: argparse.Namespace) -> None:
    """A replayed run with findings, opened in a browser."""
    db, run, iterations = _replayed(folder, options.requests)
    search = f"?run={run}"
    with served(db) as (url, server):
        Asker(over_http(url)).ask(search)
        found = visited(url, server, {"timeline": search, "verdict": search}, options.visits)
    size = f"{iterations:,} iterations, {options.requests:,} requests"
    for name in ("timeline", "verdict"):
        each = found and found[name]
        how = "no Chromium" if not each else f"CPU: {each.server_s:.2f} s of the server, {each.browser_s:.2f} s of the browser"
        figure = "first_paint_s" if name == "timeline" else "verdict_paint_s"
        note = f"{name}, empty cache, headless Chromium on this machine; {size}; {how}"
        report.figures[figure] = Figure(value=each.wall_s if each else None, unit="s", target=2.0, at_most=True, note=note)
    weight = found["timeline"].mb if found else None
    note = "on the wire until the timeline is drawn"
    _started(report, db, options)
    report.figures["page_mb"] = Figure(value=weight, unit="MB", target=3.0, at_most=True, note=note)


def _started(report: Report, db: Path, options: argparse.Namespace) -> None:
    """The trace of that run, replayed from the page."""
    with served(db) as (url, _):
        found = first_points(url, options.visits)
    value = float(np.median([each.drawn_s for each in found])) if found else None
    said = float(np.median([each.said_s for each in found])) if found else 0.0
    live = sum(each.live for each in found or ())
    note = f"from Replay pressed, {options.requests:,} requests; {said:.2f} s until it is said to run; {live} were live then"
    report.figures["job_to_point_s"] = Figure(value=value, unit="s", target=3.0, at_most=True, note=note)


def _sequences(report: Report, folder: Path, count: int) -> None:
    trace = folder / "trace.jsonl"
    shape = ["--requests", "3000", "--arrival", "poisson:rate=4", "--input", "200", "--output", "uniform:200,400"]
    subprocess.run([sys.executable, "-m", "tracekit.cli.main", "synth", *shape, str(trace)], check=True, capture_output=True)
    replay(str(trace), db=str(folder / "plain.duckdb"), engine="sim", sets=("max_num_seqs=8",), diagnose=False)
    iterations = int(list_runs(Store(folder / "plain.duckdb"))[0]["iterations"])
    words = ["replay", "--engine=sim", "--set=max_num_seqs=8", "--no-diagnose", "--", str(trace)]
    whole = 0
    for seed in range(count):
        own = folder / f"sequence-{seed}"
        own.mkdir()
        try:
            play(own, words, seed, iterations)
            whole += 1
        except AssertionError as error:
            report.notes.append(f"sequence {seed}: {error}")
    report.figures["sequences_whole"] = Figure(value=whole, unit="", target=count, note="nothing lost, what was said true")


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--iterations", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--brushes", type=int, default=15, help="of each client")
    parser.add_argument("--alone", type=int, default=100, help="brushes of one page with nobody beside it")
    parser.add_argument("--requests", type=int, default=100_000, help="of the run whose first paint is measured")
    parser.add_argument("--visits", type=int, default=5, help="in a browser with an empty cache")
    parser.add_argument("--sequences", type=int, default=0)


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    run_main("dashboard_served", "The dashboard over HTTP.", measure, argv, _options)


if __name__ == "__main__":
    main()
