"""The figures that a gate can name, where each stands in the acceptance matrix, and how its change is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tracekit.metrics.fields import is_missing
from tracekit.metrics.wording import count, share, span_text
from tracekit.sidebyside import figure_at

__all__ = ["METRICS", "Figure", "Figures", "GateMetric", "figures_of"]

BEYOND = 3
"""Values beyond a percentile at least: with fewer it is the largest value by another name. How noisy it is, the draws say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateMetric:
    """``path``: section and field of the matrix. ``kind``: ``ns``, ``share``, ``count`` or ``rate``. ``counts``: how much was
    measured, so that a change in either direction is one. ``percent``: of a percentile."""

    name: str
    path: str
    kind: str
    counts: bool = False
    percent: float | None = None

    def text(self, value: float | None) -> str:
        """A value as a person reads it."""
        if value is None:
            return "-"
        return {"ns": span_text, "share": share}.get(self.kind, count)(value)

    @property
    def least_n(self) -> int:
        """Requests below which the figure says nothing."""
        return 1 if self.percent is None else round(BEYOND / (1 - self.percent / 100))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A metric's value in one replay (ns, share, count, per second), over ``n`` requests; ``None`` with the reason why."""

    value: float | None
    n: int | None = None
    reason: str | None = None


Figures = dict[str, Figure]


def _latencies() -> list[GateMetric]:
    points = {"mean": None, "p50": 50.0, "p95": 95.0, "p99": 99.0, "max": None}
    return [
        GateMetric(name=f"{name}_{point}", path=f"latency.{name}_ns.{point}", kind="ns", percent=percent)
        for name in ("ttft", "tpot", "itl", "e2e", "queue", "longest_gap")
        for point, percent in points.items()
    ]


METRICS: dict[str, GateMetric] = {
    metric.name: metric
    for metric in (
        GateMetric(name="requests", path="counted.requests", kind="count", counts=True),
        GateMetric(name="finished", path="ends.finished", kind="count", counts=True),
        GateMetric(name="tokens", path="", kind="count", counts=True),
        *_latencies(),
        GateMetric(name="stalled", path="latency.stalled_ns.total", kind="ns"),
        GateMetric(name="attainment", path="slo.attainment.share", kind="share"),
        GateMetric(name="goodput", path="slo.goodput_requests_per_s", kind="rate"),
        GateMetric(name="goodput_tokens", path="slo.goodput_tokens_per_s", kind="rate"),
        GateMetric(name="throughput", path="throughput.run_output_tokens_per_s", kind="rate"),
        GateMetric(name="request_throughput", path="throughput.run_requests_per_s", kind="rate"),
        *(GateMetric(name=name, path=f"ends.{name}", kind="count") for name in ("rejected", "timed_out", "cancelled", "failed")),
        GateMetric(name="preemptions", path="preemption.preemptions", kind="count"),
        GateMetric(name="recomputed_tokens", path="preemption.recomputed_tokens", kind="count"),
        GateMetric(name="kv_high_water", path="kv.high_water_share", kind="share"),
    )
}
"""By name. ``tokens``: output tokens of counted requests that finished; ``requests``: all that were counted."""


def figures_of(matrix: Mapping[str, Any], tokens: int) -> Figures:
    """Every metric of one replay; ``tokens``: output tokens of the counted requests that finished."""
    found: Figures = {}
    for name, metric in METRICS.items():
        if name == "tokens":
            found[name] = Figure(value=float(tokens))
            continue
        value, reason = figure_at(matrix, metric.path)
        n = _n(matrix, metric.path)
        found[name] = Figure(value=None if reason else float(value), n=n, reason=reason)
    return found


def _n(matrix: Mapping[str, Any], path: str) -> int | None:
    """How many requests (of ITL: gaps) a figure is taken over, where that is not all."""
    section, field, *_ = path.split(".")
    row = matrix[section][field]
    return int(row["n"]) if isinstance(row, Mapping) and not is_missing(row) and "n" in row else None
