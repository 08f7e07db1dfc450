"""Pieces of pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import dcc, html

__all__ = ["GRAPH", "aria", "control", "data_table", "figure_with_table"]


GRAPH: Any = {
    "displaylogo": False,
    "showSendToCloud": False,
    "responsive": True,
    "modeBarButtonsToRemove": ["select2d", "lasso2d"],
}
"""How every figure behaves; nothing of it can be sent anywhere."""
_MOST_ROWS = 500


def aria(label: str, **more: str) -> dict[str, Any]:
    """``aria-label`` and other ARIA attributes, as keywords for a component."""
    return {"aria-label": label, **{f"aria-{name}": value for name, value in more.items()}}


def control(label: str, target: str, component: Any, **more: Any) -> Any:
    """A control under its label; ``target`` is the control's id."""
    return html.Div([html.Label(label, htmlFor=target), component], className="control", **more)


def data_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, caption: str, numeric: int, **more: Any) -> Any:
    """A plain table that scrolls sideways where it must. Cells from column ``numeric`` on are numbers, set flush right."""
    head = html.Tr([html.Th(name, scope="col", className="number" if at >= numeric else "") for at, name in enumerate(columns)])
    body = [html.Tr([html.Td(cell, className="number" if at >= numeric else "") for at, cell in enumerate(row)]) for row in rows]
    table = html.Table([html.Caption(caption), html.Thead(head), html.Tbody(body)], className="data", **more)
    return html.Div(table, className="wide", tabIndex="0", role="region", **aria(caption))


def figure_with_table(
    name: str, figure: dict[str, Any], said: str, head: Sequence[str], rows: Sequence[Sequence[Any]], *, opened: bool = False
) -> Any:
    """A figure under the sentence that says it, with the drawn numbers as a table behind a switch (``opened``: it is seen at
    once). ``name``: its id."""
    more = f" (the first {_MOST_ROWS})" if len(rows) > _MOST_ROWS else ""
    table = data_table(head, rows[:_MOST_ROWS], caption=f"The drawn numbers{more}", numeric=1)
    return html.Figure(
        [
            html.Figcaption(said, id=f"{name}-said", className="summary"),
            html.Div(dcc.Graph(id=name, figure=figure, config=GRAPH), role="group", **aria(said)),
            html.Details([html.Summary("The same as a table"), table], open=opened),
        ],
        className="drawn",
    )
