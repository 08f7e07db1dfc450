"""How many requests took how long, of the selected against all, with the percentiles and what they rest on: a tail needs its own
scale, so shares are of those that took at least as long, and logarithmic."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dashboards.address import Address
from dashboards.packing import packed
from dashboards.palette import Theme
from dashboards.plain_figures import plain_layout
from dashboards.selection import latency_s, selected
from dashboards.tail import Percentile
from dashboards.words import count, seconds
from tracekit.diagnosis import RunData

__all__ = ["Distribution", "distribution_figure", "distribution_of"]

POINTS = 400
Floats = npt.NDArray[np.float64]


class Distribution(NamedTuple):
    """``share`` (descending, 1 to 1 / n) of ``n`` requests took ``latency_s`` or more."""

    who: str
    latency_s: Floats
    share: Floats
    n: int


def distribution_of(data: RunData, address: Address) -> tuple[Distribution, ...]:
    """The selected requests, and all counted ones where those are more. Zero has no place on a logarithmic axis: shares stay
    those of all, and the curve begins above it."""
    value = latency_s(data, address.metric)
    everyone = data.counted[data.outcomes["request"]] & ~np.isnan(value)
    chosen = selected(data, address) & ~np.isnan(value)
    sides = [("selected", chosen)] if chosen.sum() == everyone.sum() else [("selected", chosen), ("all", everyone)]
    return tuple(_curve(who, np.sort(value[mask])) for who, mask in sides if mask.any())


def _curve(who: str, ordered: Floats) -> Distribution:
    """At most ``POINTS`` of the sorted values, denser towards the end, where a tail is."""
    n = len(ordered)
    tail = n - np.geomspace(1, n, POINTS // 2)
    places = np.unique(np.append(np.concatenate([np.linspace(0, n - 1, POINTS // 2), tail]).astype(np.int64), n - 1))
    values, share = ordered[places], (n - places) / n
    there = values > 0
    return Distribution(who, values[there], share[there], n)


def distribution_figure(
    curves: tuple[Distribution, ...], points: tuple[Percentile, ...], limit_s: float | None, name: str, theme: Theme
) -> dict[str, Any]:
    """Shares over latency, both logarithmic; the percentiles of the selected as points that name what lies beyond them."""
    traces: list[dict[str, Any]] = []
    looks = {"selected": (theme.blame, "solid", 2.2), "all": (theme.quiet, "dash", 1.5)}
    for each in curves:
        colour, dash, width = looks[each.who]
        traces.append(
            {
                "type": "scatter", "mode": "lines", "name": f"{each.who} (n = {count(each.n)})",
                "x": packed(each.latency_s, "f4"), "y": packed(each.share, "f4"),
                "line": {"shape": "vh", "color": colour, "dash": dash, "width": width},
                "hovertemplate": "%{y:.3~%} took %{x:,.4~r} s or more<extra></extra>",
            }
        )  # fmt: skip
    marked = [each for each in points if each.selected_s]
    traces.append(
        {
            "type": "scatter", "mode": "markers+text", "name": "percentiles", "x": [each.selected_s for each in marked],
            "y": [1 - each.point / 100 for each in marked], "textposition": "middle right", "showlegend": False,
            "text": [f" P{each.point:g}: {each.beyond} beyond" for each in marked],
            "textfont": {"size": 11, "color": theme.text}, "marker": {"size": 8, "color": theme.blame, "symbol": "diamond"},
            "hovertemplate": [f"P{each.point:g} {seconds(each.selected_s)}<extra></extra>" for each in marked],
        }
    )  # fmt: skip
    layout = plain_layout(theme, 320, f"{name}, seconds", "took as long or longer")
    layout["xaxis"] |= {"type": "log", "nticks": 8, "range": _range([each.latency_s for each in curves])}
    lowest = min((each.share[-1] for each in curves), default=1.0)
    layout["yaxis"] |= {"type": "log", "dtick": 1, "tickformat": "~%", "range": [float(np.log10(lowest)) - 0.15, 0.08]}
    if limit_s is not None:
        line = {"color": theme.line, "dash": "dash", "width": 1.5}
        layout["shapes"] = [{"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": limit_s, "x1": limit_s, "line": line}]
        place = {"x": float(np.log10(limit_s)), "y": 0.02, "yref": "paper", "yanchor": "bottom", "xanchor": "right"}
        look = {"showarrow": False, "bgcolor": theme.paper, "font": {"color": theme.text}}
        layout["annotations"] = [{**place, **look, "text": f"SLO {seconds(limit_s)}"}]
    return {"data": traces, "layout": layout}


def _range(latencies: list[Floats]) -> list[float]:
    """Logarithms of what the axis spans, with room for the names of the last percentiles."""
    low = min((float(np.log10(each[0])) for each in latencies), default=-3.0)
    high = max((float(np.log10(each[-1])) for each in latencies), default=0.0)
    return [low - 0.05, high + 0.2 * max(high - low, 0.2)]
