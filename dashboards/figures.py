"""The timeline as a Plotly figure (a plain dict): five strips on one time axis, drawn from buckets, and what lies over them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dashboards.buckets import Buckets
from dashboards.overlay import NOTHING, Overlay
from dashboards.packing import packed
from dashboards.palette import Theme, reason_fill
from dashboards.timeline_layout import BLAME_AXIS, OLDEST_AXIS, timeline_layout

__all__ = ["Drawn", "timeline_figure"]

Trace = dict[str, Any]
EVEN_NS = 1000
"""Equal buckets of at least this width differ by the rounding of their edges only, which nobody sees."""


class _Strips:
    """Collects traces; a bucket's value holds from its left edge, the last one to the window's end."""

    def __init__(self, buckets: Buckets, theme: Theme) -> None:
        self.buckets = buckets
        self.theme = theme
        self.traces: list[Trace] = []
        self._x = _edges(buckets)

    def _steps(self, values: npt.NDArray[Any]) -> dict[str, str]:
        return packed(np.append(values, values[-1:]), "f4")

    def add(self, strip: int, name: str, values: npt.NDArray[Any], hover: str, **more: Any) -> None:
        axis = "" if strip == 0 else str(strip + 1)
        trace: Trace = {
            "type": "scatter", "mode": "lines", "name": name, "y": self._steps(values), "yaxis": f"y{axis}",
            "legend": f"legend{axis}", "hovertemplate": hover + "<extra></extra>",
        } | self._x  # fmt: skip
        trace["line"] = {"shape": "hv", "width": 1, **more.pop("line", {})}
        self.traces.append(trace | more)

    def stack(self, strip: int, name: str, values: npt.NDArray[Any], unit: str, colour: str, hatch: str = "") -> None:
        fill: dict[str, Any] = {"fillcolor": colour}
        if hatch:
            fill = {"fillpattern": {"shape": hatch, "bgcolor": colour, "fgcolor": self.theme.hatch, "size": 6, "solidity": 0.25}}
        self.add(
            strip, name, values, f"{name} %{{y:,.4~r}} {unit}", stackgroup=f"s{strip}",
            line={"width": 0, "color": colour}, **fill,
        )  # fmt: skip

    def peak(self, strip: int, name: str, values: npt.NDArray[Any], unit: str, colour: str, worst: str | None = None) -> None:
        """The extreme beside a mean, faint; where a bucket is one iteration they are the same, and it is left out."""
        if self.buckets.exact:
            return
        hover, more = f"{name} %{{y:,.4~r}} {unit}", dict[str, Any]()
        if worst is not None:
            hover += " (iteration %{customdata:,d})"
            numbers = self.buckets.worst[worst]
            more = {"customdata": packed(np.append(numbers, numbers[-1:]), "f8")}
            more |= {"fill": "tozeroy", "fillcolor": self.theme.faint}
        self.add(strip, name, values, hover, line={"color": colour, "width": 0.8}, **more)

    def level(self, strip: int, name: str, value: float, dash: str = "dash") -> None:
        """A bound that holds for the whole run: two points."""
        axis, ends = "" if strip == 0 else str(strip + 1), self.buckets.edges_ns[[0, -1]] / 1e9
        self.traces.append(
            {
                "type": "scatter", "mode": "lines", "name": name, "x": packed(ends, "f8"), "y": packed(np.full(2, value), "f4"),
                "yaxis": f"y{axis}", "legend": f"legend{axis}", "hoverinfo": "skip",
                "line": {"color": self.theme.line, "dash": dash, "width": 1.2},
            }
        )  # fmt: skip


def _edges(buckets: Buckets) -> Trace:
    """Where buckets begin: every edge, or the first one and their width where all are as wide."""
    edges = buckets.edges_ns
    widths = np.diff(edges)
    if buckets.exact or widths.min() < EVEN_NS:
        return {"x": packed(edges / 1e9, "f8")}
    return {"x0": int(edges[0]) / 1e9, "dx": int(edges[-1] - edges[0]) / len(widths) / 1e9}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What a timeline is drawn from besides its buckets. ``reasons``: names of ``head_refused_by``'s codes; ``budget`` tokens,
    ``kv_total`` blocks, ``reserved`` of which admission leaves free; ``oldest_ns``: longest wait so far in each bucket;
    ``marked_s``: a stretch of iterations that is pointed at; ``unit``: of the batches (``dashboards.address.UNITS``)."""

    reasons: list[str]
    window_ns: tuple[int, int]
    budget: int | None = None
    kv_total: int | None = None
    reserved: int = 0
    oldest_ns: npt.NDArray[np.float64] | None = None
    overlay: Overlay = NOTHING
    marked_s: tuple[float, float] | None = None
    unit: str = "tokens"


def timeline_figure(buckets: Buckets, drawn: Drawn, theme: Theme, *, narrow: bool = False) -> dict[str, Any]:
    """Five strips of a window. ``narrow``: for a phone."""
    strips, second = _Strips(buckets, theme), list[int]()
    budget = drawn.budget if drawn.unit == "tokens" else None
    if drawn.unit == "sequences":
        _sequences(strips)
    elif drawn.unit == "ms":
        _shares(strips)
    else:
        _batch(strips, budget)
    _counts(strips)
    _kv(strips, drawn.kv_total, drawn.reserved)
    _queue(strips, drawn.reasons)
    _durations(strips)
    if drawn.oldest_ns is not None and drawn.oldest_ns.any():
        _oldest(strips, drawn.oldest_ns)
        second.append(OLDEST_AXIS)
    if drawn.overlay.waits is not None:
        _blame(strips, drawn.overlay)
        second.append(BLAME_AXIS)
    legends = Counter(trace["legend"] for trace in strips.traces)
    layout = timeline_layout(theme, drawn.window_ns, drawn.overlay.brackets, second=second, legends=legends if narrow else None)
    if drawn.kv_total:
        layout["yaxis3"]["range"] = [0, 1.12 * drawn.kv_total]
    layout["yaxis"]["title"]["text"] = drawn.unit
    if budget is not None and _off_scale(buckets, budget):
        layout["annotations"][0]["text"] += f" (token budget {budget:,}, off the scale)"
    if drawn.marked_s is not None:
        line = {"color": theme.waiting, "width": 1, "dash": "dot"}
        box = {"type": "rect", "yref": "paper", "y0": 0, "y1": 1, "x0": drawn.marked_s[0], "x1": drawn.marked_s[1]}
        layout["shapes"].append({**box, "line": line, "fillcolor": theme.faint})
    return {"data": strips.traces, "layout": layout}


def _oldest(strips: _Strips, oldest_ns: npt.NDArray[np.float64]) -> None:
    line = {"color": strips.theme.waiting, "width": 1.5, "dash": "dot"}
    strips.add(3, "oldest wait", oldest_ns / 1e9, "oldest wait %{y:,.4~r} s", line=line, yaxis=f"y{OLDEST_AXIS}")


def _blame(strips: _Strips, overlay: Overlay) -> None:
    """How many of the selected requests stood still, over the first strip: its area is their waiting time."""
    assert overlay.waits is not None
    edges, theme = strips.buckets.edges_ns, strips.theme
    waiting = overlay.waits.within(edges).waited_ns / np.maximum(np.diff(edges), 1)
    strips.add(
        0, "selected waiting", waiting, "%{y:,.4~r} of the selected wait", yaxis=f"y{BLAME_AXIS}", fill="tozeroy",
        fillcolor=theme.blame_fill, line={"color": theme.blame, "width": 2},
    )  # fmt: skip


def _queue(strips: _Strips, reasons: list[str]) -> None:
    theme, buckets = strips.theme, strips.buckets
    for code, waiting in sorted(buckets.queue.items()):
        name = reasons[code] if code < len(reasons) else f"reason {code}"
        colour, hatch = reason_fill(name)
        strips.stack(3, name.replace("none", "nothing"), waiting, "waiting", theme.fill(colour), hatch)
    strips.peak(3, "most waiting", buckets.peak["waiting"], "", theme.waiting)


def _batch(strips: _Strips, budget: int | None) -> None:
    theme, mean = strips.theme, strips.buckets.mean
    strips.peak(0, "largest batch", strips.buckets.peak["batch"], "tokens", theme.edge, "batch")
    strips.stack(0, "decode", mean["decode"], "tokens", theme.decode)
    strips.stack(0, "prefill", mean["prefill"], "tokens", theme.prefill)
    strips.stack(0, "recomputed", mean["recomputed"], "tokens", theme.recomputed, "/")
    if budget is not None and not _off_scale(strips.buckets, budget):
        given = mean["decode"] + mean["prefill"] + mean["recomputed"]
        unused = np.where(strips.buckets.busy_ns > 0, np.maximum(budget - given, 0), 0)
        strips.stack(0, "unused budget", unused, "tokens", theme.spare)
        strips.level(0, "token budget", budget)


def _sequences(strips: _Strips) -> None:
    """Whose tokens: sequences that decode, and the others that hold a seat (they prefill, or wait for their turn)."""
    theme, mean = strips.theme, strips.buckets.mean
    strips.peak(0, "most running", strips.buckets.peak["running"], "sequences", theme.edge)
    strips.stack(0, "decode", mean["decode"], "sequences", theme.decode)
    strips.stack(0, "others running", mean["others"], "sequences", theme.prefill, "x")


def _shares(strips: _Strips) -> None:
    """Where an iteration's time goes: what its prefill adds by the profile, and the rest of it."""
    theme, mean = strips.theme, strips.buckets.mean
    added = mean["prefill_ns"] + mean["recomputed_ns"]
    strips.stack(0, "weights and decode", np.maximum(mean["duration_ns"] - added, 0) / 1e6, "ms", theme.decode)
    strips.stack(0, "prefill", mean["prefill_ns"] / 1e6, "ms", theme.prefill)
    strips.stack(0, "recomputed", mean["recomputed_ns"] / 1e6, "ms", theme.recomputed, "/")


def _off_scale(buckets: Buckets, budget: int) -> bool:
    """Whether the budget lies so far above every batch that a line there would press them flat."""
    return int(buckets.peak["batch"].max(initial=0)) * 4 < budget


def _counts(strips: _Strips) -> None:
    theme, buckets = strips.theme, strips.buckets
    strips.add(1, "running", buckets.mean["running"], "running %{y:,.4~r}", line={"color": theme.decode, "width": 1.5})
    strips.peak(1, "most running", buckets.peak["running"], "", theme.decode)
    dotted = {"color": theme.waiting, "width": 1.5, "dash": "dot"}
    strips.add(1, "waiting", buckets.mean["waiting"], "waiting %{y:,.4~r}", line=dotted)
    strips.peak(1, "most waiting", buckets.peak["waiting"], "", theme.waiting)


def _kv(strips: _Strips, kv_total: int | None, reserved: int) -> None:
    theme, buckets = strips.theme, strips.buckets
    strips.stack(2, "used", buckets.mean["kv_used"], "blocks", theme.decode)
    strips.stack(2, "cached", buckets.mean["kv_cached"], "blocks", theme.cached, ".")
    strips.peak(2, "most used", buckets.peak["kv_used"], "blocks", theme.line)
    if kv_total is not None:
        free = kv_total - buckets.mean["kv_used"] - buckets.mean["kv_cached"]
        strips.stack(2, "free", np.where(buckets.busy_ns > 0, np.maximum(free, 0), 0), "blocks", theme.spare)
        strips.level(2, "all blocks", kv_total)
    if kv_total is not None and reserved:
        strips.level(2, "watermark", kv_total - reserved, "dot")
    there = np.flatnonzero(buckets.preempted)
    if len(there):
        counts = buckets.preempted[there]
        top = 1.06 * (kv_total or int(buckets.peak["kv_used"].max()))
        middle = (buckets.edges_ns[there] + buckets.edges_ns[there + 1]) / 2e9
        strips.traces.append(
            {
                "type": "scatter", "mode": "markers", "name": "preempted", "yaxis": "y3", "legend": "legend3",
                "x": packed(middle, "f8"), "y": packed(np.full(len(there), top), "f4"), "customdata": packed(counts, "i4"),
                "marker": {"symbol": "triangle-down", "opacity": 1, "color": theme.recomputed,
                           "size": packed(np.minimum(6 + 2 * np.log2(counts), 16), "f4"),
                           "line": {"width": 0.5, "color": theme.text}},
                "hovertemplate": "%{customdata:,} preempted<extra></extra>",
            }
        )  # fmt: skip


def _durations(strips: _Strips) -> None:
    """What iterations took, what the profile says they take, and the difference as an area between them."""
    theme, buckets = strips.theme, strips.buckets
    mean, line = buckets.mean["duration_ns"] / 1e6, {"color": theme.decode, "width": 1.5}
    if not buckets.exact:
        strips.peak(4, "longest", buckets.peak["duration_ns"] / 1e6, "ms", theme.edge, "duration_ns")
        shortest = buckets.low["duration_ns"] / 1e6
        strips.add(4, "shortest", shortest, "shortest %{y:,.4~r} ms", line={"color": theme.quiet, "width": 0.8})
    more: dict[str, Any] = {}
    if buckets.against is not None:
        expected = buckets.mean["expected_ns"] / 1e6
        dashed = {"color": theme.line, "width": 1.2, "dash": "dash"}
        strips.add(4, "expected", expected, "expected %{y:,.4~r} ms", line=dashed)
        more = {"fill": "tonexty", "fillcolor": theme.residual}
    elif buckets.exact:
        more = {"fill": "tozeroy"}
    if buckets.exact:
        numbers = buckets.worst["duration_ns"]
        more["customdata"] = packed(np.append(numbers, numbers[-1:]), "f8")
        strips.add(4, "duration", mean, "%{y:,.4~r} ms, iteration %{customdata:,d}", line=line, **more)
        return
    strips.add(4, "mean", mean, "mean %{y:,.4~r} ms", line=line, **more)
