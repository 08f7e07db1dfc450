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


OBJECTIVES = {
    "ttft_mean": "mean TTFT", "ttft_p99": "P99 of TTFT", "tpot_mean": "mean TPOT", "e2e_mean": "mean E2E",
    "e2e_p99": "P99 of E2E", "makespan": "makespan",
}  # fmt: skip
_SIZE = dict.fromkeys(OBJECTIVES, 1e6) | {"makespan": 1.0}
POINTS = ("mean", "p50", "p90", "p99")


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
    from tracekit.calibration.observed.errors import SHORT_NS

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
    # a 0 has no sign: what is a millionth of a per cent too little does not read as a loss
    return None if share is None else round(100 * share, 2) + 0.0


def _over_time(found: dict[str, Any]) -> None:
    rows = [
        (words, each["predicted_max"], each["observed_max"], _percent(each["mean_error"]))
        for key, words in LOADS.items() if (each := found.get(key)) is not None
    ]  # fmt: skip
    print_table(("over time", "most, predicted", "most, observed", "mean error %"), rows)
    print_text("")


def _ranking(report: TrustReport) -> None:
    rows = [
        (OBJECTIVES[name], each.configs, round(each.tau, 3), round(100 * each.regret, 2), _best(report, name, 0),
         _best(report, name, 1))
        for name, each in report.ranked.items()
    ]  # fmt: skip
    head = ("configurations by", "n", "Kendall tau", "regret of the predicted best %", "predicted best", "observed best")
    print_table(head, rows)
    print_text("")
    name = "e2e_mean" if "e2e_mean" in report.ranked else next(iter(report.ranked))
    figures: list[tuple[Any, ...]] = [
        (each["name"], *(value / _SIZE[name] for value in each["objectives"][name])) for each in report.configs
    ]
    figures.sort(key=_observed)
    unit = "s" if name == "makespan" else "ms"
    told = [(what, ours, theirs, _percent(ours / theirs - 1) if theirs else None) for what, ours, theirs in figures]
    print_table(("configuration", f"{OBJECTIVES[name]} {unit}, predicted", "observed", "error %"), told)
    print_text("")


def _observed(row: tuple[Any, ...]) -> float:
    return float(row[2])


def _best(report: TrustReport, name: str, side: int) -> str:
    """The configurations with the least figure: predicted (0) or observed (1)."""
    least = min(each["objectives"][name][side] for each in report.configs)
    return ", ".join(str(each["name"]) for each in report.configs if each["objectives"][name][side] == least)


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
