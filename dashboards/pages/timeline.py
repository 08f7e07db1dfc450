"""What the scheduler did, iteration by iteration: batch, counts, KV, queue and durations of one run on one time axis."""

from __future__ import annotations

from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html
from dash.exceptions import PreventUpdate

from dashboards.address import UNITS
from dashboards.markup import aria, chart_exports, control
from dashboards.pages.timeline_answer import COVERED, HIDDEN, OUTPUTS, QUIET_MS, WINDOWS, prepare_overlay, render
from dashboards.pages.timeline_detail import register_detail
from dashboards.palette import THEMES
from dashboards.queries import RunBook

__all__ = ["layout", "register"]

GRAPH: Any = {
    "displaylogo": False, "showSendToCloud": False, "responsive": True, "scrollZoom": False, "doubleClick": "autosize",
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d", "resetScale2d"],
}  # fmt: skip

IN_UNITS: Any = [{"value": each, "label": {"ms": "milliseconds"}.get(each, each)} for each in UNITS]
IN_WINDOWS: Any = [{"value": value, "label": text} for value, text in WINDOWS.items()]
IMAGE: Any = {"role": "group", **aria("Timeline of the run", describedby="summary")}


def layout() -> Any:
    """The page before it knows anything; the first answer fills it."""
    number: dict[str, Any] = {"type": "text", "inputMode": "decimal", "debounce": True, "autoComplete": "off"}
    return html.Div(
        [
            html.H1("Timeline"),
            html.Div(
                [
                    control("Run", "run", dcc.Dropdown(id="run", clearable=False), id="run-box"),
                    control("Replica", "replica", dcc.Dropdown(id="replica", clearable=False), id="replica-box", style=HIDDEN),
                    control("Window", "window", dcc.Dropdown(IN_WINDOWS, id="window", clearable=False, searchable=False)),
                    control("Batches in", "unit", dcc.Dropdown(IN_UNITS, id="unit", clearable=False, searchable=False)),
                    control("From, s", "begin", dcc.Input(id="begin", **number)),
                    control("To, s", "end", dcc.Input(id="end", **number)),
                    html.Button("Whole run", id="whole", type="button"),
                ],
                className="controls",
                role="group",
                **aria("What is shown"),
            ),
            html.P(id="status", className="status", role="status"),
            html.P(id="notice", className="notice", role="alert"),
            _figure(),
            html.Div(id="timeline-detail"),
            dcc.Interval(id="tick", interval=QUIET_MS),
            dcc.Store(id="drawn", data={}),
            dcc.Store(id="overlaid"),
            dcc.Store(id="navigated"),
        ]
    )


def _figure() -> Any:
    table = html.Details([html.Summary("The same as a table"), html.Div(id="timeline-table")])
    return html.Figure(
        [
            html.P("Drag over a strip to zoom, double-click or press Whole run to see all of it.", className="hint"),
            html.Div(dcc.Graph(id="timeline", figure={"data": [], "layout": {}}, config=GRAPH), **IMAGE),
            html.Figcaption(id="summary", className="summary"),
            html.Div([table, chart_exports("timeline")], className="below"),
        ],
        id="timeline-box",
        className="drawn",
        style=COVERED,
    )


def register(app: Dash, book: RunBook) -> None:
    """The controls write the URL (in the browser); the URL, the clock, the theme and the width ask for an answer."""
    controls = [("run", "value"), ("replica", "value"), ("window", "value"), ("begin", "value"), ("end", "value")]
    controls.append(("unit", "value"))
    moves = [("whole", "n_clicks"), ("timeline", "relayoutData")]
    # Dash has no types for this one.
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("tracekit", "navigate"),
        Output("navigated", "data"),
        *(Input(name, prop) for name, prop in controls + moves),
        State("url", "search"),
        State("drawn", "data"),
        prevent_initial_call=True,
    )

    def show(
        search: str, _: int, theme: str | None, narrow: bool | None, overlaid: str | None, drawn: Any, paused: bool | None
    ) -> dict[str, Any]:
        if theme not in THEMES or narrow is None or (paused and ctx.triggered_id == "tick"):
            raise PreventUpdate
        return render(book, search, theme, drawn, overlaid=overlaid, narrow=narrow).outputs()

    app.callback(
        OUTPUTS,
        Input("url", "search"),
        Input("tick", "n_intervals"),
        Input("theme", "data"),
        Input("narrow", "data"),
        Input("overlaid", "data"),
        State("drawn", "data"),
        State("paused", "data"),
        running=[(Output("tick", "disabled"), True, False)],
    )(show)

    _register_overlay(app, book)
    register_detail(app, book)


def _register_overlay(app: Dash, book: RunBook) -> None:
    """When a timeline has been drawn without what lies over it, read that, and have it drawn again."""

    def overlay(drawn: dict[str, Any], overlaid: str | None, search: str) -> str:
        key = drawn.get("overlay")
        if key is None or key == overlaid or prepare_overlay(book, search) != key:
            raise PreventUpdate
        return str(key)

    app.callback(
        Output("overlaid", "data"),
        Input("drawn", "data"),
        State("overlaid", "data"),
        State("url", "search"),
        prevent_initial_call=True,
    )(overlay)
