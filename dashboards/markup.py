"""Pieces of pages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dash import dcc, html

__all__ = [
    "GRAPH", "aria", "chart_exports", "control", "copy_button", "data_table", "drawn_numbers", "figure_with_table", "told_table",
]  # fmt: skip


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


def data_table(columns: Sequence[Any], rows: Sequence[Sequence[Any]], *, caption: str, numeric: int, **more: Any) -> Any:
    """A plain table that scrolls sideways where it must. Cells from column ``numeric`` on are numbers, set flush right."""
    head = html.Tr([html.Th(name, scope="col", className="number" if at >= numeric else "") for at, name in enumerate(columns)])
    body = [html.Tr([html.Td(cell, className="number" if at >= numeric else "") for at, cell in enumerate(row)]) for row in rows]
    table = html.Table([html.Caption(caption), html.Thead(head), html.Tbody(body)], className="data", **more)
    return html.Div(table, className="wide", tabIndex="0", role="region", **aria(caption))


def copy_button(text: str, label: str, title: str = "") -> Any:
    """A button, so that keys reach it, that copies ``text`` (``assets/charts.js``) and says that it has."""
    data: dict[str, Any] = {"data-copy": text}
    return html.Button(label, type="button", className="copy", title=title or label, **data)


def figure_with_table(
    name: str, figure: dict[str, Any], said: str, head: Sequence[str], rows: Sequence[Sequence[Any]], *, opened: bool = False
) -> Any:
    """A figure under the sentence that says it, with the drawn numbers as a table behind a switch (``opened``: it is seen at
    once), and ways to save it. ``name``: its id."""
    table = html.Details([html.Summary("The same as a table"), drawn_numbers(head, rows, opened=opened)], open=opened)
    return html.Figure(
        [
            html.Figcaption(said, id=f"{name}-said", className="summary"),
            html.Div(dcc.Graph(id=name, figure=figure, config=GRAPH), role="group", **aria(said)),
            html.Div([table, chart_exports(name)], className="below"),
        ],
        className="drawn",
    )


def drawn_numbers(head: Sequence[str], rows: Sequence[Sequence[Any]], *, opened: bool = False) -> Any:
    """The drawn numbers. Plain text is handed over as data, and the browser makes a table of it when it is looked at: a component
    for every cell of a few hundred rows would keep a page busy for seconds."""
    more = f" (the first {_MOST_ROWS})" if len(rows) > _MOST_ROWS else ""
    caption = f"The drawn numbers{more}"
    if opened or not all(isinstance(cell, str | int | float) for row in rows[:_MOST_ROWS] for cell in row):
        return data_table(head, rows[:_MOST_ROWS], caption=caption, numeric=1)
    return told_table(head, rows[:_MOST_ROWS], caption)


def told_table(head: Sequence[str], rows: Sequence[Sequence[str | int | float]], caption: str) -> Any:
    """A table as data: the browser makes it (``assets/charts.js``) when the switch before it is opened. The first cell of a row
    names it, the others are numbers, set flush right."""
    told = {"caption": caption, "head": list(head), "rows": [list(row) for row in rows]}
    data: dict[str, Any] = {"data-table": json.dumps(told)}
    return html.Div(className="wide told", **data)


def chart_exports(name: str) -> Any:
    """Buttons that save a chart (``assets/charts.js``): as an image, which is light unless Shift is held, or its
    numbers."""
    kinds = (("PNG", "this chart as PNG, light; with Shift as it is"), ("SVG", "this chart as SVG, light; with Shift as it is"),
             ("CSV", "the numbers that this chart draws"))  # fmt: skip
    buttons = []
    for kind, what in kinds:
        data: dict[str, Any] = {"data-export": kind.lower(), "data-chart": name}
        buttons.append(html.Button(kind, type="button", title=f"Save {what}", className="export", **data))
    return html.Div(buttons, className="exports", role="group", **aria("Save this chart"))
