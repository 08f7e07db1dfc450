"""A gate's document, and its table as text, as Markdown for a pull request, and as JUnit XML for a build server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from tracekit import __version__
from tracekit.errors import shown
from tracekit.experiments.report import aligned
from tracekit.gate.metrics import METRICS, GateMetric
from tracekit.metrics.wording import span_text

__all__ = ["SCHEMA", "cells_of", "headline_of", "junit_xml", "markdown_of", "text_of"]

SCHEMA = "tracekit.gate/1"
_MARKS = {"passed": "✅", "failed": "❌", "inconclusive": "❔", "error": "❌"}
_HEAD = ["", "gate", "here", "baseline", "change or range (95 %)", "why"]


def text_of(document: Mapping[str, Any]) -> str:
    """The table, the verdict above it, and what it rests on below."""
    lines = [headline_of(document)]
    rows = [[row["status"], *cells_of(row), row["why"]] for row in document["gates"]]
    if rows:
        lines += ["", *aligned([_HEAD, *rows], right=(2, 3))]
        lines += [line for row in document["gates"] for line in _twice(row)]
    lines += ["", *(f"  {line}" for line in _rests(document))]
    return "\n".join(lines)


def headline_of(document: Mapping[str, Any]) -> str:
    """The verdict in a line."""
    if document["verdict"] == "error":
        return f"gate: error ({document['error']})"
    counts = document["counts"]
    said = ", ".join(f"{counts[name]} {name}" for name in ("failed", "inconclusive", "passed") if counts[name]) or "no gate given"
    return f"gate: {document['verdict']} ({said})"


def cells_of(row: Mapping[str, Any]) -> list[str]:
    """A gate, its figure here and in the baseline, and the change or range."""
    text = row["gate"] + (" (implied)" if row["implied"] else "")
    if row["kind"] == "finding":
        return [text, f"{row['value']:.0%}", "-", "-"]
    metric = METRICS[row["metric"]]
    return [text, metric.text(row["value"]), metric.text(row["base"]), _range(row, metric)]


def _range(row: Mapping[str, Any], metric: GateMetric) -> str:
    low, high = row["low"], row["high"]
    if row["scale"] == "value":
        return "-" if low is None else f"{metric.text(low)} to {metric.text(high)}"
    if row["change"] is None:
        return "-"
    ends = "" if low is None else f" ({_change(low, row['scale'], metric)} to {_change(high, row['scale'], metric)})"
    return _change(row["change"], row["scale"], metric) + ends


def _change(value: float, scale: str, metric: GateMetric) -> str:
    if scale == "ratio":
        return f"{100 * value:+.1f} %"
    if metric.kind == "ns":
        return f"{'-' if value < 0 else '+'}{span_text(abs(value))}"
    return f"{100 * value:+.2f} pt" if metric.kind == "share" else f"{value:+,.6g}"


def _twice(row: Mapping[str, Any]) -> list[str]:
    if row["again"] is None:
        return []
    metric = METRICS[row["metric"]]
    said = [f"{name} {row[key]['status']}, {_range(row[key], metric)}"
            for name, key in (("first seeds", "first"), ("others", "again"))]  # fmt: skip
    return [f"  {row['gate']} was judged twice: {'; '.join(said)}; all {row['draws']} draws together {row['status']}"]


def _rests(document: Mapping[str, Any]) -> list[str]:
    lines = list(document["notes"])
    like = [f"{METRICS[row['metric']].name} {' to '.join(METRICS[row['metric']].text(end) for end in row['like'])}"
            for row in document["gates"] if row.get("like")]  # fmt: skip
    if like:
        lines.append(f"traffic drawn from this one has {', '.join(like)}")
    if document["diagnosis"]:
        lines.append(document["diagnosis"])
    return lines


def markdown_of(document: Mapping[str, Any]) -> str:
    """For a job's summary: the same table, whatever the verdict is."""
    lines = [f"### {_MARKS[document['verdict']]} {_escaped(headline_of(document))}", ""]
    if document["gates"]:
        lines += ["| " + " | ".join(_HEAD) + " |", "|---|---|---:|---:|---|---|"]
        for row in document["gates"]:
            lines.append("| " + " | ".join([_MARKS[row["status"]], *map(_escaped, (*cells_of(row), row["why"]))]) + " |")
        lines.append("")
        lines += [f"* {_escaped(line.strip())}" for row in document["gates"] for line in _twice(row)]
    return "\n".join([*lines, *(f"* {_escaped(line)}" for line in _rests(document))]) + "\n"


def _escaped(text: str) -> str:
    return shown(text, 1000).replace("|", "\\|").replace("<", "&lt;").replace("`", "'")


def junit_xml(document: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> str:
    """One test per gate and one per finding: a gate that is not passed is a failure, a finding that no gate forbids is none."""
    suite = ElementTree.Element("testsuite", name="tracekit gate", package=f"tracekit {__version__}")
    failures = errors = 0
    for row in document["gates"]:
        case = ElementTree.SubElement(suite, "testcase", classname="gate", name=row["gate"])
        if row["status"] != "passed":
            failures += 1
            found = ElementTree.SubElement(case, "failure", message=shown(row["why"], 400), type=row["status"])
            found.text = "  ".join(cells_of(row))
    for each in findings:
        case = ElementTree.SubElement(suite, "testcase", classname="finding", name=each["id"])
        ElementTree.SubElement(case, "system-out").text = shown(each["what"], 1000)
    if document["verdict"] == "error":
        errors = 1
        case = ElementTree.SubElement(suite, "testcase", classname="gate", name="the replay")
        ElementTree.SubElement(case, "error", message=shown(document["error"], 1000))
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(failures))
    suite.set("errors", str(errors))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"
