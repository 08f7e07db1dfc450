"""What every benchmark prints: figures with their targets, as a table or one JSON document, and on what machine."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["Figure", "Report", "document", "machine", "print_report", "python_reference", "reference_figure", "run_main", "table"]

SCHEMA = "tracekit.benchmark/1"
ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = ("numpy", "polars", "duckdb", "pyarrow", "orjson", "typer", "rich")


@dataclass(slots=True, kw_only=True)
class Figure:
    """One measured number. ``target`` is a floor, or a ceiling where ``at_most``; ``reference`` says what it stands beside.

    ``value`` is ``None`` where nothing could be measured; ``note`` then says why.
    """

    value: float | None
    unit: str
    target: float | None = None
    at_most: bool = False
    reference: str = ""
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; ``None`` without target or value."""
        if self.target is None or self.value is None:
            return None
        return self.value <= self.target if self.at_most else self.value >= self.target

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "value": self.value, "unit": self.unit, "target": self.target,
            "target_is": None if self.target is None else "at most" if self.at_most else "at least",
            "met": self.met, "reference": self.reference, "note": self.note,
        }  # fmt: skip


@dataclass(slots=True, kw_only=True)
class Report:
    """A benchmark's figures by name, and what must be known to read them."""

    benchmark: str
    figures: dict[str, Figure] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


def table(figures: dict[str, dict[str, Any]]) -> str:
    """Figures as a Markdown table, aligned so that it reads on a terminal too."""
    rows = [("figure", "measured", "target", "met", "reference")]
    for name, figure in figures.items():
        target, met = figure["target"], figure["met"]
        bound = "" if target is None else f"{'<=' if figure['target_is'] == 'at most' else '>='} {_number(target)}"
        verdict = "" if met is None else "yes" if met else "NO"
        beside = "; ".join(text for text in (figure["reference"], figure["note"]) if text)
        rows.append((name, f"{_number(figure['value'])} {figure['unit']}", bound, verdict, beside))
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    lines = ["| " + " | ".join(cells).rstrip() + " |" for cells in padded]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def python_reference(rounds: int = 200_000) -> float:
    """Million rounds per second of a fixed loop of dictionary, list and integer work: how fast this Python is here. Best of 3."""
    best = float("inf")
    for _ in range(3):
        held: dict[int, int] = {}
        stack: list[int] = []
        began = time.process_time()
        for i in range(rounds):
            key = (i * 7919) & 1023
            held[key] = held.get(key, 0) + i
            stack.append(key)
            if len(stack) > 64:
                stack.clear()
        best = min(best, time.process_time() - began)
    return rounds / best / 1e6


def reference_figure() -> Figure:
    """``python_reference`` as a figure, to hold machines against each other."""
    return Figure(value=python_reference(), unit="M/s", reference="a fixed pure-Python loop: how fast Python is on this machine")


def _first(path: str, pattern: str) -> str:
    try:
        found = re.search(pattern, Path(path).read_text(encoding="utf-8"), flags=re.MULTILINE)
    except OSError:
        return ""
    return found.group(1).strip() if found else ""


def machine() -> dict[str, Any]:
    """The machine and the versions, with the load average of the last minute as it is now."""
    import psutil

    return {
        "cpu": _first("/proc/cpuinfo", r"^model name\s*:\s*(.*)$") or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in LIBRARIES},
        "load_average_before": round(os.getloadavg()[0], 2),
    }


def _commit() -> str | None:
    """The commit that is checked out, with ``+`` where files of the tree differ from it."""
    try:
        head = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
        changed = subprocess.run(["git", "status", "--porcelain", "-uno"], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


def document(report: Report, where: dict[str, Any]) -> dict[str, Any]:
    """The one JSON document of a benchmark; ``where`` is ``machine()`` from before the measurement."""
    return {
        "schema": SCHEMA,
        "benchmark": report.benchmark,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": where,
        "notes": report.notes,
        "figures": {name: figure.as_dict() for name, figure in report.figures.items()},
    }


def print_report(result: dict[str, Any], as_json: bool) -> None:
    """``result`` is a ``document``."""
    if as_json:
        print(json.dumps(result))
        return
    where = result["machine"]
    print(f"{result['benchmark']}: {where['cpu']}, {where['cores']} cores, {where['memory_gib']} GiB, Python {where['python']},"
          f" load average before {where['load_average_before']}, commit {result['commit'] or 'unknown'}")  # fmt: skip
    for note in result["notes"]:
        print(f"  {note}")
    print(table(result["figures"]))


Options = argparse.Namespace


def run_main(
    name: str,
    description: str,
    measure: Callable[[Options], Report],
    argv: list[str] | None = None,
    options: Callable[[argparse.ArgumentParser], None] | None = None,
) -> None:
    """The command line of a benchmark: ``python -m benchmarks.NAME [--json] ...``."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    parser.add_argument("--json", action="store_true", help="one JSON document, a figure per name")
    if options is not None:
        options(parser)
    given = parser.parse_args(sys.argv[1:] if argv is None else argv)
    where = machine()
    print_report(document(measure(given), where), given.json)
