"""The timeline as a Plotly figure (a plain dict): five strips on one time axis, drawn from buckets."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dashboards.buckets import Buckets
from dashboards.packing import packed
from dashboards.palette import Theme, reason_fill

__all__ = ["HEIGHT", "STRIPS", "timeline_figure"]

HEIGHT = 920
STRIPS = (
    ("Batch composition", "tokens", 0.800, 0.975),
    ("Running and waiting", "requests", 0.615, 0.755),
    ("KV blocks", "blocks", 0.415, 0.570),
    ("Queue by what refused its head", "requests", 0.215, 0.370),
    ("Iteration duration", "ms", 0.035, 0.170),
)
"""Title, unit and vertical domain of each strip, top to bottom."""

Trace = dict[str, Any]


class _Strips:
    """Collects traces; a bucket's value holds from its left edge, the last one to the window's end."""

    def __init__(self, buckets: Buckets, theme: Theme) -> None:
        self.buckets = buckets
        self.theme = theme
        self.traces: list[Trace] = []
        self._x = packed(buckets.edges_ns / 1e9, "f8")

    def _steps(self, values: npt.NDArray[Any]) -> dict[str, str]:
        return packed(np.append(values, values[-1:]), "f4")

    def add(self, strip: int, name: str, values: npt.NDArray[Any], hover: str, **more: Any) -> None:
        axis = "" if strip == 0 else str(strip + 1)
        trace: Trace = {
            "type": "scatter", "mode": "lines", "name": name, "x": self._x, "y": self._steps(values), "yaxis": f"y{axis}",
            "legend": f"legend{axis}", "hovertemplate": hover + "<extra></extra>",
        }  # fmt: skip
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

    def level(self, strip: int, name: str, value: float | None, unit: str) -> None:
        """A bound that holds for the whole run."""
        if value is not None:
            flat = np.full(len(self.buckets.iterations), value)
            line = {"color": self.theme.line, "dash": "dash", "width": 1.2}
            self.add(strip, name, flat, f"{name} %{{y:,}} {unit}", line=line, hoverinfo="skip", hovertemplate=None)


def timeline_figure(
    buckets: Buckets, reasons: list[str], theme: Theme, *, budget: int | None, kv_total: int | None, window_ns: tuple[int, int]
) -> dict[str, Any]:
    """Five strips of a window. ``reasons``: names of ``head_refused_by``'s codes; ``budget`` tokens, ``kv_total`` blocks."""
    strips = _Strips(buckets, theme)
    _batch(strips, budget)
    _counts(strips)
    _kv(strips, kv_total)
    for code, waiting in sorted(buckets.queue.items()):
        name = reasons[code] if code < len(reasons) else f"reason {code}"
        colour, hatch = reason_fill(name)
        strips.stack(3, name.replace("none", "nothing"), waiting, "waiting", theme.fill(colour), hatch)
    strips.peak(3, "most waiting", buckets.peak["waiting"], "", theme.waiting)
    _durations(strips)
    layout = _layout(theme, window_ns, kv_total)
    if budget is not None and _off_scale(buckets, budget):
        layout["annotations"][0]["text"] += f" (token budget {budget:,}, off the scale)"
    return {"data": strips.traces, "layout": layout}


def _batch(strips: _Strips, budget: int | None) -> None:
    theme, mean = strips.theme, strips.buckets.mean
    strips.peak(0, "largest batch", strips.buckets.peak["batch"], "tokens", theme.edge, "batch")
    strips.stack(0, "decode", mean["decode"], "tokens", theme.decode)
    strips.stack(0, "prefill", mean["prefill"], "tokens", theme.prefill)
    strips.stack(0, "recomputed", mean["recomputed"], "tokens", theme.recomputed, "/")
    if budget is not None and not _off_scale(strips.buckets, budget):
        strips.level(0, "token budget", budget, "tokens")


def _off_scale(buckets: Buckets, budget: int) -> bool:
    """Whether the budget lies so far above every batch that a line there would press them flat."""
    return int(buckets.peak["batch"].max(initial=0)) * 4 < budget


def _counts(strips: _Strips) -> None:
    theme, buckets = strips.theme, strips.buckets
    strips.add(1, "running", buckets.mean["running"], "running %{y:,.4~r}", line={"color": theme.decode, "width": 1.5})
    strips.peak(1, "most running", buckets.peak["running"], "", theme.decode)
    strips.add(1, "waiting", buckets.mean["waiting"], "waiting %{y:,.4~r}", line={"color": theme.waiting, "width": 1.5})
    strips.peak(1, "most waiting", buckets.peak["waiting"], "", theme.waiting)


def _kv(strips: _Strips, kv_total: int | None) -> None:
    theme, buckets = strips.theme, strips.buckets
    strips.stack(2, "used", buckets.mean["kv_used"], "blocks", theme.decode)
    strips.stack(2, "cached", buckets.mean["kv_cached"], "blocks", theme.cached, ".")
    strips.peak(2, "most used", buckets.peak["kv_used"], "blocks", theme.line)
    strips.level(2, "all blocks", kv_total, "blocks")
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
    theme, buckets = strips.theme, strips.buckets
    mean = buckets.mean["duration_ns"] / 1e6
    if buckets.exact:
        numbers = buckets.worst["duration_ns"]
        strips.add(
            4, "duration", mean, "%{y:,.4~r} ms, iteration %{customdata:,d}", fill="tozeroy",
            line={"color": theme.decode, "width": 1.2}, customdata=packed(np.append(numbers, numbers[-1:]), "f8"),
        )  # fmt: skip
        return
    strips.peak(4, "longest", buckets.peak["duration_ns"] / 1e6, "ms", theme.edge, "duration_ns")
    shortest = buckets.low["duration_ns"] / 1e6
    strips.add(4, "shortest", shortest, "shortest %{y:,.4~r} ms", line={"color": theme.quiet, "width": 0.8})
    strips.add(4, "mean", mean, "mean %{y:,.4~r} ms", line={"color": theme.decode, "width": 1.5})


def _layout(theme: Theme, window_ns: tuple[int, int], kv_total: int | None) -> dict[str, Any]:
    begin, end = window_ns[0] / 1e9, window_ns[1] / 1e9
    layout: dict[str, Any] = {
        "height": HEIGHT,
        "margin": {"l": 70, "r": 180, "t": 8, "b": 8},
        "paper_bgcolor": theme.paper,
        "plot_bgcolor": theme.paper,
        "font": {"color": theme.text, "size": 12, "family": "system-ui, sans-serif"},
        "hovermode": "x unified",
        "hoversubplots": "axis",
        "hoverlabel": {"bgcolor": theme.paper, "bordercolor": theme.quiet, "font": {"color": theme.text}},
        "dragmode": "zoom",
        "xaxis": {
            "range": [begin, end], "anchor": "y5", "gridcolor": theme.grid, "zeroline": False, "ticksuffix": " s",
            "hoverformat": ",.4f", "exponentformat": "none", "separatethousands": True, "uirevision": f"{begin}-{end}",
            "showspikes": True, "spikemode": "across", "spikethickness": 1, "spikecolor": theme.quiet, "spikedash": "solid",
        },
        "annotations": [],
    }  # fmt: skip
    for at, (title, unit, low, high) in enumerate(STRIPS):
        axis = "" if at == 0 else str(at + 1)
        layout[f"yaxis{axis}"] = {
            "domain": [low, high], "anchor": "x", "title": {"text": unit, "font": {"size": 11, "color": theme.quiet}},
            "gridcolor": theme.grid, "zeroline": False, "rangemode": "tozero", "fixedrange": True, "nticks": 5,
            "separatethousands": True, "exponentformat": "none", "automargin": False,
        }  # fmt: skip
        layout[f"legend{axis}"] = {
            "x": 1.01, "xanchor": "left", "y": high, "yanchor": "top", "bgcolor": "rgba(0,0,0,0)", "font": {"size": 11},
            "tracegroupgap": 0, "traceorder": "normal",
        }  # fmt: skip
        layout["annotations"].append(
            {
                "text": f"<b>{title}</b>", "xref": "paper", "yref": "paper", "x": 0, "y": high + 0.022, "xanchor": "left",
                "yanchor": "top", "showarrow": False, "font": {"size": 13, "color": theme.text},
            }
        )  # fmt: skip
    if kv_total:
        layout["yaxis3"]["range"] = [0, 1.12 * kv_total]
    return layout
