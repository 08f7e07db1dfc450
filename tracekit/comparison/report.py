"""A comparison as one JSON document, and as the text that a person reads: the verdict, who won and lost, the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracekit.comparison.contest import contest_of
from tracekit.comparison.figures import Compared, compare_figures
from tracekit.comparison.pairing import Pair
from tracekit.errors import shown
from tracekit.experiments.conclusion import interval_text
from tracekit.experiments.knobs import knob_text
from tracekit.experiments.measures import MEASURES, leading
from tracekit.experiments.report import aligned
from tracekit.experiments.verdicts import CLEAR
from tracekit.metrics.wording import span_text

__all__ = ["SCHEMA", "build_comparison", "render_comparison"]

SCHEMA = "tracekit.comparison/1"
NOTE = "each interval is 95 % on its own, over blocks of consecutive arrivals, since requests of one run are not independent"


def build_comparison(pair: Pair) -> dict[str, Any]:
    """Everything about the pair as plain values. ``conclusive``: the measure that decides differs clearly, or not at all."""
    figures, blocks = compare_figures(pair)
    name = leading(pair.base.met is not None and pair.base.row["slo"] == pair.other.row["slo"])
    decides = next(each for each in figures if each.measure == name)
    runs = [{"run": side.number, "name": side.row["name"], "state": side.row["state"]} for side in (pair.base, pair.other)]
    return {
        "schema": SCHEMA,
        "runs": runs,
        "trace": pair.base.row["trace_name"],
        "requests": len(pair.request),
        "conclusive": decides.verdict in (*CLEAR, "same"),
        "leading": name,
        "verdict": f"{pair.other.label} against {pair.base.label}: {MEASURES[name].label} {_said(decides)}",
        "knobs": [{"knob": knob, "before": before, "after": after} for knob, before, after in pair.knobs],
        "blocks": blocks,
        "confidence": {"level": 0.95, "corrected": False, "comparisons": len(figures), "note": NOTE},
        "figures": [each.to_dict() for each in figures],
        "contest": contest_of(pair),
        "notes": pair.notes,
    }


def _said(found: Compared) -> str:
    if found.verdict == "cannot tell":
        return f"cannot tell ({found.interval.why})"
    return "the same" if found.verdict == "same" else f"{found.verdict}, {interval_text(found.interval, found.measure)}"


def render_comparison(pair: Pair, document: dict[str, Any]) -> str:
    """The text of a document that ``build_comparison`` made of ``pair``."""
    contest = document["contest"]
    lines = [document["verdict"], *(f"  {line}" for line in _who(contest))]
    lines.append(f"  knobs that differ: {_knobs(pair)}")
    lines += [f"  note: {note}" for note in document["notes"]]
    lines += ["", *_table(pair, document), ""]
    lines += _ends(contest)
    for name in ("class", "tenant"):
        if len(contest.get(f"by_{name}", ())) > 1:
            lines += _groups(name, contest[f"by_{name}"])
    lines += [*_requests("slowed down most", contest["losers"]), *_requests("sped up most", contest["winners"])]
    lines.append(f"{document['blocks']} blocks of about {len(pair.request) // max(document['blocks'], 1):,} requests; {NOTE}")
    return "\n".join(lines)


def _who(contest: dict[str, Any]) -> list[str]:
    lines = []
    for part, words in (("ttft", "to the first token"), ("e2e", "to the last")):
        row = contest["parts"][part]
        text = f"{row['faster']:,} faster {words}, {row['slower']:,} slower, {row['same']:,} the same (within 1 %)"
        only = [f"{row[key]:,} only {when}" for key, when in (("only_before", "before"), ("only_after", "after")) if row[key]]
        lines.append(", ".join([f"of {contest['requests']:,} requests {text}", *only]))
    if contest["slo"] is not None:
        slo = contest["slo"]
        lines.append(f"SLO: {slo['won']:,} requests meet it now that missed it before, {slo['lost']:,} miss it that met it")
    return lines


def _knobs(pair: Pair) -> str:
    return "; ".join(f"{name} {knob_text(before)} -> {knob_text(after)}" for name, before, after in pair.knobs) or "none"


def _table(pair: Pair, document: dict[str, Any]) -> list[str]:
    head = ["", *(shown(f"run {side.number}") for side in (pair.base, pair.other)), "change (95 %)", "verdict", "n"]
    rows, notes = [], []
    figures, _ = compare_figures(pair)
    for each in figures:
        measure, interval = MEASURES[each.measure], each.interval
        label = f"{measure.label}, in a block" if each.measure == "longest_gap" else measure.label
        verdict = each.verdict.upper() if each.verdict in CLEAR else each.verdict
        sides = [measure.text(value) for value in (interval.base, interval.level)]
        rows.append([label, *sides, interval_text(interval, each.measure), verdict, f"{each.requests:,}"])
        if interval.estimate is None:
            notes.append(f"  {label}: {interval.why}")
    return [*aligned([head, *rows]), *notes]


def _ends(contest: dict[str, Any]) -> list[str]:
    odd = [each for each in contest["ends"] if (each["before"], each["after"]) != ("finished", "finished")]
    if not odd:
        return []
    return ["ended otherwise (before -> after): "
            + ", ".join(f"{each['before']} -> {each['after']} {each['requests']:,}" for each in odd), ""]  # fmt: skip


def _groups(name: str, groups: Sequence[dict[str, Any]]) -> list[str]:
    head = [
        f"by {name}",
        "n",
        "TTFT faster",
        "slower",
        "median change",
        "E2E faster",
        "slower",
        "median change",
        "SLO won",
        "lost",
    ]
    rows = []
    for group in groups:
        ttft, e2e, slo = group["parts"]["ttft"], group["parts"]["e2e"], group["slo"]
        rows.append([
            shown(group["name"] or f"(no {name})"), f"{group['requests']:,}", *_counts(ttft), *_counts(e2e),
            *(["-", "-"] if slo is None else [f"{slo['won']:,}", f"{slo['lost']:,}"]),
        ])  # fmt: skip
    return [*aligned([head, *rows], right=range(1, len(head))), ""]


def _counts(part: dict[str, Any]) -> list[str]:
    return [f"{part['faster']:,}", f"{part['slower']:,}", _change(part["median_change_ns"])]


def _change(ns: float | None) -> str:
    return "-" if ns is None else f"{'-' if ns < 0 else '+'}{span_text(abs(ns))}"


def _requests(title: str, rows: Sequence[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    labels = [name for name in ("class", "tenant") if name in rows[0]]
    head = [title, *labels, "TTFT before", "after", "E2E before", "after", "change"]
    cells = []
    for row in rows:
        times = [text for part in ("ttft_ns", "e2e_ns") for text in map(_time, row[part])]
        before, after = row["e2e_ns"]
        cells.append(
            [f"request {row['request']}", *(shown(row[name] or "-") for name in labels), *times, _change(after - before)]
        )
    return [*aligned([head, *cells], right=range(1 + len(labels), len(head))), ""]


def _time(ns: float | None) -> str:
    return "-" if ns is None else span_text(ns)
