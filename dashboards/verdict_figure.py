"""One bar: all time in excess, split by what explains it. What nothing explains is always drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dashboards.palette import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION, Theme
from dashboards.plain_figures import plain_layout
from dashboards.verdicts import Card
from dashboards.words import percent, seconds

__all__ = ["describe_excess", "excess_figure"]

_FILLS = ((PURPLE, ""), (ORANGE, "/"), (BLUE, ""), (SKY, "x"), (GREEN, ""), (VERMILLION, "/"), (PURPLE, "-"), (ORANGE, "x"))


def excess_figure(cards: Sequence[Card], unexplained_s: float, theme: Theme) -> dict[str, Any]:
    """Seconds of request time in excess, stacked along one line; what a consequence explains is its own. Of many causes the last
    are one piece."""
    traces = []
    for (colour, hatch), card in zip(_FILLS, cards, strict=False):
        traces.append(_bar(card.id, card.excess_s, theme.fill(colour), hatch, theme))
    if rest := cards[len(_FILLS) :]:
        traces.append(_bar(_others(len(rest)), sum(card.excess_s for card in rest), theme.fill(GREEN), "+", theme))
    traces.append(_bar("not explained", unexplained_s, theme.fill(GREY), ".", theme))
    layout = plain_layout(theme, 130, "seconds of request time in excess", "")
    layout["yaxis"] = {"showticklabels": False, "fixedrange": True, "showgrid": False}
    layout |= {"barmode": "stack", "bargap": 0.2}
    layout["margin"] |= {"l": 16, "t": 30}
    return {"data": traces, "layout": layout}


def _others(n: int) -> str:
    return "1 other" if n == 1 else f"{n} others"


def _bar(name: str, value: float, colour: str, hatch: str, theme: Theme) -> dict[str, Any]:
    pattern = {"shape": hatch, "fgcolor": theme.hatch, "bgcolor": colour, "size": 6, "solidity": 0.25}
    marker = {"color": colour, "line": {"width": 1, "color": theme.paper}, **({"pattern": pattern} if hatch else {})}
    told = f"{name}: {seconds(value)}<extra></extra>"
    bar = {"type": "bar", "orientation": "h", "name": name, "x": [value], "y": ["excess"]}
    return {**bar, "marker": marker, "hovertemplate": told}


def describe_excess(cards: Sequence[Card], excess_s: float, unexplained_s: float, basis: str) -> str:
    """The bar in one sentence."""
    if excess_s <= 0:
        return f"No request took longer than allowed ({basis})."
    parts = [f"{card.id} {percent(card.share)}" for card in cards]
    parts.append(f"not explained {percent(unexplained_s / excess_s)}")
    return f"{seconds(excess_s)} of request time beyond what is allowed ({basis}): {', '.join(parts)}."
