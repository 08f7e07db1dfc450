"""Arrivals in numbers, or why a number would mean nothing."""

from __future__ import annotations

from typing import Any

from tracekit.traces.tally import SECOND, Tally

__all__ = ["arrival_numbers", "refused_rate"]

YEAR_NS = 365 * 86_400 * SECOND
LONGEST_NS = 2 * YEAR_NS
SHORTEST_NS = SECOND
HOLE = 10
"""A gap so many times as long as the 99th percentile of the gaps is a hole (and at least a second long)."""
HOLES_SHOWN = 5


def refused_rate(tally: Tally, kind: str | None) -> str | None:
    """Why requests per second cannot be told of these arrivals, ``None`` where they can. ``kind``: the trace's arrival kind."""
    if not _on_one_axis(tally, kind):
        return _no_axis(tally, kind)
    if kind == "closed_loop":
        return "the log is of a closed loop: requests came when others had ended, not when users sent them"
    if tally.span_ns < SHORTEST_NS:
        return f"all {tally.n:,} requests arrive within {tally.span_ns / 1e6:,.0f} ms: one batch of a benchmark, not traffic"
    return None


def _on_one_axis(tally: Tally, kind: str | None) -> bool:
    return tally.n > 1 and kind != "session_relative" and 0 < tally.span_ns <= LONGEST_NS


def _no_axis(tally: Tally, kind: str | None) -> str:
    if tally.n < 2:
        return f"{tally.n} request{'s' if tally.n != 1 else ''}: a rate needs at least two"
    if kind == "session_relative":
        return "times are relative to each session's start: there is no arrival axis that all share"
    if tally.span_ns == 0:
        return f"all {tally.n:,} requests arrive at one instant"
    empty = tally.largest_gaps[0].length_ns / YEAR_NS
    return (f"the arrivals span {tally.span_ns / YEAR_NS:.1f} years, {empty:.1f} of them without a request: some of the times"
            " are wrong")  # fmt: skip


def arrival_numbers(tally: Tally, kind: str | None) -> dict[str, Any]:
    """Span, rate, peaks, clustering and holes; ``None`` where a number would mean nothing, ``rate_refused`` says why."""
    refused = refused_rate(tally, kind)
    sure, there = refused is None, _on_one_axis(tally, kind)
    return {
        "span_s": tally.span_ns / SECOND,
        "rate_per_s": tally.n / (tally.span_ns / SECOND) if sure else None,
        "rate_refused": refused,
        "peak_1s": tally.peak(1) if there else None,
        "peak_10s": tally.peak(10) if there else None,
        "cv": tally.gap_cv() if there else None,
        "dispersion_1s": tally.dispersion_1s() if there and tally.span_ns >= SHORTEST_NS else None,
        "equal_neighbours": tally.equal,
        "longest_gap_s": tally.largest_gaps[0].length_ns / SECOND if there else None,
        "gap_p99_s": tally.gap_percentile_ns(99) / SECOND if there else None,
        "holes": _holes(tally) if sure else [],
    }


def _holes(tally: Tally) -> list[dict[str, float]]:
    least = max(HOLE * tally.gap_percentile_ns(99), SECOND)
    found = [gap for gap in tally.largest_gaps if gap.length_ns > least]
    return [{"at_s": gap.at_ns / SECOND, "length_s": gap.length_ns / SECOND} for gap in found[:HOLES_SHOWN]]
