"""What an observed trace tells, as text and as one JSON document (schema ``tracekit.observed/1``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tracekit import __version__
from tracekit.diagnosis.finding import Finding
from tracekit.diagnosis.text import expected_lines, finding_lines
from tracekit.diagnosis.verdict import evidence_document, expected_document, finding_document, plain, where_document
from tracekit.diagnosis.wording import headline, title
from tracekit.metrics.wording import share, span_text

if TYPE_CHECKING:
    from tracekit.diagnosis.observed_run import ObservedReport

__all__ = ["SCHEMA", "observed_document", "observed_headline", "render_observed"]

SCHEMA = "tracekit.observed/1"
_NEVER = " cannot be told: "
_WORDS = {"in_flight": "in flight", "running": "running while somebody waits", "tokens": "KV tokens held while somebody waits"}


def observed_headline(report: ObservedReport) -> str:
    """The verdict in one sentence: a cause, that it is not scheduling, that nothing is wrong, or why it cannot be told."""
    found = report.diagnosis
    effects = () if report.beside is None or report.beside.why_not else report.beside.expected.unnamed
    if found.findings:
        besides = [each for each in found.remarks if "is not explained by scheduling" in each]
        return headline(found) + (f"; besides, {besides[0]}" if besides else "")
    outside = next((each for each in found.remarks if "is not explained by scheduling" in each), None)
    if outside is not None:
        place = f": {effects[0].what}" if effects else ", and stands out nowhere"
        return f"what was observed is not explained by scheduling ({outside}){place}"
    said = next((each for each in found.remarks if _NEVER not in each), None)
    return said or headline(found)


def render_observed(report: ObservedReport) -> str:
    """The whole of it as text."""
    found, seen = report.diagnosis, report.seen
    has = ", ".join({"queue": "queue times", "ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}[each] for each in seen.has)
    lines = [observed_headline(report), ""]
    lines.append(f"{report.requests:,} requests as observed ({has}; clock: {report.clock or 'not said'})")
    if report.slo is not None:
        lines.append(f"SLO missed by {report.missed:,} of {report.judged:,}")
    sums = seen.attribution.sums()
    total = max(sum(sums.values()), 1)
    lines += ["where the time went, as far as the columns tell:"]
    lines += [f"   {part.replace('_', ' '):18} {span_text(ns):>9}   {share(ns / total)}" for part, ns in sums.items()]
    lines += [f"   {_WORDS[each.what]}: {each.value:,.0f} in {share(each.share)} of that time" for each in seen.plateaus()]
    if report.beside is not None:
        lines += ["", report.beside.words]
        lines += [] if report.beside.why_not else list(expected_lines(report.beside.expected))
    for number, finding in enumerate(found.findings, 1):
        mine = report.data if finding.changes or finding.proofs else None
        mark = f"{number}." if finding.under is None else "   a consequence of it:"
        lines += ["", *finding_lines(mine, finding, mark, bool(finding.proofs))]
        if mine is None and finding.under is None:
            lines.append("   change     none is proposed without a replay: --profile FILE, calibrated for this engine, makes one")
    lines += ["", *(f"remark: {each}" for each in (*found.remarks, *report.notes) if _NEVER not in each)]
    return "\n".join([*lines, *_untold(report)])


def _untold(report: ObservedReport) -> Iterator[str]:
    """Findings that cannot be made of this trace, by reason."""
    if report.beside is not None and report.beside.shows:
        yield "the replay shows what was observed, so that every finding could be made"
        return
    by: dict[str, list[str]] = {}
    for name, why in report.seen.disabled.items():
        by.setdefault(why, []).append(name)
    if by:
        yield "what cannot be told from this trace alone:"
    for why, names in by.items():
        yield f"   {why}: {', '.join(names)}"


def observed_document(report: ObservedReport) -> dict[str, Any]:
    """The same as plain values; same inputs, same bytes."""
    found, seen, beside = report.diagnosis, report.seen, report.beside
    sums = seen.attribution.sums()
    document: dict[str, Any] = {
        "schema": SCHEMA, "verdict": observed_headline(report), "tool": {"tracekit": __version__},
        "trace": {"name": report.trace, "requests": report.requests, "clock": report.clock, "has": list(seen.has)},
        "settings": {knob: getattr(report.known.policy.scheduler, knob, None) for knob in sorted(report.known.given)},
        "slo": None if report.slo is None else {**report.slo.to_dict(), "missed": report.missed, "judged": report.judged},
        "attribution": [{"part": part, "seconds": ns / 1e9} for part, ns in sums.items()],
        "levels": [asdict(each) for each in seen.plateaus()],
        "basis": found.basis, "excess_s": found.excess_ns / 1e9, "unexplained_s": found.unexplained_ns / 1e9,
        "findings": [_finding(report, each) for each in found.findings],
        "cannot_be_told": {} if beside is not None and beside.shows else dict(seen.disabled),
        "replay": None if beside is None else {
            "profile": None if report.profile is None else report.profile.name, "shows": beside.shows, "pace": beside.pace,
            "over": beside.over, "under": beside.under, "mean_errors": beside.errors,
            "tells_nothing_because": beside.why_not or None, "expected": expected_document(beside.expected),
        },
        "remarks": [each for each in found.remarks if _NEVER not in each], "notes": list(report.notes),
    }  # fmt: skip
    rounded: dict[str, Any] = plain(document)
    return rounded


def _finding(report: ObservedReport, finding: Finding) -> dict[str, Any]:
    if report.data is not None and finding.changes:
        return finding_document(report.data, finding, bool(finding.proofs))
    return {
        "id": finding.id, "name": title(finding.id), "under": finding.under, "what": finding.what,
        "confidence": finding.confidence, "because": finding.because, "excess_s": finding.excess_ns / 1e9,
        "share_of_excess": finding.share, "evidence": [evidence_document(each) for each in finding.evidence],
        "where": where_document(finding.where), "culprits": list(finding.culprits), "recommend": [],
    }  # fmt: skip
