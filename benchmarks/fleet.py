"""A fleet at length: 16 replicas behind prefix affinity, requests that share prefixes, outcomes kept: linear, in bounded memory.

``python -m benchmarks.fleet [--json] [--requests N] [--replicas N]``. A generated trace in Mooncake's format (2,000 prefixes of 1
to 6 blocks of 512 tokens, drawn by Zipf's law, each continued by blocks of its own) at 5 requests a second and replica. A
quarter, a half and all of it go through ``tracekit replay``, file to matrix, each in a process of its own. Process CPU time, the
kernel's count of peak memory. Not part of ``benchmarks.all``: a million requests are some thirty million iterations, and take
minutes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure, Report, reference_figure, run_main
from benchmarks.process import Spent, run_python

__all__ = ["main", "measure", "write_shared"]

PREFIXES, BLOCK = 2_000, 512
PER_REPLICA = 5.0


def write_shared(path: Path, requests: int, rate: float, seed: int = 0) -> None:
    """A trace of ``requests`` at ``rate`` a second, as JSON lines."""
    rng = np.random.Generator(np.random.PCG64(seed))
    length = rng.integers(1, 7, PREFIXES)
    first = np.cumsum(length) - length
    fresh = int(length.sum())
    at = 0.0
    with path.open("w", encoding="utf-8") as file:
        for low in range(0, requests, 10_000):
            count = min(10_000, requests - low)
            gaps, which = rng.exponential(1.0 / rate, count), (rng.zipf(1.3, count) - 1) % PREFIXES
            own, outputs = rng.integers(30, 1200, count), np.maximum(rng.gamma(1.5, 100.0, count).astype(np.int64), 1)
            for i in range(count):
                at += gaps[i]
                shared, tail = int(length[which[i]]), -(-int(own[i]) // BLOCK)
                begin = int(first[which[i]])
                ids = [*range(begin, begin + shared), *range(fresh, fresh + tail)]
                fresh += tail
                row = {"timestamp": round(at * 1000), "input_length": shared * BLOCK + int(own[i]), "hash_ids": ids}
                file.write(json.dumps(row | {"output_length": int(outputs[i])}) + "\n")


def _replay(path: Path, replicas: int, scratch: Path) -> tuple[Spent, dict[str, dict[str, float]]]:
    spent = run_python(
        ["-m", "tracekit.cli.main", "replay", str(path), "--replicas", str(replicas), "--router", "prefix_affinity", "--events",
         "outcomes", "--json", "--db", str(scratch / f"{path.stem}.duckdb")],
        scratch,
    )  # fmt: skip
    matrix: dict[str, dict[str, float]] = json.loads(spent.out)["matrix"]
    return spent, matrix


def measure(options: argparse.Namespace) -> Report:
    """All figures; ``options`` has ``requests`` and ``replicas``."""
    figures: dict[str, Figure] = {}
    each: list[float] = []
    sizes = [options.requests // 4, options.requests // 2, options.requests]
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        for size in sizes:
            path = scratch / f"shared{size}.jsonl"
            write_shared(path, size, PER_REPLICA * options.replicas)
            spent, matrix = _replay(path, options.replicas, scratch)
            path.unlink()
            each.append(spent.cpu_s / size * 1e6)
            note = (
                f"{matrix['time']['iterations']:,} iterations, {spent.cpu_s:.0f} s of CPU, prefix hit share"
                f" {matrix['kv']['prefix_hit_share']:.3f}, imbalance of busy time {matrix['fleet']['imbalance_busy']:.3f}"
            )
            figures[f"us_per_request_{size}"] = Figure(value=each[-1], unit="us", note=note, reference="file to matrix")
            figures[f"peak_{size}"] = Figure(
                value=spent.peak_mib, unit="MiB", target=2560 if size == sizes[-1] else None, at_most=True,
                reference="2.5 GiB" if size == sizes[-1] else "",
            )  # fmt: skip
    figures["growth"] = Figure(
        value=each[-1] / each[0], unit="x", target=1.15, at_most=True, reference="CPU time of a request, all against a quarter"
    )
    figures["python_reference"] = reference_figure()
    return Report(benchmark="fleet", figures=figures, notes=[f"{options.replicas} replicas, {options.requests:,} requests"])


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=1_000_000, help="of the largest size")
    parser.add_argument("--replicas", type=int, default=16)


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    run_main("fleet", "Many requests through many replicas: time and memory.", measure, argv, _options)


if __name__ == "__main__":
    main()
