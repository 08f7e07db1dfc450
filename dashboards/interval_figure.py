"""Changes with their intervals, one a line: what experiments, comparisons and the tuner's proofs look like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dashboards.palette import Theme
from dashboards.plain_figures import plain_layout

__all__ = ["Whisker", "interval_figure"]

_LOOKS = {"better": "▲ better", "worse": "▼ worse", "unclear": "within noise, or cannot tell"}


class Whisker(NamedTuple):
    """A change as a point between ``low`` and ``high`` (``None``: no interval). ``verdict``: better, worse, anything else."""

    label: str
    estimate: float
    low: float | None
    high: float | None
    verdict: str
    note: str = ""


def interval_figure(rows: Sequence[Whisker], theme: Theme, x: str, *, ratio: bool = False) -> dict[str, Any]:
    """Points with whiskers around no change. Changes are shares (0.1: 10 %), drawn in per cent around 0, or with ``ratio`` as
    multiples (0.1: x1.1) around 1 on a logarithmic axis."""
    scale = 1.0 if ratio else 100.0
    shift = 1.0 if ratio else 0.0
    value = "x%{x:,.4~g}" if ratio else "%{x:+,.4~g} %"
    looks = {
        "better": (theme.decode, "triangle-up"), "worse": (theme.fill(theme.prefill), "triangle-down"),
        "unclear": (theme.quiet, "circle-open"),
    }  # fmt: skip
    traces = []
    for kind, (colour, symbol) in looks.items():
        own = [row for row in rows if (row.verdict if row.verdict in looks else "unclear") == kind]
        if not own:
            continue
        up = [0.0 if row.high is None else scale * (row.high - row.estimate) for row in own]
        down = [0.0 if row.low is None else scale * (row.estimate - row.low) for row in own]
        traces.append(
            {
                "type": "scatter", "mode": "markers", "name": _LOOKS[kind], "x": [shift + scale * row.estimate for row in own],
                "y": [row.label for row in own], "customdata": [row.note for row in own],
                "error_x": {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "color": colour, "thickness":
                1.6}, "marker": {"color": colour, "symbol": symbol, "size": 10},
                "hovertemplate": f"%{{y}}: {value} %{{customdata}}<extra></extra>",
            }
        )  # fmt: skip
    layout = plain_layout(theme, 120 + 28 * len(rows), x, "")
    labels = list(dict.fromkeys(row.label for row in rows))
    layout["yaxis"] |= {"type": "category", "categoryorder": "array", "categoryarray": labels[::-1], "automargin": True}
    if ratio:
        layout["xaxis"] |= {"type": "log", "tickprefix": "x"}
        line = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": 1, "x1": 1, "line": {"color": theme.line, "width": 1.5}}
        layout["shapes"] = [line]
    else:
        layout["xaxis"] |= {"zeroline": True, "zerolinecolor": theme.line, "zerolinewidth": 1.5}
    return {"data": traces, "layout": layout}
