"""Lives of requests as a figure: a row each, from the arrival on, phases in fixed colours and hatches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dashboards.palette import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION, Theme
from dashboards.plain_figures import plain_layout
from dashboards.request_rows import Life, Stretch
from dashboards.words import seconds

__all__ = ["PHASE_FILLS", "describe_lives", "waterfall_figure"]

PHASE_FILLS = {
    "dispatch": (GREY, "/"),
    "ingress": (GREY, "."),
    "queued": (PURPLE, ""),
    "prefill": (ORANGE, ""),
    "prefill_wait": (ORANGE, "/"),
    "decode": (BLUE, ""),
    "stalled": (VERMILLION, ""),
    "preempted": (VERMILLION, "x"),
    "swapped": (VERMILLION, "."),
    "paused": (VERMILLION, "/"),
    "transfer_wait": (GREEN, "/"),
    "transfer": (GREEN, ""),
    "decode_queue": (PURPLE, "/"),
    "batch_hold": (GREY, ""),
    "egress": (SKY, ""),
}
"""Colour and hatch of each phase: waiting for admission purple, prefill orange, decode blue, standing still vermillion."""
_ROW, _TOP = 22, 70


def waterfall_figure(lives: Sequence[Life], theme: Theme) -> dict[str, Any]:
    """One bar trace a phase; requests from top to bottom in the order given, seconds since arrival along the other axis."""
    names = [life.label for life in lives]
    traces = []
    for phase, (colour, hatch) in PHASE_FILLS.items():
        parts = [(life.label, each) for life in lives for each in life.stretches if each.phase == phase]
        if not parts:
            continue
        fill = theme.fill(colour)
        marker: dict[str, Any] = {"color": fill, "line": {"width": 0.5, "color": theme.paper}}
        if hatch:
            marker["pattern"] = {"shape": hatch, "fgcolor": theme.hatch, "bgcolor": fill, "size": 5, "solidity": 0.3}
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": phase.replace("_", " "),
                "y": [label for label, _ in parts],
                "x": [each.end_s - each.begin_s for _, each in parts],
                "base": [each.begin_s for _, each in parts],
                "marker": marker,
                "customdata": [_told(each) for _, each in parts],
                "hovertemplate": "%{y} %{customdata}<extra></extra>",
            }
        )
    layout = plain_layout(theme, _TOP + 40 + _ROW * max(len(names), 3), "seconds since arrival", "")
    layout["margin"]["t"] = _TOP - 20
    layout["xaxis"]["rangemode"] = "tozero"
    category = {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": names[::-1],
        "fixedrange": True,
        "automargin": True,
    }
    layout |= {"barmode": "overlay", "bargap": 0.25, "yaxis": category, "dragmode": "zoom"}
    return {"data": traces, "layout": layout}


def _told(each: Stretch) -> str:
    why = f" ({each.reason.replace('_', ' ')})" if each.reason else ""
    return f"{each.phase.replace('_', ' ')}{why}: {seconds(each.end_s - each.begin_s)}, from {seconds(each.begin_s)}"


def describe_lives(lives: Sequence[Life]) -> str:
    """One sentence: where these requests' time went."""
    sums: dict[str, float] = {}
    for life in lives:
        for each in life.stretches:
            sums[each.phase] = sums.get(each.phase, 0.0) + each.end_s - each.begin_s
    total = sum(sums.values())
    if total <= 0:
        return "No request to draw."
    ranked = sorted(sums.items(), key=lambda item: -item[1])
    shares = ", ".join(f"{phase.replace('_', ' ')} {spent / total:.0%}" for phase, spent in ranked[:5])
    return f"{len(lives)} requests drawn, {seconds(total)} of request time: {shares}."
