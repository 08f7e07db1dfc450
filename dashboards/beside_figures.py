"""Two runs in figures: how their latencies are distributed, and their queues over time, one above the other."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dashboards.packing import packed
from dashboards.palette import Theme
from dashboards.plain_figures import plain_layout
from dashboards.words import count, seconds

__all__ = ["POINTS", "Queues", "queues_figure", "queues_rows", "tails_figure", "tails_rows"]

Floats = npt.NDArray[np.float64]
POINTS = (50, 90, 95, 99, 99.9)
MOST = 400
"""Points of a curve."""
_NAMES = ("this run", "the other")


class Queues(NamedTuple):
    """Of both runs, between the same edges (seconds): how many requests wait and how many run, on average."""

    edges_s: Floats
    waiting: tuple[Floats, Floats]
    running: tuple[Floats, Floats]


def tails_figure(before: Floats, after: Floats, name: str, theme: Theme) -> dict[str, Any]:
    """The share of requests that took as long or longer, over latency; both axes logarithmic, so that a tail is seen."""
    looks = ((theme.decode, "solid", 2.2), (theme.fill(theme.prefill), "dash", 2.2))
    traces = []
    for who, values, (colour, dash, width) in zip(_NAMES, (before, after), looks, strict=True):
        n, ordered = len(values), np.sort(values)
        at = _places(n)
        at = at[ordered[at] > 0]
        traces.append(
            {
                "type": "scatter", "mode": "lines", "name": f"{who} (n = {count(n)})", "x": packed(ordered[at], "f4"),
                "y": packed((n - at) / max(n, 1), "f4"), "line": {"shape": "vh", "color": colour, "dash": dash, "width": width},
                "hovertemplate": "%{y:.3~%} took %{x:,.4~r} s or more<extra></extra>",
            }
        )  # fmt: skip
    layout = plain_layout(theme, 320, f"{name}, seconds", "took as long or longer")
    layout["xaxis"] |= {"type": "log", "nticks": 8}
    layout["yaxis"] |= {"type": "log", "dtick": 1, "tickformat": "~%"}
    return {"data": traces, "layout": layout}


def _places(n: int) -> npt.NDArray[np.int64]:
    """Of the sorted values those that are drawn, denser towards the end."""
    spread = np.linspace(0, n - 1, MOST // 2), n - np.geomspace(1, max(n, 1), MOST // 2)
    return np.unique(np.concatenate(spread).astype(np.int64)) if n else np.zeros(0, np.int64)


def tails_rows(before: Floats, after: Floats) -> list[list[str]]:
    """Percentile, both values, and how many requests lie beyond it, since that is what it rests on."""
    rows = []
    for point in POINTS if len(before) else ():
        one, other = (float(np.percentile(values, point)) for values in (before, after))
        beyond = int((before > one).sum())
        rows.append([f"P{point:g}", seconds(one), seconds(other), count(beyond)])
    return rows


def queues_figure(found: Queues, theme: Theme) -> dict[str, Any]:
    """Two strips on one axis of time, drawn to the same scale: the queues of this run above those of the other."""
    layout = plain_layout(theme, 320, "", "")
    most = 1.05 * max(float(values.max(initial=1.0)) for values in (*found.waiting, *found.running))
    x = packed(found.edges_s, "f8")
    traces = []
    for at, who in enumerate(_NAMES):
        axis = "" if at == 0 else "2"
        layout[f"yaxis{axis}"] = {
            **layout["yaxis"], "domain": [0.54, 1] if at == 0 else [0, 0.46], "range": [0, most], "title": {"text": who},
            "nticks": 4,
        }  # fmt: skip
        looks = (("running", found.running[at], theme.decode, "solid"), ("waiting", found.waiting[at], theme.waiting, "dot"))
        for name, values, colour, dash in looks:
            traces.append(
                {
                    "type": "scatter", "mode": "lines", "name": f"{name}, {who}", "x": x, "yaxis": f"y{axis}",
                    "y": packed(np.append(values, values[-1:]), "f4"), "line": {"shape": "hv", "color": colour, "dash": dash},
                    "hovertemplate": f"{name}, {who} %{{y:,.4~r}}<extra></extra>",
                }
            )  # fmt: skip
    layout["xaxis"] |= {"ticksuffix": " s", "anchor": "y2"}
    layout["hovermode"] = "x unified"
    return {"data": traces, "layout": layout}


def queues_rows(found: Queues, pieces: int = 20) -> list[list[str]]:
    """The same in stretches of equal length."""
    cuts = np.unique(np.linspace(0, len(found.edges_s) - 1, pieces + 1).astype(np.int64))
    rows = []
    for begin, end in zip(cuts, cuts[1:], strict=False):
        means = [float(values[begin:end].mean()) for values in (*found.running, *found.waiting)]
        span = f"{found.edges_s[begin]:,.1f} to {found.edges_s[end]:,.1f} s"
        rows.append([span, *(f"{value:,.1f}" for value in means)])
    return rows
