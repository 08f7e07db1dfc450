"""Several runs side by side: the rows of their matrices that decide between policies, one column a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tracekit.metrics.fields import is_missing
from tracekit.metrics.wording import count, printable, share, span_text

__all__ = ["Kind", "Row", "figure_at", "render_rows", "run_labels", "side_by_side"]

Matrix = Mapping[str, Any]
Kind = str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure of every run. ``values[i]`` is a number or text, or ``None`` with the reason in ``reasons[i]``.

    ``kind``: ``ns``, ``share``, ``count``, ``rate`` or ``text``. ``better``: ``low``, ``high``, or empty where neither is.
    """

    name: str
    label: str
    kind: Kind
    better: str
    values: tuple[Any, ...]
    reasons: tuple[str | None, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


_LATENCY = (("ttft_ns", "TTFT"), ("tpot_ns", "TPOT"), ("e2e_ns", "E2E"))
_FIGURES: tuple[tuple[str, str, Kind, str], ...] = (
    ("knobs.batching.mode", "Batching", "text", ""),
    ("knobs.batching.step", "Prefill and decode", "text", ""),
    ("knobs.batching.kv_allocation", "KV allocation", "text", ""),
    ("knobs.policy", "Order, engine", "text", ""),
    ("knobs.order.by", "Order", "text", ""),
    ("knobs.preemption.mode", "Preemption", "text", ""),
    ("counted.requests", "Requests", "count", ""),
    *((f"latency.{name}.{p}", f"{label} {p.upper()}", "ns", "low") for name, label in _LATENCY for p in ("p50", "p95", "p99")),
    ("latency.queue_ns.p99", "Queue P99", "ns", "low"),
    ("latency.longest_gap_ns.max", "Longest gap", "ns", "low"),
    ("latency.stalled_ns.total", "Stalled", "ns", "low"),
    ("throughput.run_output_tokens_per_s", "Output tok/s, whole run", "rate", "high"),
    ("throughput.window_output_tokens_per_s", "Output tok/s, arrival window", "rate", "high"),
    ("slo.goodput_requests_per_s", "SLO-goodput, requests/s", "rate", "high"),
    ("slo.attainment.share", "Attainment", "share", "high"),
    ("ends.finished", "Finished", "count", "high"),
    ("ends.rejected", "Rejected", "count", "low"),
    ("ends.timed_out", "Timed out", "count", "low"),
    ("preemption.preemptions", "Preemptions", "count", "low"),
    ("preemption.recovery_ns", "Stood still by preemption", "ns", "low"),
    ("preemption.stood_still_ns.p99", "Stood still, P99 of them", "ns", "low"),
    ("preemption.recomputed_tokens", "Recomputed tokens", "count", "low"),
    ("preemption.link_ns", "Swap, time on the link", "ns", "low"),
    ("kv.high_water_share", "KV high-water", "share", ""),
    ("kv.reserved_unused_share", "KV reserved, unused", "share", "low"),
    ("concurrency.running_max", "Largest batch", "count", ""),
    ("concurrency.running_mean", "Running, mean", "rate", ""),
    ("fairness.jain_service", "Jain's index, service", "rate", "high"),
    ("fairness.jain_slo", "Jain's index, SLO", "rate", "high"),
    ("time.busy_ns", "Busy", "ns", ""),
)


def side_by_side(matrices: Sequence[Matrix]) -> list[Row]:
    """The key figures of each matrix, in one order. Rows that no run has, and settings in which all agree, are left out."""
    rows = []
    for path, label, kind, better in _FIGURES:
        found = [figure_at(matrix, path) for matrix in matrices]
        values = tuple(value for value, _ in found)
        setting = path.startswith("knobs.")
        if all(value is None for value in values) or (setting and len(set(values)) == 1):
            continue
        reasons = tuple(reason for _, reason in found)
        rows.append(Row(name=path, label=label, kind=kind, better=better, values=values, reasons=reasons))
    return rows


def run_labels(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """A short head for each ``runs`` row: its number, and its name where it has one."""
    return [f"{run['run']} {printable(run['name'])}" if run.get("name") else f"run {run['run']}" for run in runs]


def render_rows(rows: Sequence[Row]) -> list[list[str]]:
    """Rows of cells for a table: the label, then a cell per run; a dash where the figure does not apply."""
    return [[row.label, *(_cell(row.kind, value) for value in row.values)] for row in rows]


def figure_at(matrix: Matrix, path: str) -> tuple[Any, str | None]:
    """The value at ``section.field[.part]`` of a matrix and, if there is none, why. Knobs have dots in their names."""
    section, _, name = path.partition(".")
    found: Any = matrix.get(section, {})
    parts = [name] if section == "knobs" else name.split(".")
    for part in parts:
        if is_missing(found):
            break
        if not isinstance(found, Mapping) or part not in found:
            return None, "the version that made this run did not record it"
        found = found[part]
    return (None, str(found["reason"])) if is_missing(found) else (found, None)


_FORMS: dict[Kind, Callable[[Any], str]] = {"ns": span_text, "share": share, "count": count, "rate": count}


def _cell(kind: Kind, value: Any) -> str:
    if value is None:
        return "-"
    form = _FORMS.get(kind)
    return printable(value) if form is None else form(value)
