"""``tracekit replay`` as a whole process: load, simulate, commit, matrix. Wall, CPU and peak memory.

``python -m benchmarks.whole [--json] [--quick] [--repeats N] [--requests N]``. 19,366 requests are the 13,000 rows of Azure conv
continued by the seeded generator at their rate and lengths; 97k are five of these in a row; 1M (left out by ``--quick``) goes on
so, with ``--events outcomes``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, Report, reference_figure, run_main
from benchmarks.process import Spent, run_python

__all__ = ["main", "measure", "write_input"]

REQUESTS = 19_366
LINEAR = 1.15
"""Seconds per request at 1M may be this many times those at 97k: what noise does to two runs."""


def write_input(path: Path, requests: int, rows: int) -> str:
    """``rows`` requests: the first ``requests`` of the continued trace, over and over. Returns a line that says what it is."""
    import numpy as np

    from benchmarks.workloads import azure_conv
    from tracekit.traces.synth import Columns, continue_trace, write_azure_csv

    base, said = azure_conv()
    once = continue_trace(base, requests)
    copies = -(-rows // requests)
    period = int(once.arrival_ns[-1]) + int(once.arrival_ns[-1]) // max(len(once) - 1, 1)
    arrival = np.concatenate([once.arrival_ns + copy * period for copy in range(copies)])[:rows]
    prompt, output = (np.tile(column, copies)[:rows] for column in (once.input_tokens, once.output_tokens))
    write_azure_csv(Columns(arrival_ns=arrival, input_tokens=prompt, output_tokens=output), path)
    return said


def _replay(trace: Path, scratch: Path, events: str) -> tuple[Spent, dict[str, Any]]:
    """One whole process into a database of its own; the matrix it printed."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        database = Path(folder, "bench.duckdb")
        words = ["-m", "tracekit.cli.main", "replay", str(trace), "--db", str(database), "--events", events, "--json"]
        spent = run_python(words, Path(folder))
    return spent, json.loads(spent.out)["matrix"]


def _best(trace: Path, scratch: Path, events: str, repeats: int) -> tuple[Spent, dict[str, Any]]:
    runs = [_replay(trace, scratch, events) for _ in range(max(repeats, 1))]
    return min(runs, key=lambda run: run[0].wall_s)


def _figures(name: str, run: tuple[Spent, dict[str, Any]], rows: int, wall: float | None, peak: float | None,
             reference: str = "") -> dict[str, Figure]:  # fmt: skip
    spent, matrix = run
    note = f"{rows:,} requests, {matrix['time']['iterations']:,} iterations"
    return {
        f"{name}_wall_s": Figure(value=spent.wall_s, unit="s", target=wall, at_most=True, reference=reference, note=note),
        f"{name}_cpu_s": Figure(value=spent.cpu_s, unit="s"),
        f"{name}_peak_mib": Figure(value=spent.peak_mib, unit="MiB", target=peak, at_most=True),
    }


def measure(options: argparse.Namespace) -> Report:
    """All figures; ``options`` has ``quick``, ``repeats`` and ``requests`` (of the first size; the others are multiples)."""
    report = Report(benchmark="whole", notes=["each run: a fresh process and a fresh database; the fastest by wall time"])
    requests = options.requests
    full = requests == REQUESTS
    sizes = {"replay_19k": requests, "replay_97k": 5 * requests, "replay_1m": 1_000_000 if full else 10 * requests}
    with tempfile.TemporaryDirectory(prefix="tracekit-bench-") as folder:
        scratch = Path(folder)
        traces = {name: scratch / f"{name}.csv" for name in sizes if not (options.quick and name == "replay_1m")}
        for name, path in traces.items():
            # In a process of its own, so that this one stays small (see Spent).
            made = run_python(["-m", "benchmarks.whole", "--write", str(path), str(requests), str(sizes[name])], scratch)
            if name == "replay_19k":
                report.notes.insert(0, made.out.strip())
        rust = "a Rust simulator without database, event log or matrix: 5 s"
        small = _best(traces["replay_19k"], scratch, "full", options.repeats)
        report.figures |= _figures("replay_19k", small, sizes["replay_19k"], 3.0 if full else None, None, rust)
        middle = _best(traces["replay_97k"], scratch, "full", max(options.repeats - 1, 1))
        report.figures |= _figures("replay_97k", middle, sizes["replay_97k"], 14.0 if full else None, 700.0 if full else None)
        if "replay_1m" in traces:
            report.figures |= _large(traces, scratch, sizes, full)
    report.figures["python_reference"] = reference_figure()
    return report


def _large(traces: dict[str, Path], scratch: Path, sizes: dict[str, int], full: bool) -> dict[str, Figure]:
    """1M requests, outcomes only, against the same at 97k: time per request must not grow."""
    middle, _ = _replay(traces["replay_97k"], scratch, "outcomes")
    large = _replay(traces["replay_1m"], scratch, "outcomes")
    rows = sizes["replay_1m"]
    each, before = large[0].cpu_s / rows, middle.cpu_s / sizes["replay_97k"]
    figures = _figures("replay_1m", large, rows, None, 2048.0 if full else None)
    figures["replay_1m_growth"] = Figure(
        value=each / before, unit="x", target=LINEAR if full else None, at_most=True,
        reference=f"CPU time per request at 1M over that at 97k ({each * 1e6:.0f} / {before * 1e6:.0f} us), --events outcomes",
    )  # fmt: skip
    return figures


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="without the 1M requests")
    parser.add_argument("--repeats", type=int, default=3, help="runs of the small size; the fastest counts")
    parser.add_argument("--requests", type=int, default=REQUESTS, help="requests of the small size; others have no targets")
    parser.add_argument("--write", nargs=3, metavar=("PATH", "REQUESTS", "ROWS"), help=argparse.SUPPRESS)


def main(argv: list[str] | None = None) -> None:
    """Measure and print, or write one input file."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--write", nargs=3)
    known, _ = parser.parse_known_args(argv)
    if known.write:
        print(write_input(Path(known.write[0]), int(known.write[1]), int(known.write[2])))
        return
    run_main("whole", "tracekit replay as a whole process.", measure, argv, _options)


if __name__ == "__main__":
    main()
