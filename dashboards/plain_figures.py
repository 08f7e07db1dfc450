"""Small figures that several pages draw: steps over time, bars, and a cloud of pairs. Plain dicts, pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dashboards.packing import packed
from dashboards.palette import Theme

__all__ = ["bar_figure", "curve_figure", "plain_layout", "step_figure"]


def plain_layout(theme: Theme, height: int, x: str, y: str, **more: Any) -> dict[str, Any]:
    """The layout that small figures share; ``x`` and ``y`` are the axes' titles."""
    axis = {"gridcolor": theme.grid, "zeroline": False, "exponentformat": "none", "separatethousands": True}
    return {
        "height": height,
        "margin": {"l": 70, "r": 16, "t": 24, "b": 44},
        "paper_bgcolor": theme.paper,
        "plot_bgcolor": theme.paper,
        "font": {"color": theme.text, "size": 12, "family": "system-ui, sans-serif"},
        "xaxis": {**axis, "title": {"text": x}},
        "yaxis": {**axis, "title": {"text": y}, "rangemode": "tozero"},
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "bgcolor": "rgba(0,0,0,0)"},
        "hoverlabel": {"bgcolor": theme.paper, "font": {"color": theme.text}},
        **more,
    }


def step_figure(
    begin: float, width: float, lines: Sequence[tuple[str, Sequence[float], str]], theme: Theme, x: str, y: str, height: int = 240
) -> dict[str, Any]:
    """Values that hold for bins of equal ``width``. ``lines``: name, values, colour."""
    traces = []
    for name, values, colour in lines:
        at = begin + width * np.arange(len(values) + 1)
        held = np.append(np.asarray(values, float), values[-1:] or [0.0])
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "x": packed(at, "f8"),
                "y": packed(held, "f4"),
                "line": {"shape": "hv", "width": 1.2, "color": colour},
                "hovertemplate": f"{name} %{{y:,.4~r}}<extra></extra>",
            }
        )
    return {"data": traces, "layout": plain_layout(theme, height, x, y, hovermode="x unified")}


def bar_figure(
    labels: Sequence[str],
    series: Sequence[tuple[str, Sequence[float], str, str]],
    theme: Theme,
    x: str,
    y: str,
    height: int = 240,
) -> dict[str, Any]:
    """Bars side by side. ``series``: name, values, colour, hatch."""
    traces = []
    for name, values, colour, hatch in series:
        marker: dict[str, Any] = {"color": colour}
        if hatch:
            marker["pattern"] = {"shape": hatch, "fgcolor": theme.hatch, "bgcolor": colour, "size": 5, "solidity": 0.25}
        traces.append(
            {
                "type": "bar",
                "name": name,
                "x": list(labels),
                "y": list(values),
                "marker": marker,
                "hovertemplate": f"%{{x}}: %{{y:,}} {name}<extra></extra>",
            }
        )
    layout = plain_layout(theme, height, x, y, bargap=0.2)
    layout["xaxis"]["type"] = "category"
    return {"data": traces, "layout": layout}


def curve_figure(
    x: Sequence[float],
    lines: Sequence[tuple[str, Sequence[float], str]],
    theme: Theme,
    xt: str,
    yt: str,
    mark: tuple[float, str] | None = None,
    height: int = 260,
) -> dict[str, Any]:
    """Lines with points over a logarithmic axis; ``mark``: a place on it and its name."""
    traces = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": name,
            "x": list(x),
            "y": list(values),
            "line": {"color": colour},
            "hovertemplate": f"%{{x:,}}: %{{y:.1%}} {name}<extra></extra>",
        }
        for name, values, colour in lines
    ]
    layout = plain_layout(theme, height, xt, yt)
    layout["xaxis"]["type"] = "log"
    layout["yaxis"]["tickformat"] = ".0%"
    if mark is not None:
        line = {"color": theme.line, "dash": "dash", "width": 1.5}
        layout["shapes"] = [{"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": mark[0], "x1": mark[0], "line": line}]
        where = {"x": float(np.log10(mark[0])), "y": 1, "yref": "paper", "yanchor": "top", "xanchor": "left"}
        look = {"showarrow": False, "bgcolor": theme.paper, "font": {"color": theme.text}}
        layout["annotations"] = [{**where, **look, "text": mark[1]}]
    return {"data": traces, "layout": layout}
