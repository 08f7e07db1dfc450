"""The pages: each says its path and title, lays itself out, and registers what answers its controls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dash import Dash
from dash.development.base_component import Component

from dashboards.pages import timeline
from dashboards.queries import RunBook

__all__ = ["PAGES", "Page"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """``path`` without a trailing slash; ``register`` is called once per app, before it serves."""

    path: str
    title: str
    layout: Callable[[], Component]
    register: Callable[[Dash, RunBook], None]


PAGES = (Page(path="/timeline", title="Timeline", layout=timeline.layout, register=timeline.register),)
"""In the order of the navigation; the first is the landing page."""
