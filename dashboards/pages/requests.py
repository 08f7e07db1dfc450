"""The requests of a run, the worst first: as a grid, as a waterfall of their lives, and one of them as a story."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dash_ag_grid as dag
from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update

from dashboards.address import METRICS, Address, parse_address
from dashboards.markup import aria, chart_exports, control, drawn_numbers
from dashboards.palette import GRID_THEME, THEMES
from dashboards.queries import RunBook
from dashboards.request_rows import DRAWN, LISTED, SORTS, Life, RequestTable, list_requests, lives_of
from dashboards.selection import choices_of, selected, settle
from dashboards.spoken import spoken
from dashboards.waterfall import describe_lives, waterfall_figure
from dashboards.words import count, seconds
from tracekit.errors import TracekitError
from tracekit.explain import explain, render_explain

__all__ = ["layout", "register", "render"]

GRAPH: Any = {
    "displaylogo": False,
    "showSendToCloud": False,
    "responsive": True,
    "modeBarButtonsToRemove": ["select2d", "lasso2d"],
}
NAMES = {"ttft": "TTFT", "tpot": "TPOT", "gap": "longest gap", "e2e": "E2E"}
GRID_OPTIONS = {
    "rowSelection": {"mode": "singleRow", "checkboxes": False, "enableClickSelection": True},
    "animateRows": False,
    "theme": {"function": GRID_THEME},
}
_TIME = {"function": "params.value == null ? '-' : d3.format(',.4~g')(params.value)"}
_GRID = (
    ("request", "Request", None),
    ("cls", "Class", None),
    ("tenant", "Tenant", None),
    ("arrival_s", "Arrival, s", _TIME),
    ("prompt", "Prompt", None),
    ("output", "Output", None),
    ("cached", "Cached", None),
    ("queue_s", "Queue, s", _TIME),
    ("ttft_s", "TTFT, s", _TIME),
    ("tpot_s", "TPOT, s", _TIME),
    ("gap_s", "Longest gap, s", _TIME),
    ("e2e_s", "E2E, s", _TIME),
    ("excess_s", "Over class median, s", _TIME),
    ("preemptions", "Preempted", None),
    ("state", "State", None),
    ("slo_met", "SLO met", None),
)
OUTPUTS = ("said", "error", "grid", "cls", "tenant", "metric", "figure", "lives", "table", "story", "story_title")


def layout() -> Any:
    metrics = [{"value": each, "label": NAMES[each]} for each in METRICS]
    sorts = [{"value": each, "label": text} for each, text in SORTS.items()]
    return html.Div(
        [
            html.H1("Requests"),
            html.Div(
                [
                    control("Class", "rq-class", dcc.Dropdown(id="rq-class", placeholder="all")),
                    control("Tenant", "rq-tenant", dcc.Dropdown(id="rq-tenant", placeholder="all")),
                    control("Latency", "rq-metric", dcc.Dropdown(metrics, id="rq-metric", clearable=False, searchable=False)),
                    control(
                        "Sorted by", "rq-sort", dcc.Dropdown(sorts, "excess", id="rq-sort", clearable=False, searchable=False)
                    ),
                ],
                className="controls",
                role="group",
                **aria("Which requests"),
            ),
            html.P("Loading …", id="rq-said", className="summary", role="status"),
            html.P(id="rq-error", className="notice", role="alert"),
            _grid(),
            html.H2(id="rq-story-title"),
            html.Pre(id="rq-story", className="story"),
            html.H2("Where their time went"),
            html.P(id="rq-lives", className="summary"),
            html.Figure(
                [
                    html.Div(
                        dcc.Graph(id="rq-figure", figure={"data": [], "layout": {}}, config=GRAPH),
                        role="group",
                        **aria("Lives of the first requests of the list", describedby="rq-lives"),
                    ),
                    html.Div([_twin(), chart_exports("rq-figure")], className="below"),
                ],
                className="drawn",
            ),
            dcc.Store(id="rq-moved"),
        ]
    )


def _twin() -> Any:
    return html.Details([html.Summary("The same as a table"), html.Div(id="rq-table")])


def _grid() -> Any:
    columns = [{"field": field, "headerName": name, **({"valueFormatter": form} if form else {})} for field, name, form in _GRID]
    return dag.AgGrid(
        id="requests-grid",
        columnDefs=columns,
        rowData=[],
        columnSize="autoSize",
        defaultColDef={"sortable": True, "filter": False, "resizable": True, "suppressHeaderMenuButton": True},
        dashGridOptions=GRID_OPTIONS,
        style={"height": 420},
    )


def register(app: Dash, book: RunBook) -> None:
    """The controls and the grid write the address (in the browser); the address asks for an answer."""
    # Dash has no types for this one.
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("tracekit", "choose"),
        Output("rq-moved", "data"),
        Input("rq-class", "value"),
        Input("rq-tenant", "value"),
        Input("rq-metric", "value"),
        Input("requests-grid", "selectedRows"),
        State("url", "search"),
        prevent_initial_call=True,
    )

    def show(search: str | None, sort: str, theme: str | None) -> tuple[Any, ...]:
        return render(book, search, sort if sort in SORTS else "excess", theme if theme in THEMES else "light")

    names = {
        "said": ("rq-said", "children"),
        "error": ("rq-error", "children"),
        "grid": ("requests-grid", "rowData"),
        "cls": ("rq-class", "options"),
        "tenant": ("rq-tenant", "options"),
        "metric": ("rq-metric", "value"),
        "figure": ("rq-figure", "figure"),
        "lives": ("rq-lives", "children"),
        "table": ("rq-table", "children"),
        "story": ("rq-story", "children"),
        "story_title": ("rq-story-title", "children"),
    }
    outputs = [Output(*names[each]) for each in OUTPUTS] + [Output("rq-class", "value"), Output("rq-tenant", "value")]
    app.callback(outputs, Input("url", "search"), Input("rq-sort", "value"), Input("theme", "data"))(show)


def render(book: RunBook, search: str | None, sort: str, theme: str) -> tuple[Any, ...]:
    """What the page shows for an address, in the order of ``OUTPUTS``, then the chosen class and tenant."""
    address = parse_address(search)
    try:
        data = book.data(address.run)
        address = settle(book, address)
    except TracekitError as error:
        empty: dict[str, Any] = {"data": [], "layout": {}}
        return ("", spoken(error), [], [], [], address.metric, empty, "", None, "", "", no_update, no_update)
    choices = choices_of(data)
    others = replace(address, requests=())
    table = list_requests(data, others, sort)
    chosen = address.requests or tuple(row.request for row in table.rows[:DRAWN])
    lives = lives_of(data, chosen)
    story, title = _story(book, data.run, address)
    return (
        _said(table, address, sort, int(selected(data, address).sum())),
        "" if lives else "this run kept no spans: its requests have no lives to draw",
        [row._asdict() for row in table.rows],
        list(choices.classes),
        list(choices.tenants),
        address.metric,
        waterfall_figure(lives, THEMES[theme]),
        describe_lives(lives),
        _table(lives),
        story,
        title,
        address.cls,
        address.tenant,
    )


def _said(table: RequestTable, address: Address, sort: str, chosen: int) -> str:
    if not table.rows:
        return f"None of the {count(table.total)} requests is selected; remove a part of the selection above."
    part = f"; the first {count(LISTED)} are listed" if table.selected > LISTED else ""
    first = table.rows[0]
    values = (("TTFT", first.ttft_s), ("TPOT", first.tpot_s), ("longest gap", first.gap_s), ("E2E", first.e2e_s))
    told = ", ".join(f"{name} {seconds(value)}" for name, value in values)
    whole = f"{count(table.total)} requests"
    said = f"{count(chosen)} of {whole} {'is' if chosen == 1 else 'are'} selected"
    if address.requests:
        said += f", out of {count(table.selected)} listed"
    return f"{said}{part}, by {SORTS[sort]}. The first is #{first.request}: {told}."


def _story(book: RunBook, run: int | None, address: Address) -> tuple[str, str]:
    if not address.requests or run is None:
        return "Choose a request in the list to read what happened to it.", "One request"
    number = address.requests[0]
    with book.store.read() as con:
        return render_explain(explain(con, run, number)), f"Request {number}"


def _table(lives: tuple[Life, ...]) -> Any:
    rows = [
        [
            life.label,
            each.phase.replace("_", " "),
            each.reason.replace("_", " "),
            seconds(each.begin_s),
            seconds(each.end_s - each.begin_s),
        ]
        for life in lives
        for each in life.stretches
    ]
    return drawn_numbers(("Request", "Phase", "Reason", "From", "Length"), rows)
