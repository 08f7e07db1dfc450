"""Plotly's script, as pages and standalone reports carry it.

Plotly's own build for two-dimensional charts (``plotly_build``, as it is published beside the full one, its licence with it) is
a third of the full script, and a browser reads a script whole before it draws anything. A test holds its version to the
package's.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

__all__ = ["plotly_source"]

_BUILD = Path(__file__).parent / "plotly_build" / "plotly-cartesian.min.js"


@cache
def plotly_source() -> str:
    """The script; the full one where the smaller build is not there."""
    if _BUILD.is_file():
        return _BUILD.read_text(encoding="utf-8")
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())
