"""What ``tracekit calibrate --check`` prints for a person: the verdict first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.cli.output import print_table, print_text

if TYPE_CHECKING:
    from tracekit.trust import TrustReport

__all__ = ["render_trust"]

NAMES = {"queue": "queue", "ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}
LOADS = {
    "in_system": "requests in the system",
    "running": "requests running",
    "waiting": "requests waiting",
    "kv_tokens": "KV tokens",
}


POINTS = ("mean", "p50", "p90", "p99")
SHORT_NS = 1e6
"""A queue below it is none: its error as a share says nothing."""


def render_trust(report: TrustReport) -> None:
    """Verdict, errors by part, makespan and load over time, configurations, regime, extrapolation, notes."""
    print_text(f"verdict: {report.verdict.words}")
    print_text(f"profile {report.profile.name} on {report.trace}, {report.requests:,} requests\n")
    for name, part in report.parts.items():
        if len(report.parts) > 1:
            print_text(f"{name}:")
        _latencies(part)
        print_text("")
    predicted, observed = report.makespan_s
    if predicted is not None and observed:
        print_text(f"makespan: {predicted:,.1f} s predicted, {observed:,.1f} s observed ({predicted / observed - 1:+.1%})")
    if report.over_time is not None:
        _over_time(report.over_time)
    if report.ranked:
        _ranking(report)
    print_text(report.regime)
    if report.drift is not None:
        print_text(report.drift.words)
    _extrapolation(report)
    for note in report.notes:
        print_text(note)


def _latencies(part: dict[str, dict[str, Any] | None]) -> None:
    head = ("latency", "n", "mean ms", "observed", "error %", "P50 %", "P90 %", "P99 %", "per request, median %", "P90 %")
    rows = []
    for name, each in part.items():
        if each is None:
            continue
        error, apart = each["error"], each["per_request"]
        shown = [point for point in POINTS if name != "queue" or each["observed_ns"][point] >= SHORT_NS]
        shares = [_percent(error[point]) if point in shown else None for point in POINTS]
        means = (each["predicted_ns"]["mean"] / 1e6, each["observed_ns"]["mean"] / 1e6)
        # a queue of microseconds beside one of milliseconds is no error of so many thousand per cent
        single = (None, None) if name == "queue" else (_percent(apart["median"]), _percent(apart["p90"]))
        rows.append((NAMES[name], each["n"], *means, *shares, *single))
    print_table(head, rows, empty="no request has an observed latency")


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 2)


def _over_time(found: dict[str, Any]) -> None:
    rows = [
        (words, each["predicted_max"], each["observed_max"], _percent(each["mean_error"]))
        for key, words in LOADS.items() if (each := found.get(key)) is not None
    ]  # fmt: skip
    print_table(("over time", "most, predicted", "most, observed", "mean error %"), rows)
    print_text("")


def _ranking(report: TrustReport) -> None:
    rows = [(name, each.configs, round(each.tau, 3), round(100 * each.regret, 2)) for name, each in report.ranked.items()]
    print_table(("configurations by", "n", "Kendall tau", "regret of the predicted best %"), rows)
    print_text("")


def _extrapolation(report: TrustReport) -> None:
    outside = [each for each in report.extrapolated if each["time_outside"] > 0]
    for each in outside:
        (low, high), (least, most) = each["fitted"], each["reached"]
        share = f"{each['time_outside']:.0%}" if each["time_outside"] >= 0.005 else "less than 1%"
        print_text(
            f"extrapolates {share} of the time: {each['what']} {least:,.0f} to {most:,.0f}, fitted {low:,.0f}"
            f" to {high:,.0f}"
        )
    if not report.extrapolated:
        print_text("extrapolation: unknown, the profile states no fitted range")
    elif not outside:
        print_text("extrapolation: none, every iteration lies within the fitted range")
