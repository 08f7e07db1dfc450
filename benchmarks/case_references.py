"""The diagnosis cases against their reference run.

``python -m benchmarks.case_references [--case D05] [--draws N] [--markdown | --json]``: every recipe of ``tests/data/cases`` and
every variant is built from its file, replayed, and held against ``tests/data/case_references``: medians and means within 30 %,
tails (p95, p99, longest) and counts within a factor of 2, shares within 0.1, bounds as stated, and each variant moving every
figure the way the reference moved. ``--draws N`` replays N more seeds of every recipe: what a seed alone can do. A difference is
shown with its reason; one without a reason ends with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.case_judge import Line, differences, lines_of
from benchmarks.case_runs import buildable, runs_of

__all__ = ["cells", "compared", "document", "main", "markdown", "unexplained"]

COLUMNS = ("variant", "figure", "unit", "reference", "ours", "ours / reference", "other draws", "verdict")


def compared(case: str, draws: int = 0) -> list[Line]:
    """All lines of a case; ``draws`` more seeds go with each."""
    with tempfile.TemporaryDirectory(prefix="tracekit-case-") as folder:
        lines = lines_of(runs_of(case, Path(folder)))
        for draw in range(1, draws + 1):
            for line, other in zip(lines, lines_of(runs_of(case, Path(folder), draw)), strict=True):
                line.draws.append(other)
    return lines


def unexplained(lines: Iterable[Line]) -> list[Line]:
    """Lines that neither pass nor have a reason."""
    known = differences()[1]
    return [line for line in lines if not line.passed and line.key not in known]


def document(lines: Iterable[Line], draws: int) -> dict[str, Any]:
    """Plain values for JSON."""
    known = differences()[1]
    rows = [
        {"case": line.case, "variant": line.variant, "figure": line.figure, "unit": line.unit, "reference": line.reference,
         "ours": line.ours, "ratio": line.ratio, "near": line.near, "same_direction": line.direction, "verdict": line.verdict,
         "reason": known.get(line.key), "draws": [each.ours for each in line.draws]}
        for line in lines
    ]  # fmt: skip
    return {"schema": "tracekit.case_references/1", "draws": draws, "lines": rows}


def _number(value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def cells(line: Line) -> tuple[str, ...]:
    """A line as cells of the table, in the order of ``COLUMNS``."""
    spread = [each.ours for each in line.draws]
    others = f"{_number(min(spread))} to {_number(max(spread))}" if spread else ""
    reason = differences()[1].get(line.key)
    verdict = line.verdict
    if verdict == "draw":
        verdict += f": passes in {sum(each.passed for each in line.draws)} of {len(line.draws)}"
    elif verdict == "DIFFERS" and reason:
        verdict += f": {reason}"
    if not line.passed and line.direction is False:
        verdict += " (direction)"
    numbers = (_number(line.reference), _number(line.ours), _number(line.ratio))
    return (line.variant, line.figure, line.unit, *numbers, others, verdict)


def _table(lines: Iterable[Line]) -> list[str]:
    rows = [COLUMNS, *map(cells, lines)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    text = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows]
    text.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return text


def _summary(lines: list[Line]) -> str:
    told = {verdict: sum(line.verdict == verdict for line in lines) for verdict in ("pass", "draw", "DIFFERS")}
    near = [line for line in lines if line.ratio is not None]
    within = sum(1 / 1.1 <= (line.ratio or 0) <= 1.1 for line in near)
    cases = len({line.case for line in lines})
    return (
        f"{len(lines)} figures of {cases} cases: {told['pass']} pass, {told['draw']} pass under other seeds only,"
        f" {told['DIFFERS']} differ; {within} of {len(near)} ratios within 10 %."
    )


def markdown(lines: list[Line], draws: int) -> str:
    """The page in docs/studies."""
    page = [
        "# The diagnosis cases against their reference run", "",
        f"<!-- made by: python -m benchmarks.case_references --draws {draws} --markdown > docs/studies/cases.md -->", "",
        "Recipes, variants and reference numbers are those of sixteen retold public reports. The reference is a small simulator",
        "of another make, run once per variant on requests of its own drawing; `tests/data` has recipes and reference.",
        "Medians and means must come within 30 %, tails (p95, p99, longest) and counts within a factor of 2, shares within 0.1,",
        "bounds as stated, and every variant must move a figure the way the reference moved. *Other draws*: lowest and highest",
        f"of {draws} more seeds.", "", _summary(lines), "",
    ]  # fmt: skip
    for case in dict.fromkeys(line.case for line in lines):
        page += [f"## {case}", "", *_table(line for line in lines if line.case == case), ""]
    page += ["## Where ours differs", ""]
    reasons, known = differences()
    for name, text in reasons.items():
        of = [line for line in lines if not line.passed and known.get(line.key) == name]
        if of:
            where = "; ".join(f"{line.case} {line.variant}: {line.figure}" for line in of)
            page += [f"* **{name}**: {text} ({where})"]
    return "\n".join(page).rstrip() + "\n"


def main(argv: list[str] | None = None) -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.case_references", description="The diagnosis cases against their reference run."
    )
    parser.add_argument("--case", action="append", choices=buildable(), help="this case only; may be given several times")
    parser.add_argument("--draws", type=int, default=0, help="so many more seeds of every recipe")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--markdown", action="store_true", help="the page in docs/studies")
    given = parser.parse_args(sys.argv[1:] if argv is None else argv)
    lines: list[Line] = []
    for case in given.case or buildable():
        lines += compared(case, given.draws)
        if not given.json and not given.markdown:
            print(f"{case}\n" + "\n".join(_table(line for line in lines if line.case == case)) + "\n", flush=True)
    if given.json:
        print(json.dumps(document(lines, given.draws)))
    else:
        print(markdown(lines, given.draws) if given.markdown else _summary(lines), end="" if given.markdown else "\n")
    left = unexplained(lines)
    for line in left:
        print(f"{line.case} {line.variant} {line.figure}: {line.reference} expected, {line.ours:.4g} here", file=sys.stderr)
    raise SystemExit(1 if left else 0)


if __name__ == "__main__":
    main()
