"""Where the time of the selected requests went, against the rest: every part of the exact attribution, seconds a request."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dashboards.address import Address
from dashboards.palette import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION, Theme, reason_fill
from dashboards.plain_figures import plain_layout
from dashboards.selection import selected
from dashboards.words import count, percent, seconds
from tracekit.diagnosis import Attribution, RunData
from tracekit.diagnosis.attribution import PARTS

__all__ = ["Decomposed", "Part", "decompose", "describe_parts", "parts_figure"]

SIDES = {"ttft": "first", "tpot": "later", "gap": "later", "e2e": "both"}
SIDE_NAMES = {
    "first": "time to the first token",
    "later": "time from the first to the last token",
    "both": "time to the last token",
}
LEAST = 0.001
"""Of either side's time: smaller parts are in the table only."""
_FILLS = {
    "dispatch": (GREY, ""), "ingress": (GREY, "/"), "egress": (GREY, "x"), "prefill": (BLUE, "x"),
    "prefill_shared": (ORANGE, "."),
    "prefill_wait": (ORANGE, "/"), "recompute": (VERMILLION, "/"), "preempted": (VERMILLION, ""), "swapped": (VERMILLION, "."),
    "paused": (VERMILLION, "x"), "transfer_wait": (PURPLE, "/"), "transfer": (PURPLE, ""), "decode": (BLUE, ""),
    "first_step": (BLUE, "."), "interference": (BLUE, "/"), "stalled": (SKY, "/"), "batch_hold": (GREEN, "."),
}  # fmt: skip


class Part(NamedTuple):
    """One part: its name, what it means, and seconds a request: mean and median of the selected and of the rest."""

    name: str
    told: str
    selected_s: float
    rest_s: float | None
    selected_median_s: float
    rest_median_s: float | None


class Decomposed(NamedTuple):
    """``side``: first, later or both; ``total``: mean seconds of the selected and of the rest, what the parts sum to;
    ``n``: requests of either."""

    side: str
    parts: tuple[Part, ...]
    total_s: tuple[float, float | None]
    n: tuple[int, int]


def decompose(data: RunData, found: Attribution, address: Address) -> Decomposed | None:
    """The largest part of the selected first, what none of them accounts for last, even where it is nothing. ``None`` where no
    request is selected."""
    chosen = selected(data, address)
    rest = data.counted[data.outcomes["request"]] & ~chosen
    if not chosen.any():
        return None
    side = SIDES[address.metric]
    matrix = {"first": found.first, "later": found.later, "both": found.first + found.later}[side] / 1e9
    columns = [matrix[mask] if mask.any() else None for mask in (chosen, rest)]
    parts = [_part(name, k, columns) for k, name in enumerate(found.parts) if name != "not_explained"]
    kept = sorted((each for each in parts if each.selected_s or each.rest_s), key=lambda each: -each.selected_s)
    if "not_explained" in found.parts:
        kept.append(_part("not_explained", found.parts.index("not_explained"), columns))
    else:
        none = None if columns[1] is None else 0.0
        kept.append(Part("not_explained", PARTS["not_explained"], 0.0, none, 0.0, none))
    own, other = (None if each is None else float(each.sum(axis=1).mean()) for each in columns)
    return Decomposed(side, tuple(kept), (own or 0.0, other), (int(chosen.sum()), int(rest.sum())))


def _part(name: str, k: int, columns: list[Any]) -> Part:
    kind, _, reason = name.partition(".")
    told = PARTS[kind].replace("; after the dot why the head of its queue was refused", "").replace("; after the dot why", "")
    told += f": {reason.replace('_', ' ')}" if reason else ""
    (mean, median), (rest, rest_median) = (
        (None, None) if each is None else (float(each[:, k].mean()), float(np.median(each[:, k]))) for each in columns
    )
    return Part(name, told, mean or 0.0, rest, median or 0.0, rest_median)


def describe_parts(found: Decomposed) -> str:
    """One sentence: what took the selected requests longest, and the rest."""
    total, other = found.total_s
    what = SIDE_NAMES[found.side]
    largest = [each for each in found.parts if each.selected_s > LEAST * total][:3]
    told = ", ".join(f"{each.name} {seconds(each.selected_s)} ({percent(each.selected_s / total)})" for each in largest)
    said = f"Of {seconds(total)} of {what} (mean of {count(found.n[0])} selected requests): {told or 'nothing'}."
    if other is None:
        return said
    beyond = max(found.parts, key=lambda each: each.selected_s - (each.rest_s or 0.0))
    gap = f" Most of the difference is {beyond.name}." if beyond.selected_s > (beyond.rest_s or 0.0) else ""
    return f"{said} The other {count(found.n[1])}: {seconds(other)}.{gap}"


def parts_figure(found: Decomposed, theme: Theme) -> dict[str, Any]:
    """Two bars on one axis, the selected above the rest, cut into the same parts in the same order."""
    sides = ["selected"] if found.total_s[1] is None else ["the rest", "selected"]
    whole = max(found.total_s[0], found.total_s[1] or 0.0)
    traces = []
    for each in found.parts:
        values = [each.selected_s] if len(sides) == 1 else [each.rest_s or 0.0, each.selected_s]
        if max(values) < LEAST * whole and each.name != "not_explained":
            continue
        colour, hatch = _fill(each.name)
        colour = theme.decode if colour == BLUE else theme.fill(colour)
        pattern = {"shape": hatch, "fgcolor": theme.hatch, "bgcolor": colour, "size": 6, "solidity": 0.25}
        marker = {"color": colour, "line": {"width": 1, "color": theme.paper}, **({"pattern": pattern} if hatch else {})}
        traces.append(
            {
                "type": "bar", "orientation": "h", "name": each.name, "x": values, "y": sides, "marker": marker,
                "hovertemplate": f"{each.name} %{{x:,.4~r}} s, mean<br>{each.told}<extra></extra>",
            }
        )  # fmt: skip
    lines = -(-len(traces) // 4)
    layout = plain_layout(theme, 130 + 40 * len(sides) + 19 * lines, "mean seconds a request", "")
    layout["legend"] |= {"traceorder": "normal"}
    layout["margin"] |= {"t": 14 + 19 * lines}
    layout["yaxis"] = {"fixedrange": True, "showgrid": False, "automargin": True}
    return {"data": traces, "layout": layout | {"barmode": "stack", "bargap": 0.25}}


def _fill(name: str) -> tuple[str, str]:
    """Colour and hatch: a wait in a queue has those of the reason, as on the timeline."""
    kind, _, reason = name.partition(".")
    if kind in ("queue", "decode_queue"):
        return reason_fill(reason)
    return _FILLS.get(kind, (GREY, "." if name == "not_explained" else "|"))
