"""Every benchmark, one after the other, each in a process of its own; the results are written to ``benchmarks/results``.

``python -m benchmarks.all [--quick] [--only NAME ...] [--results DIR]``: one JSON file per day and machine, and
``README.md`` with the tables of the latest. ``make bench`` runs this; a result that is committed comes from a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, document, machine, table
from benchmarks.figures import Report as FigureReport

__all__ = ["NAMES", "main", "readme", "result_name", "run_one"]

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
NAMES = (
    "startup", "iterations", "lean", "mooncake", "policies", "blame", "whole", "experiment", "load", "dashboard",
    "dashboard_served", "dashboard_tuner", "dashboard_soak", "export", "engine",
)  # fmt: skip
FULL = {"dashboard_served": ["--sequences", "30"]}
QUICK = {
    "dashboard_tuner": ["--visits", "2", "--brushes", "10"],
    "dashboard_served": ["--iterations", "100000", "--brushes", "5", "--alone", "40", "--visits", "2"],
    "dashboard_soak": ["--minutes", "1"],
    "export": ["--requests", "5000", "--page-requests", "20000"],
    "policies": ["--scale", "0.3"],
    "blame": ["--requests", "20000"],
    "whole": ["--quick", "--repeats", "2"],
    "load": ["--rows", "500000", "--repeats", "2"],
    "lean": ["--repeats", "2"],
    "engine": ["--quick", "--repeats", "2"],
    "experiment": ["--repeats", "1"],
}
LOAD: dict[str, tuple[float | None, str, str]] = {
    "azure_ratio": (4.0, "x", "loading over DuckDB's own read_csv into a table"),
    "mooncake_ratio": (4.0, "x", "loading over parsing alone with orjson"),
    "azure_peak_mib": (1024.0, "MiB", ""),
    "mooncake_peak_mib": (1024.0, "MiB", ""),
    "azure_mrows_per_s": (None, "M rows/s", ""),
    "mooncake_mrows_per_s": (None, "M rows/s", ""),
}
UNITS = {"rows": "rows", "s": "s", "ratio": "x", "mib": "MiB"}


def _load_document(figures: dict[str, float], where: dict[str, Any]) -> dict[str, Any]:
    """The load benchmark prints plain numbers by name; targets and units are put to them here."""
    report = FigureReport(benchmark="load", notes=["loading into a database file; wall time, the fastest run"])
    for name, value in figures.items():
        target, unit, reference = LOAD.get(name, (None, UNITS.get(name.rsplit("_", 1)[-1], ""), ""))
        report.figures[name] = Figure(value=value, unit=unit, target=target, at_most=True, reference=reference)
    return document(report, where)


def run_one(name: str, arguments: list[str]) -> dict[str, Any]:
    """The document of one benchmark, run in a process of its own."""
    where = machine()
    command = [sys.executable, "-m", f"benchmarks.{name}", "--json", *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result if "schema" in result else _load_document(result["figures"], where)


def result_name(result: dict[str, Any]) -> str:
    """``<date>-<machine>.json``: the machine by its processor and cores, never by its name."""
    where = result["machine"]
    words = re.sub(r"\(\w+\)|@.*$", " ", f"{where['cpu']}")
    slug = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")[:40].strip("-")
    return f"{result['date'][:10]}-{slug}-{where['cores']}-cores.json"


def readme(results: list[dict[str, Any]]) -> str:
    """The results as Markdown: the machine once, then a table per benchmark."""
    first = results[0]
    where = first["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    lines = [
        "# Results", "", "<!-- made by: python -m benchmarks.all -->", "",
        f"{first['date'][:10]}, commit {first['commit'] or 'unknown'}: {where['cpu']}, {where['cores']} cores,"
        f" {where['memory_gib']} GiB, {where['system']}, Python {where['python']}; {versions}.", "",
        "What each figure is: [docs/benchmarks.md](../../docs/benchmarks.md).", "",
    ]  # fmt: skip
    for result in results:
        lines += [f"## {result['benchmark']}", "", f"Load average before: {result['machine']['load_average_before']}."]
        lines += [f"{note[:1].upper()}{note[1:].rstrip('.')}." for note in result["notes"]]
        lines += ["", table(result["figures"]), ""]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    """Run, print each table as it comes, write the results. Exit code 1 when a benchmark breaks; a missed target is no error."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.all", description="All benchmarks; results are written down.")
    parser.add_argument("--quick", action="store_true", help="smaller loads and fewer runs")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, help="only these")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where to write (default: benchmarks/results)")
    given = parser.parse_args(argv)
    results, broken = [], []
    for name in given.only:
        print(f"== {name}", flush=True)
        try:
            result = run_one(name, (QUICK if given.quick else FULL).get(name, []))
        except subprocess.CalledProcessError as error:
            broken.append(name)
            print(f"benchmark {name} broke: exit code {error.returncode}", flush=True)
            continue
        if given.quick:
            result["notes"].append("quick: smaller loads and fewer runs")
        results.append(result)
        print(table(result["figures"]), flush=True)
    if results:
        given.results.mkdir(parents=True, exist_ok=True)
        name = result_name(results[0])
        (given.results / name).write_text(json.dumps({"benchmarks": results}, indent=1) + "\n", encoding="utf-8")
        (given.results / "README.md").write_text(readme(results), encoding="utf-8")
        print(f"written: {name} and README.md")
    if broken:
        sys.exit(1)


if __name__ == "__main__":
    main()
