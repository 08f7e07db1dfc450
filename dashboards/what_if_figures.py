"""The figures of the What-if page: plain dicts, pure functions. Scenarios differ by colour, dash and symbol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dashboards.palette import Theme
from dashboards.plain_figures import plain_layout
from dashboards.what_if_rows import CostRow, Knee, Needs
from dashboards.words import short

__all__ = ["cost_figure", "curve_figure", "needs_figure"]

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "hexagon", "pentagon", "star-diamond", "cross")
_HATCHES = ("", "/", "x")


def curve_figure(knees: Sequence[Knee], target: float, theme: Theme) -> dict[str, Any]:
    """Attainment by arrival rate, a line a scenario, hollow where it is an extrapolation; knees as stars, the target dashed."""
    colours = _colours(theme)
    traces: list[dict[str, Any]] = []
    for at, knee in enumerate(knees):
        colour, symbol = colours[at % len(colours)], _SYMBOLS[at % len(_SYMBOLS)]
        symbols = [f"{symbol}-open" if point.why else symbol for point in knee.points]
        told = [f"x{short(point.factor)}" + (": extrapolation" if point.why else "") for point in knee.points]
        traces.append(
            {
                "type": "scatter", "mode": "lines+markers", "name": _short(knee.name), "legendgroup": str(at),
                "x": [point.per_s for point in knee.points], "y": [100 * point.attainment for point in knee.points],
                "text": told, "line": {"color": colour, "dash": _DASHES[at % len(_DASHES)], "width": 2},
                "marker": {"symbol": symbols, "size": 9, "color": colour, "line": {"color": colour, "width": 1.5}},
                "hovertemplate": "%{x:,.4~g}/s: %{y:.1f} %, %{text}<extra></extra>",
            }
        )  # fmt: skip
        if knee.factor:
            share = next((100 * point.attainment for point in knee.points if point.factor == knee.factor), 100 * target)
            marker = {"symbol": "star", "size": 15, "color": colour, "line": {"color": theme.line, "width": 1}}
            traces.append(
                {
                    "type": "scatter", "mode": "markers", "name": "knee", "legendgroup": "knee", "showlegend": at == 0,
                    "x": [knee.per_s], "y": [share], "marker": marker,
                    "hovertemplate": f"knee, {_short(knee.name)}: %{{x:,.4~g}}/s<extra></extra>",
                }
            )  # fmt: skip
    layout = plain_layout(theme, 400, "requests per second", "attain their SLO, %")
    layout["xaxis"] |= {"type": "log", "dtick": "D2", "tickformat": "~g"}
    layout["yaxis"]["range"] = [0, 104]
    _rule(layout, 100 * target, f"target {100 * target:.0f} %", "dash", theme)
    return {"data": traces, "layout": layout}


def needs_figure(needs: Needs, theme: Theme) -> dict[str, Any]:
    """Replicas over the trace: of an ideal autoscaler, stretch by stretch, and as replayed, window by window. Between windows
    nothing was replayed, and nothing is drawn."""
    traces = [
        _steps("ideal autoscaler, no queueing", [(s.begin_s, s.end_s, s.ideal) for s in needs.slots],
               {"color": theme.decode, "width": 2}),
        _steps("replayed, each window by itself", needs.windows, {"color": theme.waiting, "width": 2, "dash": "dash"}),
    ]  # fmt: skip
    layout = plain_layout(theme, 260, "seconds of the trace", "replicas")
    if needs.replayed is not None:
        _rule(layout, needs.replayed, f"{needs.replayed} at all times, replayed", "dot", theme)
    top = max([1, needs.peak, needs.replayed or 0, *(each for _, _, each in needs.windows if each is not None)])
    layout["yaxis"] |= {"range": [0, 1.15 * top], "tickformat": "d", "dtick": max(1, round(top / 6))}
    return {"data": traces, "layout": layout}


def _rule(layout: dict[str, Any], y: float, text: str, dash: str, theme: Theme) -> None:
    """A level over the whole width, named at its right end."""
    line = {"color": theme.line, "dash": dash, "width": 1.2}
    layout["shapes"] = [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": line}]
    look = {"showarrow": False, "bgcolor": theme.paper, "font": {"color": theme.text, "size": 11}}
    layout["annotations"] = [{"text": text, "xref": "paper", "x": 1, "y": y, "xanchor": "right", "yanchor": "bottom", **look}]


def _steps(name: str, stretches: Sequence[tuple[float, float, int | None]], line: Mapping[str, Any]) -> dict[str, Any]:
    x: list[float | None] = []
    y: list[int | None] = []
    for begin, end, value in stretches:
        if x and x[-1] is not None and begin > x[-1]:
            x.append(None)
            y.append(None)
        x += [begin, end]
        y += [value, value]
    return {"type": "scatter", "mode": "lines", "name": name, "x": x, "y": y, "line": dict(line), "connectgaps": False,
            "hovertemplate": f"{name}: %{{y}}<extra></extra>"}  # fmt: skip


def cost_figure(rows: Sequence[CostRow], theme: Theme) -> dict[str, Any]:
    """Price of a million output tokens that met their SLO, by scenario and place."""
    colours = _colours(theme)
    places = list(dict.fromkeys(row.place for row in rows))
    names = list(dict.fromkeys(row.name for row in rows))
    short = [_short(name) for name in names]
    labels = [name if short.count(name) == 1 else f"{at}: {name}" for at, name in enumerate(short)]
    traces = []
    for at, place in enumerate(places):
        own = {row.name: row for row in rows if row.place == place}
        marker: dict[str, Any] = {"color": colours[at], "line": {"color": theme.line, "width": 1}}
        if _HATCHES[at]:
            pattern = {"fgcolor": theme.hatch, "bgcolor": colours[at], "size": 5, "solidity": 0.3}
            marker["pattern"] = {"shape": _HATCHES[at], **pattern}
        traces.append(
            {
                "type": "bar", "name": place, "x": labels, "marker": marker,
                "y": [own[name].output if name in own else None for name in names],
                "hovertemplate": f"%{{x}}, {place}: %{{y:,.4~g}}<extra></extra>",
            }
        )  # fmt: skip
    layout = plain_layout(theme, 300, "", "price of a million tokens", bargap=0.25)
    layout["xaxis"] |= {"type": "category", "automargin": True}
    return {"data": traces, "layout": layout}


def _colours(theme: Theme) -> list[str]:
    return [theme.decode, theme.waiting, theme.blame, theme.fill(theme.cached), theme.fill(theme.prefill), theme.quiet]


def _short(name: str) -> str:
    return name if len(name) <= 44 else name[:43] + "…"
