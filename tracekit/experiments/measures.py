"""The figures an experiment compares: what each is, which direction is better, and how its change is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tracekit.experiments.intervals import Scale
from tracekit.metrics.wording import count, share, span_text
from tracekit.sidebyside import Kind, figure_at

__all__ = ["MEASURES", "Figures", "Measure", "figures_of", "leading"]

Figures = dict[str, dict[str, Any]]
"""A replay's figures by measure: ``{"value": number}`` or ``{"value": None, "reason": why}``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One figure of the acceptance matrix. ``path``: where it stands there. ``better``: ``low``, ``high``, or empty."""

    name: str
    label: str
    path: str
    kind: Kind
    better: str
    scale: Scale

    def text(self, value: float | None) -> str:
        """A value as a person reads it."""
        if value is None:
            return "-"
        return {"ns": span_text, "share": share}.get(self.kind, count)(value)

    def change(self, estimate: float, scale: Scale, *, factor: bool = False) -> str:
        """A change as a person reads it: a signed difference, or percent of a ratio, or with ``factor`` a multiple."""
        if scale == "ratio":
            return f"x{count(1 + estimate)}" if factor else f"{_signed(100 * estimate)} %"
        if self.kind == "share":
            return f"{_signed(100 * estimate)} pt"
        size = span_text(abs(estimate)) if self.kind == "ns" else count(abs(estimate))
        return f"{'-' if estimate < 0 else '+'}{size}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def _signed(value: float) -> str:
    """One decimal, down to the third where that would read as nothing."""
    size = abs(value)
    return f"{value:+.1f}" if size >= 0.05 else f"{value:+.1g}" if size >= 0.001 else "+0.0"


def _latency(name: str, label: str) -> list[Measure]:
    return [
        Measure(name=f"{name}_{point}", label=f"{label} {point.upper()}", path=f"latency.{name}_ns.{point}", kind="ns",
                better="low", scale="ratio")
        for point in ("p50", "p95", "p99")
    ]  # fmt: skip


MEASURES: dict[str, Measure] = {
    measure.name: measure
    for measure in (
        Measure(name="goodput", label="SLO-goodput, requests/s", path="slo.goodput_requests_per_s", kind="rate", better="high",
                scale="ratio"),
        Measure(name="attainment", label="Attainment", path="slo.attainment.share", kind="share", better="high",
                scale="difference"),
        Measure(name="throughput", label="Output tok/s", path="throughput.run_output_tokens_per_s", kind="rate", better="high",
                scale="ratio"),
        *_latency("ttft", "TTFT"),
        *_latency("tpot", "TPOT"),
        Measure(name="longest_gap", label="Longest gap", path="latency.longest_gap_ns.max", kind="ns", better="low",
                scale="ratio"),
        Measure(name="kv_high_water", label="KV high-water", path="kv.high_water_share", kind="share", better="",
                scale="difference"),
        Measure(name="preemptions", label="Preemptions", path="preemption.preemptions", kind="count", better="low",
                scale="difference"),
        Measure(name="rejections", label="Rejections", path="ends.rejected", kind="count", better="low", scale="difference"),
    )
}  # fmt: skip
"""By name, in the order in which they are shown. Throughput is over the run to its last completion; KV high-water and
preemptions are those of the whole replay, lead-in included (it is the same for every level); the rest is counted requests'."""


def figures_of(matrix: Mapping[str, Any]) -> Figures:
    """The figures of one acceptance matrix."""
    found: Figures = {}
    for name, measure in MEASURES.items():
        value, reason = figure_at(matrix, measure.path)
        found[name] = {"value": float(value)} if reason is None else {"value": None, "reason": reason}
    return found


def leading(has_slo: bool) -> str:
    """The measure that decides: SLO-goodput, or TTFT P99 where no SLO says what is good."""
    return "goodput" if has_slo else "ttft_p99"
