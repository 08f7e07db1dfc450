"""Plotly's script, as pages and standalone reports carry it.

``plotly_build`` has it with the kinds of traces that are drawn here (``build.mjs`` makes it of the published sources, with the
licences of all that is in it): a quarter of the full script, and a quarter of the time in which a browser reads the one that is
published for two-dimensional charts, before which it draws nothing. A test holds its version to the package's.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

__all__ = ["plotly_source"]

_BUILD = Path(__file__).parent / "plotly_build" / "plotly-charts.min.js"


@cache
def plotly_source() -> str:
    """The script; the full one where the smaller build is not there."""
    if _BUILD.is_file():
        return _BUILD.read_text(encoding="utf-8")
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())
