"""What ``tracekit calibrate`` prints for a person."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.cli.output import print_table, print_text

if TYPE_CHECKING:
    from tracekit.calibration import CalibrationReport, SourceReport
    from tracekit.calibration.sources import Written

__all__ = ["TERMS", "render_found"]

TERMS = {
    "floor_ns": "an iteration, at least", "a_ns": "an iteration with prefill, before its tokens", "b_ns": "a prefill token",
    "c_ns": "a prefill token x context token", "d_ns": "a decoding sequence", "e_ns": "a KV token read by decodes",
    "h0_ns": "host, an iteration", "h1_ns": "host, a running sequence", "h2_ns": "host, a join or leave of the decodes",
    "p_ns": "a row that pads decodes to a captured graph", "s_ns": "a token that the longest decoding context is above the mean",
}  # fmt: skip


def render_found(report: Written, out: Path | None) -> None:
    """The coefficients, what they imply, what is known of their error, and where the profile went."""
    from tracekit.calibration import CalibrationReport, SourceReport

    if isinstance(report, CalibrationReport):
        _render_fit(report)
    elif isinstance(report, SourceReport):
        _render_source(report)
    if out is not None:
        print_text(f"written: {out}; tracekit replay TRACE --engine sim --profile {out}")


def _render_source(report: SourceReport) -> None:
    profile, latency = report.profile, report.profile.latency.costs()
    print_text(profile.describe())
    rows = [(key, what, latency[key], profile.provenance.get(key, "")) for key, what in TERMS.items() if key in latency]
    print_table(("coefficient", "cost of", "ns", "source"), rows)
    print_text("")
    for table in report.tables:
        if table.title:
            print_text(table.title)
        print_table(table.head, table.rows)
        print_text("")
    for line in report.lines:
        print_text(line)


def _render_fit(report: CalibrationReport) -> None:
    from tracekit.calibration.sources import NO_CARD

    print_text(report.profile.describe())
    latency, found, sources = report.profile.latency.costs(), report.found, report.profile.provenance
    modes = {mode: each.costs() for mode, each in found.by_mode.items()} if len(found.by_mode) > 1 else {}
    if report.batches:
        batches = [(name, ns / 1e6, round(100 * spread, 1), mode) for name, ns, spread, mode in report.batches]
        print_table(("batch", "ms", "spread %", "mode"), batches)
        print_text("")
    rows = [
        (key, what, latency[key], *(each.get(key) if key[0] != "h" else None for each in modes.values()), sources.get(key, ""))
        for key, what in TERMS.items() if key in latency
    ]
    print_table(("coefficient", "cost of", "ns", *(f"ns, {mode} alone" for mode in modes), "source"), rows)
    print_text("")
    for note in report.notes:
        print_text(note)
    for what, value in report.implied():
        print_text(f"implied by {what}: {value}")
    if found.factor is not None:
        print_text(f"within a replay an iteration takes {found.factor:.3f} times as long as the same batch over and over")
    print_text(f"median error on the {found.iterations} fitted iterations: {found.error:.1%}")
    if found.held is None:
        print_text("held-out error: unknown, too few shapes")
    else:
        held = found.held
        print_text(f"held-out shapes ({len(held.shapes)}, fitted without them): median {held.median:.1%}, P90 {held.p90:.1%}")
        print_table(
            ("held-out shape", "measured ms", "predicted ms", "error %"),
            [(s.shape, s.measured_ns / 1e6, s.predicted_ns / 1e6, round(100 * s.error, 2) + 0.0) for s in held.shapes],
        )
    spans = ", ".join(f"{name} {low:,.0f} to {high:,.0f}" for name, (low, high) in found.ranges.items())
    print_text(f"measured range, beyond which it extrapolates: {spans}")
    if report.profile.synthetic and NO_CARD not in report.notes:
        print_text('physics = "off": no peak numbers of this hardware are known to hold the coefficients against')
