"""Where the timeline's strips stand: sized in pixels, so that lanes of findings or a phone's legends push nothing together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dashboards.overlay import Bracket
from dashboards.palette import Theme
from dashboards.words import percent

__all__ = ["BLAME_AXIS", "OLDEST_AXIS", "STRIPS", "Strip", "timeline_layout"]


class Strip(NamedTuple):
    """Title, unit of its axis, and height in pixels."""

    title: str
    unit: str
    height: int


STRIPS = (
    Strip("Batch composition", "tokens", 165),
    Strip("Running and waiting", "requests", 120),
    Strip("KV blocks", "blocks", 135),
    Strip("Queue by what refused its head", "requests", 140),
    Strip("Iteration duration", "ms", 125),
)
"""Top to bottom; strip ``k`` has the axis ``y{k + 1}``."""
BLAME_AXIS, OLDEST_AXIS = 6, 7
"""Second axes, at the right: of selected requests that wait over the first strip, of the oldest wait over the queue."""
_BEHIND = {BLAME_AXIS: (0, "selected waiting"), OLDEST_AXIS: (3, "oldest wait, s")}
_TITLE, _LANE, _LINE, _FOOT = 26, 22, 17, 30
_MOST_LABEL = 0.2
"""Share of the width on either side in which a bracket's label is set flush with its end."""


def timeline_layout(
    theme: Theme,
    window_ns: tuple[int, int],
    brackets: Sequence[Bracket],
    *,
    second: Sequence[int],
    legends: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """``second``: which of the second axes are drawn. ``legends``: entries of each, for a phone, where they
    stand above their strips, two in a line."""
    narrow = legends is not None
    begin, end = window_ns[0] / 1e9, window_ns[1] / 1e9
    inside = [each for each in brackets if each.t_s[0] < end and each.t_s[1] > begin]
    heads = [_TITLE + _LINE * math.ceil((legends or {}).get(f"legend{at + 1 if at else ''}", 0) / 2) for at in range(len(STRIPS))]
    lanes = _LANE * len(inside)
    tall = lanes + sum(heads) + sum(strip.height for strip in STRIPS)
    layout: dict[str, Any] = {
        "height": tall + _FOOT + 8,
        "margin": {"l": 48, "r": 8, "t": 8, "b": _FOOT} if narrow else {"l": 70, "r": 170, "t": 8, "b": _FOOT},
        "paper_bgcolor": theme.paper,
        "plot_bgcolor": theme.paper,
        "font": {"color": theme.text, "size": 12, "family": "system-ui, sans-serif"},
        "hovermode": "x unified",
        "hoversubplots": "axis",
        "hoverlabel": {"bgcolor": theme.paper, "bordercolor": theme.quiet, "font": {"color": theme.text}},
        "dragmode": "zoom",
        "xaxis": _time_axis(theme, begin, end, 0.87 if narrow else 0.94, 4 if narrow else 8),
        "annotations": [],
        "shapes": [],
    }
    below = lanes
    for at, (strip, head) in enumerate(zip(STRIPS, heads, strict=True)):
        low, high = 1 - (below + head + strip.height) / tall, 1 - (below + head) / tall
        _strip(layout, at, strip, theme, (max(low, 0.0), high), head / tall, narrow)
        below += head + strip.height
    for axis in second:
        layout[f"yaxis{axis}"] = _second_axis(axis, theme)
    for lane, each in enumerate(inside):
        _bracket(layout, each, theme, 1 - (lane + 0.5) * _LANE / tall, 5 / tall, (begin, end))
    return layout


def _time_axis(theme: Theme, begin: float, end: float, right: float, ticks: int) -> dict[str, Any]:
    return {
        "range": [begin, end], "domain": [0, right], "anchor": "y5", "gridcolor": theme.grid, "zeroline": False, "nticks": ticks,
        "ticksuffix": " s", "hoverformat": ",.4f", "exponentformat": "none", "separatethousands": True, "showspikes": True,
        "uirevision": f"{begin}-{end}", "spikemode": "across", "spikethickness": 1, "spikecolor": theme.quiet,
        "spikedash": "solid",
    }  # fmt: skip


def _strip(
    layout: dict[str, Any], at: int, strip: Strip, theme: Theme, domain: tuple[float, float], head: float, narrow: bool
) -> None:
    axis = "" if at == 0 else str(at + 1)
    title = {"text": strip.unit, "font": {"size": 11, "color": theme.quiet}}
    layout[f"yaxis{axis}"] = {
        "domain": list(domain), "anchor": "x", "title": title, "gridcolor": theme.grid, "zeroline": False, "rangemode": "tozero",
        "fixedrange": True, "nticks": 5, "separatethousands": True, "exponentformat": "none", "automargin": False,
    }  # fmt: skip
    place: dict[str, Any] = {"x": 1.0, "xanchor": "left", "y": domain[1], "yanchor": "top"}
    if narrow:
        place = {"x": 0, "xanchor": "left", "y": domain[1], "yanchor": "bottom", "orientation": "h"}
        place |= {"entrywidth": 0.48, "entrywidthmode": "fraction"}
    look = {"bgcolor": "rgba(0,0,0,0)", "font": {"size": 11}, "tracegroupgap": 0, "traceorder": "normal"}
    layout[f"legend{axis}"] = place | look
    layout["annotations"].append(
        {
            "text": f"<b>{strip.title}</b>", "xref": "paper", "yref": "paper", "x": 0, "y": domain[1] + head, "xanchor": "left",
            "yanchor": "top", "showarrow": False, "font": {"size": 13, "color": theme.text},
        }
    )  # fmt: skip


def _second_axis(axis: int, theme: Theme) -> dict[str, Any]:
    strip, title = _BEHIND[axis]
    colour = theme.blame if axis == BLAME_AXIS else theme.waiting
    small = {"size": 11, "color": colour}
    return {
        "overlaying": "y" if strip == 0 else f"y{strip + 1}", "side": "right", "anchor": "x", "showgrid": False, "nticks": 4,
        "tickmode": "auto", "title": {"text": title, "font": small, "standoff": 2}, "tickfont": small, "rangemode": "tozero",
        "zeroline": False, "fixedrange": True, "exponentformat": "none", "separatethousands": True, "automargin": False,
    }  # fmt: skip


def _bracket(layout: dict[str, Any], each: Bracket, theme: Theme, y: float, tick: float, window: tuple[float, float]) -> None:
    """A finding over the time in which it shows: a line with ends where they lie in the window, and its name on it."""
    begin, end = window
    x0, x1 = max(each.t_s[0], begin), min(each.t_s[1], end)
    line = {"color": theme.text if each.chosen else theme.quiet, "width": 3 if each.chosen else 1.5}
    ends = [x for x, there in ((x0, each.t_s[0] >= begin), (x1, each.t_s[1] <= end)) if there]
    spans = [(x0, x1, y, y), *((x, x, y - tick, y + tick) for x in ends)]
    for a, b, low, high in spans:
        layout["shapes"].append(
            {"type": "line", "xref": "x", "yref": "paper", "x0": a, "x1": b, "y0": low, "y1": high, "line": line}
        )
    middle = (x0 + x1) / 2
    share = (middle - begin) / (end - begin)
    anchor = "left" if share < _MOST_LABEL else "right" if share > 1 - _MOST_LABEL else "center"
    layout["annotations"].append(
        {
            "text": f"<b>{each.id}</b> {percent(each.share)}", "xref": "x", "yref": "paper", "y": y, "yanchor": "middle",
            "x": {"left": max(x0, begin), "right": min(x1, end), "center": middle}[anchor], "xanchor": anchor,
            "showarrow": False, "bgcolor": theme.paper, "font": {"size": 12, "color": theme.text},
        }
    )  # fmt: skip
