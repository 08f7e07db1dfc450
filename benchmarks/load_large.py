"""Loading and describing a week of traffic: a CSV of the shape of the Azure 2024 trace (27 million rows) against ``read_csv``.

``python -m benchmarks.load_large [--json] [--rows N] [--folder DIR]``. The file is generated; each measurement runs in a process
of its own. Not part of ``benchmarks.all``: forty million rows take minutes and six gigabytes of disk.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

__all__ = ["main"]


def _write(path: Path, rows: int) -> None:
    """Sorted dates with an offset and six digits, as the 2024 files have them; lengths in their range."""
    import duckdb

    with duckdb.connect() as con:
        con.execute("SET memory_limit = '2GB'")
        con.execute(
            "COPY (SELECT strftime(TIMESTAMP '2024-05-10' + to_microseconds(range * 15120 + (range * 7919) % 15000),"
            " '%Y-%m-%d %H:%M:%S.%f') || '+00:00' AS \"TIMESTAMP\", 100 + (hash(range) % 3000)::INT AS \"ContextTokens\","
            f" 1 + (hash(range + 1) % 400)::INT AS \"GeneratedTokens\" FROM range({rows})) TO '{path}' (HEADER)"
        )


def _work(kind: str, path: str, database: str) -> None:
    """In the child: one measurement, as JSON."""
    import duckdb

    from tracekit.traces.load import load_trace

    cpu, wall = time.process_time(), time.perf_counter()
    with duckdb.connect(database) as con:
        con.execute("BEGIN")
        if kind == "read_csv":
            con.execute(f"CREATE TABLE t AS SELECT * FROM read_csv('{path}')")
        elif kind == "load":
            load_trace(con, path)
        else:
            from tracekit.describe import describe_trace

            describe_trace(con, 1)
        con.execute("COMMIT")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu, "peak_mib": peak}))


def _run(kind: str, path: Path, database: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.load_large", "--work", kind, str(path), str(database)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def measure(rows: int, folder: str | None, kinds: list[str]) -> dict[str, float]:
    """All figures by name."""
    figures: dict[str, float] = {"rows": rows}
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        path = Path(scratch, "azure.csv")
        _write(path, rows)
        figures["file_mib"] = path.stat().st_size / 2**20
        for kind in kinds:
            database = Path(scratch, "csv.duckdb" if kind == "read_csv" else "trace.duckdb")
            for name, value in _run(kind, path, database).items():
                figures[f"{kind}_{name}"] = value
            if kind == "read_csv":
                database.unlink()
        if {"read_csv", "load"} <= set(kinds):
            figures["ratio"] = figures["load_wall_s"] / figures["read_csv_wall_s"]
            figures["cpu_ratio"] = figures["load_cpu_s"] / figures["read_csv_cpu_s"]
    return figures


def main(argv: list[str] | None = None) -> None:
    """Measure and print a table, or one JSON document."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load_large", description="A week of traffic: load, describe.")
    parser.add_argument("--json", action="store_true", help="one JSON document, a figure per name")
    parser.add_argument("--rows", type=int, default=40_000_000)
    parser.add_argument("--folder", help="where the files go (default: the system's temporary folder)")
    parser.add_argument("--kinds", default="read_csv,load,describe", help="what is measured, comma-separated")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.work:
        _work(*options.work)
        return
    figures = measure(options.rows, options.folder, options.kinds.split(","))
    if options.json:
        print(json.dumps({"benchmark": "load_large", "figures": figures}))
        return
    for name, value in figures.items():
        print(f"{name:24} {value:14,.3f}")


if __name__ == "__main__":
    main()
