"""An experiment's report: one JSON document, and the text that a person reads, the verdict first."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tracekit.errors import shown
from tracekit.experiments.conclusion import change_text, conclusive, holds_lines, leading_measure, verdict_line
from tracekit.experiments.measures import MEASURES
from tracekit.experiments.plan import Cell, Plan
from tracekit.experiments.verdicts import CLEAR, Across, Change, across_traces, changes_of

__all__ = ["SCHEMA", "aligned", "build_document", "render_report", "verdicts_of"]

SCHEMA = "tracekit.experiment/1"
CONFIDENCE_NOTE = (
    "each interval is 95 % on its own, not corrected for their number: where nothing differs, about one in twenty looks as if"
    " it did"
)


def verdicts_of(plan: Plan, results: Mapping[Cell, Mapping[str, Any]]) -> tuple[list[Change], list[Across]]:
    """All changes, and what holds across the traces."""
    changes = changes_of(plan, results)
    return changes, across_traces(plan, changes)


def build_document(plan: Plan, results: Mapping[Cell, Mapping[str, Any]], number: int) -> dict[str, Any]:
    """The whole experiment as plain values: ``changes`` against the first level, ``across`` traces, every replay's figures."""
    changes, across = verdicts_of(plan, results)
    return {
        "schema": SCHEMA,
        "experiment": number,
        "key": plan.key(),
        "factor": plan.factor,
        "levels": [level.text for level in plan.levels],
        "pinned": list(plan.pinned),
        "conclusive": conclusive(plan, changes),
        "leading": leading_measure(plan),
        "conclusion": [verdict_line(plan, level, changes, across) for level in range(1, len(plan.levels))],
        "confidence": {"level": 0.95, "corrected": False, "comparisons": len(changes), "note": CONFIDENCE_NOTE},
        "traces": [
            {"name": trace.name, "digest": trace.digest, "traffic": trace.facts, "lead_in_ns": trace.lead_in_ns,
             "windows": [{"begin_ns": begin, "end_ns": end, "requests": n}
                         for (begin, end), n in zip(trace.windows, trace.requests, strict=True)]}
            for trace in plan.traces
        ],
        "measures": [measure.to_dict() for measure in MEASURES.values()],
        "changes": [change.to_dict() for change in changes],
        "across": [each.to_dict() for each in across],
        "replays": [{**cell._asdict(), **results[cell]} for cell in plan.cells()],
        "notes": list(plan.notes),
    }  # fmt: skip


def render_report(plan: Plan, results: Mapping[Cell, Mapping[str, Any]]) -> str:
    """The verdict, where it holds, then a table per trace and level."""
    changes, across = verdicts_of(plan, results)
    lines: list[str] = []
    for level in range(1, len(plan.levels)):
        lines.append(verdict_line(plan, level, changes, across))
        lines += [f"  {line}" for line in holds_lines(plan, level, across)]
    for at, trace in enumerate(plan.traces):
        lines += ["", f"{shown(trace.name)}: {trace.lines[0]}", *(f"  {line}" for line in trace.lines[1:])]
        for level in range(1, len(plan.levels)):
            own = [change for change in changes if change.trace == at and change.level == level]
            lines += ["", *_table(plan, level, own)]
        lines += _oddities(plan, results, at)
    lines += ["", *(f"pinned: {each}" for each in plan.pinned), f"{len(changes)} comparisons: {CONFIDENCE_NOTE}"]
    return "\n".join(lines)


def _table(plan: Plan, level: int, changes: Sequence[Change]) -> list[str]:
    head = ["", shown(plan.levels[0].text), shown(plan.levels[level].text), "change (95 %)", "verdict", "n"]
    rows: list[list[str]] = []
    notes = []
    for change in changes:
        measure, interval = MEASURES[change.measure], change.interval
        verdict = change.verdict.upper() if change.verdict in CLEAR else change.verdict
        sides = [measure.text(interval.base), measure.text(interval.level)]
        rows.append([measure.label, *sides, change_text(change), verdict, str(interval.n)])
        if change.left_out:
            notes.append(f"  {measure.label}: {change.left_out} windows left out ({change.why})")
    return [*aligned([head, *rows]), *notes]


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = (1, 2, 5)) -> list[str]:
    """Lines of text in columns; those whose places are in ``right`` are right-aligned."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = [[cell.rjust(w) if at in right else cell.ljust(w) for at, (cell, w) in enumerate(zip(row, widths, strict=True))]
             for row in rows]  # fmt: skip
    return ["  ".join(line).rstrip() for line in lines]


def _oddities(plan: Plan, results: Mapping[Cell, Mapping[str, Any]], trace: int) -> list[str]:
    """Replays that did not end as they should."""
    odd = [(cell, result["state"]) for cell, result in results.items() if cell.trace == trace and result["state"] != "finished"]
    return [f"  window {cell.window + 1} at {shown(plan.levels[cell.level].text)}: {state.replace('_', ' ')}; whoever had not"
            " ended counts as missed" for cell, state in odd]  # fmt: skip
