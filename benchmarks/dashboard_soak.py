"""Pages polling while a job starts every few seconds: the server's memory, its children and its open files must not grow.

``python -m benchmarks.dashboard_soak [--json] [--minutes 20] [--every-s 10] [--pages 4]``. The first third is the
warm-up; growth is the median of the last third over that of the second.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from pathlib import Path

import psutil

from benchmarks.figures import Figure, Report, run_main
from benchmarks.page_asking import Asker, over_http
from benchmarks.pages import served
from dashboards.work import UNDER_WAY
from tracekit import jobs
from tracekit.replay import replay
from tracekit.store import Store, list_runs

__all__ = ["main", "measure"]

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "demo_trace.jsonl.gz"


def _poll(url: str, search: str, done: threading.Event, failed: list[str]) -> None:
    page = Asker(over_http(url))
    while not done.wait(1.0):
        try:
            page.ask(search)
        except Exception as error:  # whatever it is, it is a figure
            failed.append(repr(error))


def measure(options: argparse.Namespace) -> Report:
    """All figures."""
    report = Report(benchmark="dashboard_soak", notes=[f"{options.minutes:g} minutes, a job every {options.every_s:g} s"])
    with tempfile.TemporaryDirectory(prefix="tracekit-bench-") as name:
        store = Store(Path(name) / "t.duckdb")
        replay(str(EXAMPLE), limit=60, db=str(store.path), engine="sim", diagnose=False)
        done, failed = threading.Event(), list[str]()
        with served(store.path) as (url, process):
            pollers = [threading.Thread(target=_poll, args=(url, "?run=last", done, failed)) for _ in range(options.pages)]
            try:
                for poller in pollers:
                    poller.start()
                rows = _soak(store, url, process, options)
            finally:
                done.set()
            for poller in pollers:
                poller.join(60)
        _figures(report, store, rows, failed)
    return report


def _press_replay(url: str) -> None:
    """Start a replay as the page's button does, so that it is the server that starts it."""
    fetch = over_http(url)
    (known,) = [each for each in json.loads(fetch("/_dash-dependencies", None)) if each["output"] == "rp-said.children"]
    form = {"rp-trace": "trace:demo_trace", "rp-engine": "sim", "rp-profile": "h100-llama-3.1-8b", "rp-limit": "60"}
    body = {
        "output": known["output"], "outputs": {"id": "rp-said", "property": "children"}, "changedPropIds": ["rp-start.n_clicks"],
        "inputs": [{**each, "value": 1} for each in known["inputs"]],
        "state": [{**each, "value": form.get(each["id"])} for each in known["state"]],
    }  # fmt: skip
    said = fetch("/_dash-update-component", json.dumps(body).encode()).decode()
    # A database that somebody writes to is no fault: it is asked again at the next turn.
    assert "Started as job" in said or "in use by" in said, said


def _soak(store: Store, url: str, process: psutil.Process, options: argparse.Namespace) -> list[tuple[float, int, int]]:
    """Memory (MiB), children and open files of the server, sampled until the time is over and the last job has ended."""
    rows = list[tuple[float, int, int]]()
    began = following = time.monotonic()
    while (now := time.monotonic()) < began + 60 * options.minutes:
        if now >= following:
            following += options.every_s
            busy = [job for job in jobs.list_jobs(store.folder) if job.state in UNDER_WAY]
            if len(busy) < 3:
                _press_replay(url)
        rows.append((process.memory_info().rss / 2**20, len(process.children()), process.num_fds()))
        time.sleep(0.5)
    while any(job.state in UNDER_WAY for job in jobs.list_jobs(store.folder)):
        time.sleep(0.2)
    end = time.monotonic() + 60  # a job has finished before its process has gone and was waited for
    while process.children() and time.monotonic() < end:
        time.sleep(0.2)
    rows.append((process.memory_info().rss / 2**20, len(process.children()), process.num_fds()))
    return rows


def _figures(report: Report, store: Store, rows: list[tuple[float, int, int]], failed: list[str]) -> None:
    third = max(1, len(rows) // 3)
    parts = rows[third : 2 * third] or rows, rows[2 * third :] or rows
    second, last = (statistics.median(row[0] for row in part) for part in parts)
    files = [statistics.median(row[2] for row in part) for part in parts]
    states = [job.state for job in jobs.list_jobs(store.folder)]
    figures = {
        "memory_growth": (last / second - 1, "", 0.10, f"{second:.0f} to {last:.0f} MiB"),
        "files_growth": (files[1] - files[0], "files", 4, f"{files[0]:g} to {files[1]:g}"),
        "children_left": (rows[-1][1], "processes", 0, "of the server in the end"),
        "jobs_not_finished": (sum(state != "finished" for state in states), "", 0, f"of {len(states)}"),
        "runs_lost": (states.count("finished") - len(list_runs(store)), "", 0, ""),
        "polls_failed": (len(failed), "", 0, failed[0] if failed else ""),
    }
    for name, (value, unit, target, note) in figures.items():
        report.figures[name] = Figure(value=float(value), unit=unit, target=target, at_most=True, note=note)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--every-s", type=float, default=10.0)
    parser.add_argument("--pages", type=int, default=4)


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    run_main("dashboard_soak", "Pages polling while jobs start.", measure, argv, _options)


if __name__ == "__main__":
    main()
