"""Parallel coordinates of a study's trials, as lines in SVG: two thousand of them are one path or two, and need no WebGL.

A box drawn over an axis keeps the trials that pass through it (``assets/ways.js``, in the browser); brushes on several axes add
up.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dashboards.palette import Theme
from dashboards.plain_figures import plain_layout
from dashboards.study_ways import Ways

__all__ = ["describe_ways", "ways_data", "ways_figure"]


def ways_figure(ways: Ways, theme: Theme, best: str = "recommended") -> dict[str, Any]:
    """Traces: 0 all trials, faint; 1 the chosen ones; 2 the best tenth of the chosen; 3 the recommendation; 4 the axes'
    levels. The browser draws the first three itself, of ``ways_data``: here they have a place out of sight.
    ``best``: what the recommendation is called."""
    axes = len(ways.axes)
    looks: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
        ("all trials", {"color": theme.faint, "width": 1}, {"showlegend": False}),
        ("chosen", {"color": theme.edge, "width": 1}, {}),
        ("the best tenth", {"color": theme.decode, "width": 1.6}, {}),
    )
    plain = {"type": "scatter", "mode": "lines", "hoverinfo": "skip"}
    data = [{**plain, "name": name, "x": [0], "y": [2], "line": line, **more} for name, line, more in looks]
    own = [] if ways.chosen is None else [float(each) if each == each else None for each in ways.place[ways.chosen]]
    line = {"color": theme.fill(theme.prefill), "width": 3.5, "dash": "dash"}
    data.append({**plain, "name": best, "x": list(range(len(own))), "y": own, "line": line})
    marks = [(at, place, tick) for at, axis in enumerate(ways.axes) for place, tick in zip(axis.at, axis.ticks, strict=False)]
    data.append(
        {
            "type": "scatter", "mode": "markers+text", "showlegend": False, "x": [m[0] for m in marks],
            "y": [m[1] for m in marks], "text": [m[2] for m in marks], "textposition": "middle right",
            "textfont": {"size": 10, "color": theme.text},
            "marker": {"symbol": "line-ew-open", "size": 8, "color": theme.text}, "hoverinfo": "skip",
            "selected": {"marker": {"opacity": 1}}, "unselected": {"marker": {"opacity": 1}, "textfont": {"color": theme.text}},
        }
    )  # fmt: skip
    layout = plain_layout(theme, 420, "", "", dragmode="select", hovermode=False, selectdirection="any", uirevision="ways")
    rule = {"type": "line", "y0": 0, "y1": 1, "line": {"color": theme.text, "width": 1}, "layer": "below"}
    layout["shapes"] = [{**rule, "x0": at, "x1": at} for at in range(axes)]
    ticks = {"tickvals": list(range(axes)), "ticktext": [axis.name for axis in ways.axes]}
    layout["xaxis"] |= {**ticks, "range": [-0.3, axes - 0.4], "showgrid": False, "side": "bottom", "fixedrange": True}
    layout["yaxis"] |= {"range": [-0.04, 1.04], "showgrid": False, "showticklabels": False, "fixedrange": True}
    layout["margin"] = {"l": 16, "r": 16, "t": 30, "b": 40}
    return {"data": data, "layout": layout}


def ways_data(ways: Ways) -> dict[str, Any]:
    """What the browser brushes over: places by axis (-1: none), trial numbers, and how many of them are the best tenth."""
    place = np.where(np.isnan(ways.place), -1, ways.place)
    return {
        "axes": [{"name": axis.name, "ticks": list(axis.ticks), "at": list(axis.at)} for axis in ways.axes],
        "place": [[round(float(each), 4) for each in column] for column in place.T],
        "trial": ways.trial.tolist(),
        "best": int(ways.best.sum()),
    }


def describe_ways(ways: Ways) -> str:
    """The figure in a sentence."""
    more = f"; the best {len(ways.trial):,} are drawn" if ways.left_out else ""
    n = f"{len(ways.trial) + ways.left_out:,}"
    return (
        f"{n} trials{more}: a line each over {len(ways.axes) - 1} knobs and the value. Draw a box over an axis to keep the trials"
        " that pass through it, on several axes one after the other; double-click takes all back."
    )
