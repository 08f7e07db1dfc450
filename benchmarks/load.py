"""Loading traces against the least any loader must do: DuckDB's ``read_csv`` into a table, and parsing with orjson.

``python -m benchmarks.load [--json] [--rows N] [--repeats N]``. Each measurement runs in a process of its own, loader and
reference in turn; the figure is the smallest ratio's parts: minimum of wall times each. Imports and generation are not measured.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["main"]

ROWS_PER_MOONCAKE_ROW = 20
"""A prefix-hash row costs at least this many times an Azure row; half as many keep the benchmark short."""


def _write_azure(path: Path, rows: int) -> None:
    import duckdb

    with duckdb.connect() as con:
        con.execute(
            "COPY (SELECT strftime(TIMESTAMP '2024-05-10' + to_microseconds(range * 120000 + (range * 7919) % 100000),"
            " '%Y-%m-%d %H:%M:%S.%f') || '0' AS \"TIMESTAMP\", 100 + (hash(range) % 3000)::INT AS \"ContextTokens\","
            f" 1 + (hash(range + 1) % 400)::INT AS \"GeneratedTokens\" FROM range({rows})) TO '{path}' (HEADER)"
        )


def _write_mooncake(path: Path, rows: int) -> None:
    """Rows like the conversation trace's: 23 blocks on average (median 13), block 0 everybody's, a quarter seen before."""
    rng = np.random.default_rng(0)
    blocks = np.clip(rng.lognormal(2.6, 1.07, rows), 1, 247).astype(int)
    follows = rng.random(rows) < 0.55
    first = 1
    with open(path, "w", encoding="utf-8") as out:
        recent: list[list[int]] = [[0]]
        for i in range(rows):
            known = recent[i * 7919 % len(recent)] if follows[i] else [0]
            known = known[: int(blocks[i])]
            ids = known + list(range(first, first + int(blocks[i]) - len(known)))
            first += int(blocks[i]) - len(known)
            recent = [*recent[-63:], ids]
            row = {"timestamp": i * 294 // 3000 * 3000, "input_length": int(blocks[i]) * 512 - 7, "output_length": 340}
            out.write(json.dumps(row | {"hash_ids": ids}) + "\n")


def _read_csv(path: str, database: str) -> int:
    import duckdb

    with duckdb.connect(database) as con:
        con.execute(f"CREATE TABLE t AS SELECT * FROM read_csv('{path}')")
        return int(con.execute("SELECT count(*) FROM t").fetchall()[0][0])


def _orjson(path: str, database: str) -> int:
    import orjson

    rows = 0
    with open(path, "rb") as data:
        for line in data:
            orjson.loads(line)
            rows += 1
    return rows


def _load(path: str, database: str) -> int:
    import duckdb

    from tracekit.traces.load import load_trace

    with duckdb.connect(database) as con:
        con.execute("BEGIN")
        report = load_trace(con, path)
        con.execute("COMMIT")
    return report.rows_kept


WORKERS: dict[str, Callable[[str, str], int]] = {"read_csv": _read_csv, "orjson": _orjson, "load": _load}


def _work(kind: str, path: str, small: str) -> None:
    """In the child: once on a small file for the imports, once for the clock."""
    with tempfile.TemporaryDirectory() as folder:
        WORKERS[kind](small, os.path.join(folder, "small.duckdb"))
        cpu, wall = time.process_time(), time.perf_counter()
        rows = WORKERS[kind](path, os.path.join(folder, "big.duckdb"))
        result = {"rows": rows, "wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
    result["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(result))


def _run(kind: str, path: Path, small: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.load", "--work", kind, str(path), str(small)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _compare(name: str, reference: str, path: Path, small: Path, repeats: int) -> dict[str, float]:
    runs: dict[str, list[dict[str, Any]]] = {reference: [], "load": []}
    for _ in range(repeats):
        for kind, results in runs.items():
            results.append(_run(kind, path, small))
    best = {kind: min(results, key=lambda r: r["wall_s"]) for kind, results in runs.items()}
    return {
        f"{name}_rows": best["load"]["rows"],
        f"{name}_load_s": best["load"]["wall_s"],
        f"{name}_{reference}_s": best[reference]["wall_s"],
        f"{name}_ratio": best["load"]["wall_s"] / best[reference]["wall_s"],
        f"{name}_cpu_ratio": min(r["cpu_s"] for r in runs["load"]) / min(r["cpu_s"] for r in runs[reference]),
        f"{name}_peak_mib": max(r["peak_mib"] for r in runs["load"]),
        f"{name}_mrows_per_s": best["load"]["rows"] / best["load"]["wall_s"] / 1e6,
    }


def measure(rows: int, repeats: int) -> dict[str, float]:
    """All figures by name."""
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder, name) for name in ("azure.csv", "azure_small.csv", "mooncake.jsonl", "mooncake_small.jsonl")}
        _write_azure(paths["azure.csv"], rows)
        _write_azure(paths["azure_small.csv"], 1000)
        _write_mooncake(paths["mooncake.jsonl"], max(rows // ROWS_PER_MOONCAKE_ROW, 1000))
        _write_mooncake(paths["mooncake_small.jsonl"], 100)
        figures = _compare("azure", "read_csv", paths["azure.csv"], paths["azure_small.csv"], repeats)
        figures |= _compare("mooncake", "orjson", paths["mooncake.jsonl"], paths["mooncake_small.jsonl"], repeats)
    return figures


def main(argv: list[str] | None = None) -> None:
    """Measure and print a table, or one JSON document."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description="Loading against DuckDB and orjson alone.")
    parser.add_argument("--json", action="store_true", help="one JSON document, a figure per name")
    parser.add_argument("--rows", type=int, default=5_000_000, help="rows of the Azure CSV")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each; the fastest counts")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.work:
        _work(*options.work)
        return
    figures = measure(options.rows, options.repeats)
    if options.json:
        print(json.dumps({"benchmark": "load", "figures": figures}))
        return
    for name, value in figures.items():
        print(f"{name:24} {value:12,.3f}")


if __name__ == "__main__":
    main()
