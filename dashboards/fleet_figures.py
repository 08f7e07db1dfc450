"""The figures of the Fleet page: plain dicts, pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dashboards.fleet_rows import Heat, Imbalance, LinkUse, Stages
from dashboards.packing import packed
from dashboards.palette import Theme
from dashboards.plain_figures import plain_layout

__all__ = ["heat_figure", "imbalance_figure", "link_figure", "stages_figure"]


def heat_figure(heat: Heat, theme: Theme) -> dict[str, Any]:
    """Engines over time, all on one scale (cividis); idle is left empty where there is nothing to average."""
    middle = (heat.edges_s[1:] + heat.edges_s[:-1]) / 2
    percent = heat.what == "kv"
    trace = {
        "type": "heatmap", "x": packed(middle, "f4"), "y": list(heat.engines),
        "z": {**packed(heat.values, "f4"), "shape": _shape(heat)},
        "zmin": 0, "zmax": heat.most or 1.0, "colorscale": "Cividis", "hoverongaps": False,
        "colorbar": {"title": {"text": heat.unit}, "thickness": 14, **({"tickformat": ".0%"} if percent else {})},
        "hovertemplate": f"%{{y}} at %{{x:,.4~g}} s: %{{z:{'.1%' if percent else ',.3~g'}}}<extra></extra>",
    }  # fmt: skip
    layout = plain_layout(theme, 110 + 26 * len(heat.engines), "seconds", "")
    layout["yaxis"] |= {"type": "category", "autorange": "reversed", "automargin": True}
    return {"data": [trace], "layout": layout}


def imbalance_figure(pools: Sequence[Imbalance], theme: Theme) -> dict[str, Any]:
    """Fullest engine over the mean, over time; 1 is even."""
    looks = ((theme.decode, "solid"), (theme.fill(theme.prefill), "dash"))
    traces = []
    for pool, (colour, dash) in zip(pools, looks, strict=False):
        held = np.append(pool.ratio, pool.ratio[-1:])
        line = {"shape": "hv", "width": 1.5, "color": colour, "dash": dash}
        traces.append(
            {
                "type": "scatter", "mode": "lines", "name": pool.pool, "x": packed(pool.edges_s, "f4"), "y": packed(held, "f4"),
                "line": line, "hovertemplate": f"{pool.pool} %{{y:.2f}}<extra></extra>",
            }
        )  # fmt: skip
    layout = plain_layout(theme, 240, "seconds", "fullest / mean", hovermode="x unified")
    rule = {"color": theme.quiet, "dash": "dot", "width": 1}
    layout["shapes"] = [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1, "line": rule}]
    return {"data": traces, "layout": layout}


def stages_figure(groups: Sequence[Stages], theme: Theme) -> dict[str, Any]:
    """One bar a group: its mean TTFT by stage, in the order in which they happen."""
    looks = {
        "prefill queue": (theme.waiting, "/"), "prefill": (theme.fill(theme.prefill), ""), "transfer wait": ("#CC79A7", "/"),
        "transfer": ("#CC79A7", ""), "decode queue": (theme.fill(theme.cached), "/"),
        "first decode iteration": (theme.decode, ""),
        "other": (theme.quiet, "x"),
    }  # fmt: skip
    labels = [group.group for group in groups]
    traces = []
    for at, name in enumerate(name for name, _ in groups[0].seconds):
        colour, hatch = looks.get(name, (theme.quiet, "x"))
        marker: dict[str, Any] = {"color": colour, "line": {"color": theme.line, "width": 0.6}}
        if hatch:
            marker["pattern"] = {"shape": hatch, "fgcolor": theme.hatch, "bgcolor": colour, "size": 5, "solidity": 0.25}
        values = [group.seconds[at][1] for group in groups]
        traces.append(
            {
                "type": "bar", "orientation": "h", "name": name, "y": labels, "x": values, "marker": marker,
                "hovertemplate": f"{name} %{{x:,.4~g}} s<extra>%{{y}}</extra>",
            }
        )  # fmt: skip
    layout = plain_layout(theme, 130 + 34 * len(groups), "mean TTFT, seconds", "", barmode="stack")
    layout["yaxis"] |= {"type": "category", "categoryorder": "array", "categoryarray": labels[::-1], "automargin": True}
    layout["legend"] |= {"traceorder": "normal"}
    return {"data": traces, "layout": layout}


def link_figure(link: LinkUse, theme: Theme) -> dict[str, Any]:
    """Transfers under way and waiting, and what was moved, over time."""
    traces = []
    for name, values, colour, dash, axis in (
        ("under way", link.moving, theme.decode, "solid", "y"),
        ("waiting for the link or the target", link.asking, theme.waiting, "dash", "y"),
        ("moved, GB/s", link.gb_per_s, theme.text, "dot", "y2"),
    ):
        traces.append(
            {
                "type": "scatter", "mode": "lines", "name": name, "x": packed(link.edges_s, "f4"),
                "y": packed(np.append(values, values[-1:]), "f4"), "yaxis": axis,
                "line": {"shape": "hv", "width": 1.5, "color": colour, "dash": dash},
                "hovertemplate": f"{name} %{{y:,.3~g}}<extra></extra>",
            }
        )  # fmt: skip
    layout = plain_layout(theme, 280, "seconds", "transfers", hovermode="x unified")
    layout["yaxis2"] = {"overlaying": "y", "side": "right", "title": {"text": "GB/s"}, "rangemode": "tozero", "showgrid": False}
    layout["margin"] = {**layout["margin"], "r": 60}
    return {"data": traces, "layout": layout}


def _shape(heat: Heat) -> str:
    return f"{heat.values.shape[0]}, {heat.values.shape[1]}"
