"""Figures of the tail: a map of latency over time to draw a box in, cumulative shares, and pairs of small histograms."""

from __future__ import annotations

from typing import Any

import numpy as np

from dashboards.address import Address
from dashboards.packing import packed
from dashboards.palette import Theme
from dashboards.plain_figures import plain_layout
from dashboards.tail import Contrast, Percentile, TailMap
from dashboards.words import count, seconds

__all__ = ["contrast_figure", "describe_map", "map_figure"]

_LIGHT_SCALE = [[0.0, "#ffffff"], [0.01, "#dbe7f3"], [0.3, "#6aa5d3"], [0.7, "#1f5f99"], [1.0, "#06264a"]]
_DARK_SCALE = [[0.0, "#111827"], [0.01, "#21344f"], [0.3, "#2f6da8"], [0.7, "#7db9e8"], [1.0, "#f2f7fc"]]


def _ticks(low: float, high: float) -> tuple[list[float], list[str]]:
    exponents = np.arange(np.floor(low), np.ceil(high) + 1)
    values = [float(e + d) for e in exponents for d in (0.0, np.log10(3)) if low <= e + d <= high]
    return values, [seconds(10**value) for value in values]


def map_figure(found: TailMap, address: Address, theme: Theme) -> dict[str, Any]:
    """Counts as shades, the SLO as a line, the worst as points, the selection as a box, the window that is looked at as
    two dotted lines. Drawing a box selects."""
    scale = _LIGHT_SCALE if theme.name == "light" else _DARK_SCALE
    shade = np.log1p(found.counts)
    middle_x, middle_y = (found.x[1:] + found.x[:-1]) / 2, (found.y[1:] + found.y[:-1]) / 2
    ticks, texts = _ticks(float(found.y[0]), float(found.y[-1]))
    heat = {
        "type": "heatmap",
        "x": packed(middle_x, "f4"),
        "y": packed(middle_y, "f4"),
        "z": packed(shade, "f4") | {"shape": f"{shade.shape[0]}, {shade.shape[1]}"},
        "colorscale": scale,
        "showscale": False,
        "hoverinfo": "skip",
        "meta": {"y": "log10", "z": "log1p", "name": "latency, s", "value": "requests"},
    }
    layout = plain_layout(theme, 380, "arrival, seconds on the engine clock", "")
    layout["margin"]["t"] = 10
    layout["yaxis"] = {"tickvals": ticks, "ticktext": texts, "gridcolor": theme.grid, "zeroline": False}
    layout |= {"dragmode": "select", "showlegend": False, "shapes": [], "uirevision": "map"}
    if found.limit_s is not None:
        at = float(np.log10(found.limit_s))
        layout["shapes"].append(_line(at, theme))
        layout["annotations"] = [_tag(at, f"SLO {seconds(found.limit_s)}", theme)]
    if address.t is not None:
        layout["shapes"] += [_edge(at, theme) for at in address.t if found.x[0] <= at <= found.x[-1]]
    if address.arrived_s is not None or address.latency_s is not None:
        layout["shapes"].append(_box(found, address, theme))
    return {"data": [heat, _points(found, theme)], "layout": layout}


def _points(found: TailMap, theme: Theme) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "slowest",
        "x": packed(np.array([each[1] for each in found.worst]), "f4"),
        "y": packed(np.log10([each[2] for each in found.worst]), "f4"),
        "customdata": [each[0] for each in found.worst],
        "text": [seconds(each[2]) for each in found.worst],
        "meta": {"y": "log10"},
        "marker": {"size": 6, "color": theme.recomputed, "line": {"width": 0.5, "color": theme.text}},
        "hovertemplate": "request %{customdata}: %{text}<extra></extra>",
    }


def _line(at: float, theme: Theme) -> dict[str, Any]:
    line = {"color": theme.line, "width": 1.5, "dash": "dash"}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": at, "y1": at, "line": line}


def _edge(at: float, theme: Theme) -> dict[str, Any]:
    """Where the window that is looked at begins or ends."""
    return {"type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1,
            "line": {"color": theme.line, "width": 1, "dash": "dot"}}  # fmt: skip


def _tag(at: float, text: str, theme: Theme) -> dict[str, Any]:
    return {
        "xref": "paper",
        "x": 1,
        "xanchor": "right",
        "y": at,
        "yanchor": "bottom",
        "showarrow": False,
        "text": text,
        "font": {"size": 12, "color": theme.text},
        "bgcolor": theme.paper,
    }


def _box(found: TailMap, address: Address, theme: Theme) -> dict[str, Any]:
    x0, x1 = address.arrived_s or (float(found.x[0]), float(found.x[-1]))
    low, high = (np.log10(max(each, 1e-9)) for each in address.latency_s or (10 ** found.y[0], 10 ** found.y[-1]))
    return {
        "type": "rect",
        "x0": x0,
        "x1": x1,
        "y0": float(low),
        "y1": float(high),
        "line": {"color": theme.waiting, "width": 2},
        "fillcolor": theme.faint,
    }


def describe_map(found: TailMap, points: tuple[Percentile, ...], name: str, chosen: int) -> str:
    """One sentence with the figures: for those who do not see the map, and for a ticket."""
    parts = [f"{name} of {count(found.n)} requests"]
    if chosen != found.n:
        parts.append(f", {count(chosen)} of them selected")
    told = ", ".join(f"P{each.point:g} {seconds(each.selected_s)} ({each.beyond} beyond)" for each in points)
    missing = f" {count(found.missing)} have no {name}." if found.missing else ""
    return f"{''.join(parts)}: {told}.{missing}"


def contrast_figure(found: Contrast, theme: Theme) -> dict[str, Any]:
    """Selected against the rest, one property; shares of either side."""
    labels = list(found.labels)
    common: dict[str, Any] = {"type": "bar", "x": labels, "hovertemplate": "%{x}: %{y:.1%}<extra>%{fullData.name}</extra>"}
    traces = [
        common | {"name": "selected", "y": list(found.selected), "marker": {"color": theme.fill(theme.prefill)}},
        common
        | {
            "name": "the rest",
            "y": list(found.rest),
            "marker": {
                "color": theme.decode,
                "pattern": {"shape": "/", "fgcolor": theme.hatch, "bgcolor": theme.decode, "size": 5, "solidity": 0.25},
            },
        },
    ]
    layout = {
        "height": 150,
        "margin": {"l": 40, "r": 8, "t": 4, "b": 34},
        "paper_bgcolor": theme.paper,
        "plot_bgcolor": theme.paper,
        "font": {"color": theme.text, "size": 11, "family": "system-ui, sans-serif"},
        "bargap": 0.15,
        "showlegend": False,
        "xaxis": {"type": "category", "nticks": 4, "tickangle": 0, "fixedrange": True, "gridcolor": theme.grid},
        "yaxis": {"tickformat": ".0%", "nticks": 3, "fixedrange": True, "gridcolor": theme.grid, "zeroline": False},
        "hoverlabel": {"bgcolor": theme.paper, "font": {"color": theme.text}},
    }
    return {"data": traces, "layout": layout}
