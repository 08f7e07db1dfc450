"""A page that stands alone: one file with its styles, its script, Plotly and all numbers in it.

It opens from a file, offline, and may not load or send anything: its content policy says so to the browser.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dashboards.palette import DARK, LIGHT, Theme
from dashboards.plotly_script import plotly_source
from dashboards.report_markup import Html, data_table, element

__all__ = ["Drawing", "Page", "figure_box", "page_html"]

ASSETS = Path(__file__).parent / "report_assets"
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none';"
    " form-action 'none'"
)
SHORT = 120
"""Packed arrays of fewer characters stand where they are used."""


class Drawing(NamedTuple):
    """A figure: its id, the sentence that says it, how it is made in a theme, and the drawn numbers as a table."""

    name: str
    said: str
    make: Callable[[Theme], dict[str, Any]]
    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    note: str = ""


class Page(NamedTuple):
    """``title`` of the window; ``body``: what is shown; ``drawings`` in it."""

    title: str
    body: Sequence[Html | None]
    drawings: Sequence[Drawing]


def figure_box(drawing: Drawing) -> Html:
    """Where a figure is drawn, under the sentence that says it and above its numbers as a table."""
    caption = f"The drawn numbers{drawing.note}"
    return element(
        "figure",
        element("figcaption", drawing.said, class_="summary"),
        element("div", class_="plot", data_figure=drawing.name, role="group", aria_label=drawing.said),
        element("details", element("summary", "The same as a table"), data_table(drawing.head, drawing.rows, caption)),
        class_="drawn",
    )


def page_html(page: Page) -> str:
    """The whole file. Each drawing is made for both themes; what they share is in the page once."""
    styles, script = ((ASSETS / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", page.title),
        element("style", Html(styles)),
    )
    themes = [element("option", each.capitalize(), value=each) for each in ("system", "light", "dark")]
    choice = element("label", "Theme ", element("select", *themes, id="theme"), class_="theme")
    figures = element("script", Html(_embedded(_shared(page.drawings))), type="application/json", id="figures")
    body = element(
        "body", choice, element("main", *page.body),
        element("noscript", "Figures are drawn by a script; their numbers are in the tables beneath them."),
        figures, element("script", Html(plotly_source() if page.drawings else "")), element("script", Html(script)),
    )  # fmt: skip
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _shared(drawings: Sequence[Drawing]) -> dict[str, Any]:
    """Figures of both themes, and the packed arrays that they point at by number."""
    arrays: dict[str, int] = {}
    figures = {each.name: {theme.name: _pointed(each.make(theme), arrays) for theme in (LIGHT, DARK)} for each in drawings}
    return {"arrays": list(arrays), "figures": figures}


def _pointed(value: Any, arrays: dict[str, int]) -> Any:
    if isinstance(value, dict):
        return {
            key: arrays.setdefault(item, len(arrays)) if key == "bdata" and len(item) > SHORT else _pointed(item, arrays)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_pointed(each, arrays) for each in value]
    return value


def _embedded(document: Any) -> str:
    """JSON that no parser of HTML takes for an end of the script."""
    text = json.dumps(document, separators=(",", ":"), allow_nan=False, default=_number)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _number(value: Any) -> Any:
    item = getattr(value, "item", None)
    return item() if callable(item) else str(value)
