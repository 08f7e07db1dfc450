"""Every request of two runs as a point: by which of them it was slower, and of which class it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from dashboards.packing import packed
from dashboards.palette import Theme
from dashboards.plain_figures import plain_layout

__all__ = ["SYMBOLS", "pair_figure"]

SYMBOLS = ("circle", "square", "diamond", "cross", "x", "star")
"""Of classes, those with most requests first; the last one is of all others. Filled: slower; open: faster or the same."""
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


def pair_figure(
    before: Floats, after: Floats, requests: npt.NDArray[np.int64], theme: Theme, names: tuple[str, str],
    of: npt.NDArray[np.object_] | None = None, most: int = 4000,
) -> dict[str, Any]:  # fmt: skip
    """Log over log; above the diagonal a request lost. Of many the ones that moved most are drawn. ``of``: each one's class,
    shown by the symbol, as colour and filling show who lost."""
    there = (before > 0) & (after > 0)
    before, after, requests = before[there], after[there], requests[there]
    moved = np.abs(np.log(after / before)) if len(before) else before
    keep = np.argsort(-moved, kind="stable")[:most]
    lost = after[keep] > before[keep]
    traces: list[dict[str, Any]] = []
    for name, mask, symbol, slower in _groups(lost, None if of is None else of[there][keep]):
        chosen = keep[mask]
        colour = theme.fill(theme.prefill) if slower else theme.decode
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": packed(before[chosen], "f4"),
                "y": packed(after[chosen], "f4"),
                "customdata": packed(requests[chosen], "i4"),
                "marker": {"color": colour, "symbol": symbol, "size": 7, "opacity": 0.7},
                "hovertemplate": f"request %{{customdata}}, {name}: %{{x:,.4~g}} s, then %{{y:,.4~g}} s<extra></extra>",
            }
        )
    layout = plain_layout(theme, 420, f"{names[0]}, s", f"{names[1]}, s")
    for axis in ("xaxis", "yaxis"):
        layout[axis]["type"] = "log"
    if len(before):
        low, high = float(min(before.min(), after.min())), float(max(before.max(), after.max()))
        line = {"color": theme.quiet, "dash": "dot"}
        layout["shapes"] = [{"type": "line", "x0": low, "x1": high, "y0": low, "y1": high, "line": line}]
    return {"data": traces, "layout": layout}


def _groups(lost: Mask, of: npt.NDArray[np.object_] | None) -> Iterator[tuple[str, Mask, str, bool]]:
    """Name, which points, symbol, and whether they are the slower ones; what nobody is in is left out."""
    if of is None:
        yield "▲ slower", lost, "triangle-up", True
        yield "▼ faster or the same", ~lost, "triangle-down", False
        return
    named = np.array(["no class" if each is None else str(each) for each in of], np.object_)
    classes, counts = np.unique(named.astype(str), return_counts=True)
    order = classes[np.lexsort((classes, -counts))].tolist()
    kinds: list[tuple[str, Mask]] = [(name, named == name) for name in order]
    if len(kinds) > len(SYMBOLS):
        rest = np.isin(named.astype(str), order[len(SYMBOLS) - 1 :])
        kinds = [*kinds[: len(SYMBOLS) - 1], (f"{len(order) - len(SYMBOLS) + 1} other classes", rest)]
    for (name, mine), symbol in zip(kinds, SYMBOLS, strict=False):
        for slower, word in ((True, "▲ slower"), (False, "▼ faster or the same")):
            mask = mine & (lost == slower)
            if mask.any():
                yield f"{name}, {word}", mask, symbol if slower else f"{symbol}-open", slower
