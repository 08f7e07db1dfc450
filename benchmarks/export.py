"""How long the exports of a run take, and how large they are: trace events of 100,000 iterations, the page of a million.

``python -m benchmarks.export [--json] [--requests N] [--page-requests N]``. Both runs are replayed here, into a database of their
own: Poisson arrivals at which about twenty sequences decode, so that a request makes about ten iterations. CPU seconds of the
process with all its threads.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.figures import Figure, Report, reference_figure, run_main
from benchmarks.workloads import Load, planned
from dashboards.report import export_run_page
from replay_engine.profile import load_profile
from tracekit.exports.export import Asked, export
from tracekit.replay import replay
from tracekit.store import Store, load_run
from tracekit.traces.synth import write_jsonl

__all__ = ["main", "measure", "record_run"]

MIB = 1e6


def record_run(folder: Path, requests: int, *, sets: Sequence[str] = (), diagnose: bool = False) -> tuple[Path, int]:
    """A replayed run of ``requests`` with every event kept: its database and how many iterations it made. ``sets``, ``diagnose``:
    as of ``replay``."""
    trace, db = folder / f"load-{requests}.jsonl", folder / f"load-{requests}.duckdb"
    write_jsonl(planned(Load(name="export", requests=requests, batch=21), load_profile("h100").latency), trace)
    report = replay(str(trace), slo="ttft=500ms,tpot=20ms", db=str(db), sets=sets, diagnose=diagnose)
    return db, int(load_run(Store(db), report.run)["iterations"])


def _timed(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def measure(options: argparse.Namespace) -> Report:
    """All figures; ``options`` has ``requests`` and ``page_requests``."""
    report = Report(benchmark="export", notes=["replayed here; CPU time with all threads, one run of each"])
    with tempfile.TemporaryDirectory(prefix="tracekit-bench-") as scratch:
        folder = Path(scratch)
        db, iterations = record_run(folder, options.requests)
        out = folder / "run.json.gz"
        spent = _timed(lambda: export("last", to="perfetto", out=out, db=db))
        events = len(json.loads(gzip.decompress(out.read_bytes()))["traceEvents"])
        size = f"{iterations:,} iterations, {options.requests:,} requests, {events:,} events"
        report.figures["perfetto_s"] = Figure(value=spent, unit="s", target=4.0, at_most=True, note=size)
        megabytes = out.stat().st_size / MIB
        report.figures["perfetto_mb"] = Figure(value=megabytes, unit="MB", target=3.0, at_most=True, note="gzipped")
        for kind in ("csv", "parquet"):
            spent = _timed(lambda kind=kind: export("last", to=kind, out=folder / kind, db=db))
            report.figures[f"{kind}_s"] = Figure(value=spent, unit="s", note="all tables of the same run")
        db, iterations = record_run(folder, options.page_requests)
        page = folder / "run.html"
        spent = _timed(lambda: export_run_page("last", Asked(to="html", out=str(page)), db))
        size = f"{iterations:,} iterations, {options.page_requests:,} requests; the diagnosis, which was not recorded, in it"
        report.figures["html_s"] = Figure(value=spent, unit="s", note=size)
        report.figures["html_mb"] = Figure(value=page.stat().st_size / MIB, unit="MB", target=6.0, at_most=True,
                                           note="Plotly's own script is 1.5 of it")  # fmt: skip
    report.figures["python_reference"] = reference_figure()
    return report


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=10_000, help="of the run whose events are exported")
    parser.add_argument("--page-requests", type=int, default=100_000, help="of the run whose page is made")


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    run_main("export", "Time and size of exports.", measure, argv, _options)


if __name__ == "__main__":
    main()
