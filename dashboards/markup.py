"""Pieces of pages."""

from __future__ import annotations

from typing import Any

from dash import html

__all__ = ["aria", "control"]


def aria(label: str, **more: str) -> dict[str, Any]:
    """``aria-label`` and other ARIA attributes, as keywords for a component."""
    return {"aria-label": label, **{f"aria-{name}": value for name, value in more.items()}}


def control(label: str, target: str, component: Any, **more: Any) -> Any:
    """A control under its label; ``target`` is the control's id."""
    return html.Div([html.Label(label, htmlFor=target), component], className="control", **more)
