"""The figures of the Tuner page: plain dicts, pure functions, nothing in WebGL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dashboards.packing import packed
from dashboards.palette import Theme
from dashboards.plain_figures import plain_layout
from dashboards.study_rows import CLIFF, Front, History, KnobLevels, Step

__all__ = ["front_figure", "history_figure", "levels_figure", "shares_figure", "steps_figure"]

_STATES = {"complete": ("complete", "circle"), "pruned": ("pruned, as judged from its first windows", "x")}


def history_figure(history: History, theme: Theme) -> dict[str, Any]:
    """Every trial by its number, the best so far as a line, the current policy dashed."""
    unit = history.objective.unit
    traces: list[dict[str, Any]] = []
    colours = {"complete": theme.decode, "pruned": theme.quiet}
    states = np.array(history.state)
    for state, (name, symbol) in _STATES.items():
        mask = (states == state) & ~np.isnan(history.value)
        if mask.any():
            marker = {"color": colours[state], "symbol": symbol, "size": 6, "opacity": 0.75}
            traces.append(
                _dots(name, history.trial[mask], history.value[mask], history.trial[mask], marker, f"%{{y:,.4~g}} {unit}")
            )
    traces.append(
        {
            "type": "scatter", "mode": "lines", "name": "best so far", "x": packed(history.trial, "i4"),
            "y": packed(history.best, "f4"), "line": {"shape": "hv", "width": 2, "color": theme.line},
            "hovertemplate": f"best so far %{{y:,.4~g}} {unit}<extra></extra>",
        }
    )  # fmt: skip
    layout = plain_layout(theme, 300, "trial", f"{history.objective.name}, {unit}")
    if history.current is not None:
        layout["shapes"] = [_rule(theme, y=history.current)]
        layout["annotations"] = [_note(theme, "the current policy", x=1.0, xref="paper", y=history.current, xanchor="right")]
    return {"data": traces, "layout": layout}


def front_figure(front: Front, theme: Theme) -> dict[str, Any]:
    """Trials by two figures; the region within the limits is shaded, the front joined by a line."""
    traces: list[dict[str, Any]] = []
    hover = f"{front.names[0]} %{{x:,.4~g}} {front.units[0]}, {front.names[1]} %{{y:,.4~g}} {front.units[1]}"
    groups = (
        ("outside the SLO or constraints", ~front.inside & ~front.front, theme.quiet, "circle-open"),
        ("inside", front.inside & ~front.front, theme.decode, "circle"),
        ("on the front", front.front, theme.fill(theme.prefill), "diamond"),
    )
    for name, mask, colour, symbol in groups:
        if mask.any():
            marker = {"color": colour, "symbol": symbol, "size": 9 if symbol == "diamond" else 6, "opacity": 0.8}
            traces.append(_dots(name, front.x[mask], front.y[mask], front.trial[mask], marker, hover))
    order = np.argsort(front.x[front.front], kind="stable")
    line = {"shape": "hv", "width": 1.2, "dash": "dot", "color": theme.text}
    traces.append(
        {
            "type": "scatter", "mode": "lines", "name": "front", "x": packed(front.x[front.front][order], "f4"),
            "y": packed(front.y[front.front][order], "f4"), "line": line, "hoverinfo": "skip", "showlegend": False,
        }
    )  # fmt: skip
    titles = [f"{name}, {unit}" for name, unit in zip(front.names, front.units, strict=True)]
    layout = plain_layout(theme, 380, titles[0], titles[1], shapes=_region(front, theme))
    layout["xaxis"]["rangemode"] = "tozero"
    if any(limit is not None for limit in front.limits):
        layout["annotations"] = [_note(theme, "within the SLO", x=0, xref="paper", y=0, yref="paper", yanchor="bottom")]
    return {"data": traces, "layout": layout}


def levels_figure(rows: Sequence[KnobLevels], unit: str, theme: Theme, best: str = "recommended") -> dict[str, Any]:
    """A panel a knob: best and median value at every level; the recommendation's level is a star, the current one a square.
    ``best``: what the star is called."""
    traces: list[dict[str, Any]] = []
    layout = plain_layout(theme, 300, "", "", showlegend=True)
    plain_x, plain_y = layout.pop("xaxis"), layout.pop("yaxis")
    width = 1 / max(len(rows), 1)
    layout["annotations"] = []
    for at, row in enumerate(rows):
        own = "" if at == 0 else str(at + 1)
        x, y = {"xaxis": f"x{own}", "yaxis": "y"}, list(row.best)
        traces.append(_line("best", row.levels, y, {"width": 2, "color": theme.decode}, at, x))
        traces.append(_line("median", row.levels, row.median, {"width": 1.2, "dash": "dot", "color": theme.quiet}, at, x))
        for name, place, symbol in ((best, row.chosen, "star"), ("current policy", row.current, "square-open")):
            if place is not None and row.best[place] is not None:
                marker = {
                    "symbol": symbol,
                    "size": 13,
                    "color": theme.fill(theme.prefill),
                    "line": {"color": theme.line, "width": 1},
                }
                point = {"x": [row.levels[place]], "y": [row.best[place]], "marker": marker, "mode": "markers"}
                traces.append({"type": "scatter", "name": name, "legendgroup": name, "showlegend": at == 0, **point, **x})
        domain = [at * width + (0.02 if at else 0), (at + 1) * width - 0.01]
        categories = {"type": "category", "categoryorder": "array", "categoryarray": list(row.levels), "tickangle": -60}
        layout[f"xaxis{own}"] = {**plain_x, **categories, "domain": domain, "title": {"text": row.knob, "font": {"size": 11}}}
    layout["yaxis"] = {**plain_y, "title": {"text": unit}}
    layout["margin"] = {**layout["margin"], "b": 110}
    layout["height"] = 380
    return {"data": traces, "layout": layout}


def steps_figure(steps: Sequence[Step], theme: Theme) -> dict[str, Any]:
    """One step of one knob from the recommendation: what is left of its value; below the line is a cliff."""
    labels = [f"{step.knob} = {step.level}" for step in steps]
    traces = []
    for name, cliff, colour, hatch in (("plateau", False, theme.decode, ""), ("cliff", True, theme.recomputed, "/")):
        own = [(label, 100 * (step.ratio - 1)) for label, step in zip(labels, steps, strict=True) if step.cliff == cliff]
        if own:
            marker: dict[str, Any] = {"color": colour, "line": {"color": theme.line, "width": 1}}
            if hatch:
                marker["pattern"] = {"shape": hatch, "fgcolor": theme.hatch, "bgcolor": colour, "size": 5, "solidity": 0.3}
            traces.append(
                {
                    "type": "bar", "orientation": "h", "name": name, "y": [label for label, _ in own], "x": [v for _, v in own],
                    "marker": marker, "hovertemplate": "%{y}: %{x:+.1f} %<extra></extra>",
                    "text": [f"{v:+.1f} %" for _, v in own], "textposition": "outside", "cliponaxis": False,
                }
            )  # fmt: skip
    layout = plain_layout(theme, 120 + 30 * len(steps), "change of the value, %", "")
    layout["yaxis"] |= {"type": "category", "categoryorder": "array", "categoryarray": labels[::-1], "automargin": True}
    lowest = min([100 * (step.ratio - 1) for step in steps] + [100 * (CLIFF - 1)])
    highest = max([100 * (step.ratio - 1) for step in steps] + [2.0])
    layout["xaxis"] |= {"range": [lowest * 1.25, highest * 1.4 + 2], "zeroline": True, "zerolinecolor": theme.line}
    layout["shapes"] = [_rule(theme, x=100 * (CLIFF - 1))]
    return {"data": traces, "layout": layout}


def shares_figure(shares: dict[str, float], theme: Theme) -> dict[str, Any]:
    """Knobs by how much of the trials' differences they explain."""
    names = list(shares)
    bar = {
        "type": "bar", "orientation": "h", "y": names, "x": [100 * shares[name] for name in names], "name": "importance",
        "marker": {"color": theme.decode}, "hovertemplate": "%{y}: %{x:.0f} %<extra></extra>",
    }  # fmt: skip
    layout = plain_layout(theme, 110 + 30 * len(names), "share, %", "", showlegend=False)
    layout["yaxis"] |= {"type": "category", "categoryorder": "array", "categoryarray": names[::-1], "automargin": True}
    return {"data": [bar], "layout": layout}


def _dots(name: str, x: Any, y: Any, trials: Any, marker: dict[str, Any], hover: str) -> dict[str, Any]:
    """Points that ``assets/dots.js`` draws, all but one."""
    return {
        "type": "scatter", "mode": "markers", "name": name, "x": packed(x, "f4"), "y": packed(y, "f4"),
        "marker": {**marker, "maxdisplayed": 1},
        "customdata": packed(trials, "i4"), "hovertemplate": f"trial %{{customdata}}: {hover}<extra></extra>",
        "unselected": {"marker": {"opacity": 0.12}},
    }  # fmt: skip


def _line(
    name: str, x: Sequence[str], y: Sequence[float | None], line: dict[str, Any], at: int, axes: dict[str, str]
) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines+markers", "name": name, "legendgroup": name, "showlegend": at == 0, "x": list(x),
        "y": list(y), "line": line, "connectgaps": True, "hovertemplate": f"%{{x}}: {name} %{{y:,.4~g}}<extra></extra>", **axes,
    }  # fmt: skip


def _region(front: Front, theme: Theme) -> list[dict[str, Any]]:
    """The SLO's region: up to the limits there are; an axis without one is covered whole."""
    x, y = front.limits
    if x is None and y is None:
        return []
    box: dict[str, Any] = {
        "type": "rect",
        "layer": "below",
        "fillcolor": theme.faint,
        "line": {"color": theme.edge, "dash": "dash"},
    }
    box |= {"x0": 0, "x1": x} if x is not None else {"xref": "paper", "x0": 0, "x1": 1}
    box |= {"y0": 0, "y1": y} if y is not None else {"yref": "paper", "y0": 0, "y1": 1}
    return [box]


def _rule(theme: Theme, x: float | None = None, y: float | None = None) -> dict[str, Any]:
    line: dict[str, Any] = {"type": "line", "line": {"color": theme.line, "dash": "dash", "width": 1.2}}
    if y is not None:
        return {**line, "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y}
    return {**line, "yref": "paper", "y0": 0, "y1": 1, "x0": x, "x1": x}


def _note(theme: Theme, text: str, **where: Any) -> dict[str, Any]:
    look = {"showarrow": False, "bgcolor": theme.paper, "font": {"color": theme.text, "size": 11}, "opacity": 0.9}
    return {"xanchor": "left", "yanchor": "bottom", **look, "text": text, **where}
