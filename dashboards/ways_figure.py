"""Parallel coordinates of a study's trials, as lines in SVG: two thousand of them are one path or two, and need no WebGL.

A box drawn over an axis keeps the trials that pass through it (``assets/ways.js``, in the browser); brushes on several axes add
up.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dashboards.packing import packed
from dashboards.palette import Theme
from dashboards.plain_figures import plain_layout
from dashboards.study_ways import Ways

__all__ = ["describe_ways", "ways_data", "ways_figure"]


def ways_figure(ways: Ways, theme: Theme) -> dict[str, Any]:
    """Traces: 0 all trials, faint; 1 the chosen ones; 2 the best tenth of the chosen; 3 the recommendation; 4 the axes'
    levels."""
    axes = len(ways.axes)
    nothing = np.zeros(len(ways.trial), bool)
    data = [
        _lines("all trials", ways.place, nothing | True, {"color": theme.faint, "width": 1}, showlegend=False),
        _lines("chosen", ways.place, ~ways.best, {"color": theme.edge, "width": 1}),
        _lines("the best tenth", ways.place, ways.best, {"color": theme.decode, "width": 1.6}),
    ]
    mask = nothing.copy()
    if ways.chosen is not None:
        mask[ways.chosen] = True
    data.append(_lines("recommended", ways.place, mask, {"color": theme.fill(theme.prefill), "width": 3.5, "dash": "dash"}))
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
    line = {"type": "line", "y0": 0, "y1": 1, "line": {"color": theme.text, "width": 1}, "layer": "below"}
    layout["shapes"] = [{**line, "x0": at, "x1": at} for at in range(axes)]
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


def _lines(
    name: str, place: npt.NDArray[np.float64], mask: npt.NDArray[np.bool_], line: dict[str, Any], **more: Any
) -> dict[str, Any]:
    """All lines of a mask as one trace: a gap after each."""
    own = place[mask]
    n, axes = own.shape
    y = np.concatenate([own, np.full((n, 1), np.nan)], axis=1).ravel()
    x = np.tile(np.append(np.arange(axes, dtype=float), np.nan), n)
    return {
        "type": "scatter", "mode": "lines", "name": name, "x": packed(x, "f4"), "y": packed(y, "f4"), "line": line,
        "connectgaps": False, "hoverinfo": "skip", **more,
    }  # fmt: skip
