"""The tail of a run: draw a box around the slow ones, and read what they have in common and where their time went."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update

from dashboards.address import METRICS, Address, parse_address
from dashboards.decomposition import decompose, describe_parts, parts_figure
from dashboards.distribution import Distribution, distribution_figure, distribution_of
from dashboards.markup import aria, chart_exports, control, data_table, figure_with_table
from dashboards.palette import THEMES, Theme
from dashboards.queries import RunBook
from dashboards.selection import choices_of, latency_s, selected, settle
from dashboards.spoken import spoken
from dashboards.stalls import describe_stalls, stalls_of
from dashboards.tail import Contrast, Percentile, TailMap, contrasts, percentiles, tail_map
from dashboards.tail_figures import contrast_figure, describe_map, map_figure
from dashboards.words import count, number, percent, seconds
from tracekit.diagnosis import RunData
from tracekit.errors import TracekitError

__all__ = ["layout", "register", "render", "render_parts"]

GRAPH: Any = {
    "displaylogo": False,
    "showSendToCloud": False,
    "responsive": True,
    "doubleClick": False,
    "modeBarButtonsToRemove": ["zoom2d", "pan2d", "lasso2d", "zoomIn2d", "zoomOut2d", "autoScale2d", "resetScale2d"],
}
SMALL: Any = {"displayModeBar": False, "showSendToCloud": False, "responsive": True}
NAMES = {"ttft": "TTFT", "tpot": "TPOT", "gap": "longest gap", "e2e": "E2E"}
SHOWN = 6
_OUTPUTS = (
    ("tl-said", "children"),
    ("tl-error", "children"),
    ("tl-map", "figure"),
    ("tl-points", "children"),
    ("tl-contrasts", "children"),
    ("tl-class", "options"),
    ("tl-class", "value"),
    ("tl-metric", "value"),
    ("tl-links", "children"),
    ("tl-table", "children"),
)


def layout() -> Any:
    return html.Div(
        [
            html.H1("Tail"),
            _controls(),
            html.P("Loading …", id="tl-said", className="summary", role="status"),
            html.P(id="tl-error", className="notice", role="alert"),
            html.P("Draw a box around the slow ones to select them, or give the bounds above.", className="hint"),
            html.Figure(
                [
                    html.Div(
                        dcc.Graph(id="tl-map", figure={"data": [], "layout": {}}, config=GRAPH),
                        role="group",
                        **aria("Latency over time", describedby="tl-said"),
                    ),
                    html.Div(
                        [html.Details([html.Summary("The same as a table"), html.Div(id="tl-table")]), chart_exports("tl-map")],
                        className="below",
                    ),
                ],
                className="drawn",
            ),
            html.P(id="tl-links", className="links"),
            html.Div(id="tl-points"),
            html.H2("Where their time went"),
            html.Div("Loading …", id="tl-parts"),
            html.H2("What the selected requests have in common"),
            html.P(
                "Ranked by how differently they are distributed; plain bars are the selected, hatched ones the rest."
                " Correlation, not cause: the Verdict tests causes.",
                className="hint",
            ),
            html.Div(id="tl-contrasts", className="cards"),
            dcc.Store(id="tl-moved"),
        ]
    )


def _controls() -> Any:
    metrics = [{"value": each, "label": NAMES[each]} for each in METRICS]
    typed: dict[str, Any] = {"type": "text", "inputMode": "decimal", "debounce": True, "autoComplete": "off"}
    return html.Div(
        [
            control("Latency", "tl-metric", dcc.Dropdown(metrics, id="tl-metric", clearable=False, searchable=False)),
            control("Class", "tl-class", dcc.Dropdown(id="tl-class", placeholder="all")),
            control(
                "From, s",
                "tl-from",
                dcc.Input(id="tl-from", placeholder="slower than", **typed),
            ),
            control("To, s", "tl-to", dcc.Input(id="tl-to", **typed)),
        ],
        className="controls",
        role="group",
        **aria("Which tail"),
    )


def register(app: Dash, book: RunBook) -> None:
    """A box, a choice or a bound writes the address (in the browser); the address asks for an answer."""
    # Dash has no types for this one.
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("tracekit", "brush"),
        Output("tl-moved", "data"),
        Input("tl-map", "selectedData"),
        Input("tl-metric", "value"),
        Input("tl-class", "value"),
        Input("tl-from", "value"),
        Input("tl-to", "value"),
        State("url", "search"),
        prevent_initial_call=True,
    )

    def show(search: str | None, theme: str | None) -> tuple[Any, ...]:
        return render(book, search, theme if theme in THEMES else "light")

    app.callback([Output(*each) for each in _OUTPUTS], Input("url", "search"), Input("theme", "data"))(show)

    def parts(search: str | None, theme: str | None) -> Any:
        return render_parts(book, search, theme if theme in THEMES else "light")

    app.callback(Output("tl-parts", "children"), Input("url", "search"), Input("theme", "data"))(parts)


def render(book: RunBook, search: str | None, theme: str) -> tuple[Any, ...]:
    """What the page shows for an address, in the order of ``_OUTPUTS``."""
    address = parse_address(search)
    empty: dict[str, Any] = {"data": [], "layout": {}}
    try:
        data = book.data(address.run)
        address = settle(book, address)
        found = tail_map(data, address)
    except TracekitError as error:
        return "", spoken(error), empty, None, None, [], no_update, address.metric, None, None
    classes = list(choices_of(data).classes)
    if found is None:
        why = f"no counted request of this selection has a {NAMES[address.metric]}"
        return "", why, empty, None, None, classes, address.cls, address.metric, None, None
    points = percentiles(data, address)
    chosen = int(selected(data, address).sum())
    said = describe_map(found, points, NAMES[address.metric], chosen)
    cards = [_card(at, each, THEMES[theme]) for at, each in enumerate(contrasts(data, address)[:SHOWN])]
    alone = html.P("Everything is selected: draw a box, or choose a class, to compare it with the rest.", className="quiet")
    return (
        said,
        "",
        map_figure(found, address, THEMES[theme]),
        [
            _points(points, NAMES[address.metric], distribution_of(data, address), found.limit_s, THEMES[theme]),
            *_stalls(data, address),
        ],
        cards or alone,
        classes,
        address.cls,
        address.metric,
        _links(data, address, chosen),
        _bands(found),
    )


def render_parts(book: RunBook, search: str | None, theme: str) -> Any:
    """Where the time of the selected went, against the rest; the page says elsewhere what keeps a run from being shown."""
    address = parse_address(search)
    try:
        data = book.data(address.run)
        if not data.has_iterations:
            return html.P(
                "This run kept no iterations, so its time cannot be told apart; replay with --events full.", className="notice"
            )
        found = decompose(data, book.attribution(address.run), settle(book, address))
    except TracekitError:
        return None
    if found is None:
        return html.P("No request is selected.", className="quiet")
    head = ("Part", "Selected, mean", "The rest, mean", "Selected, median", "The rest, median", "What it is")
    rows = [
        [
            html.Code(each.name),
            *map(seconds, (each.selected_s, each.rest_s, each.selected_median_s, each.rest_median_s)),
            each.told,
        ]
        for each in found.parts
    ]
    return figure_with_table("tl-parts-figure", parts_figure(found, THEMES[theme]), describe_parts(found), head, rows)


def _points(
    points: tuple[Percentile, ...], name: str, curves: tuple[Distribution, ...], limit_s: float | None, theme: Theme
) -> Any:
    """Percentiles and what they rest on: as a curve, and as a table."""
    rows = [[f"P{each.point:g}", seconds(each.selected_s), count(each.beyond), seconds(each.all_s)] for each in points]
    n = count(curves[0].n) if curves else "0"
    told = ", ".join(f"P{each.point:g} {seconds(each.selected_s)}" for each in points)
    said = f"How {name} is distributed: {told} of {n} selected requests; a percentile rests on the requests beyond it."
    figure = distribution_figure(curves, points, limit_s, name, theme)
    return html.Div(
        [
            html.H2("How it is distributed"),
            figure_with_table("tl-cdf", figure, said, ("Percentile", "Selected", "Requests beyond", "All"), rows, opened=True),
        ]
    )


def _stalls(data: RunData, address: Address) -> Iterator[Any]:
    found = stalls_of(data, address)
    yield html.H2("Standing still between tokens")
    yield html.P(describe_stalls(found), className="summary")
    rows = [
        [
            each.who,
            count(each.n),
            *map(seconds, (each.gap_p50_s, each.gap_p95_s, each.gap_p99_s, each.gap_max_s)),
            count(each.stalled),
            *map(seconds, (each.stalled_mean_s, each.stalled_max_s)),
        ]
        for each in found
    ]
    head = ("Requests", "n", "Longest gap, median", "P95", "P99", "longest", "Stalled", "Stalled s, mean", "worst")
    yield data_table(head, rows, caption="Each request's longest gap, and its stalled time", numeric=1)


def _bands(found: TailMap) -> Any:
    """The map by latency alone: eight bands, and where in time the requests of each lie."""
    rows = []
    for low, high in zip(range(0, len(found.counts), 5), range(5, len(found.counts) + 1, 5), strict=True):
        inside = found.counts[low:high].sum(axis=0)
        if inside.any():
            at = np.flatnonzero(inside)
            edges = [seconds(float(10 ** found.y[edge])) for edge in (low, high)]
            times = [f"{found.x[at[0]]:,.3f}", f"{found.x[at[-1] + 1]:,.3f}"]
            rows.append([f"{edges[0]} to {edges[1]}", count(inside.sum()), percent(float(inside.sum()) / found.n), *times])
    head = ("Latency", "Requests", "Share", "First arrival after, s", "Last before, s")
    return data_table(head, rows, caption="The map by latency", numeric=1)


def _links(data: RunData, address: Address, chosen: int) -> list[Any]:
    """The same selection elsewhere; the timeline over the time in which those requests waited for what the map shows."""
    if address.selects:
        begin, end = _then(data, address)
        window = (begin, end) if end > begin else None
        requests = "The selected request" if chosen == 1 else f"The {count(chosen)} selected requests"
        then = dcc.Link("What the scheduler did then", href="/timeline" + address.search(t=window, last_s=None))
        return [dcc.Link(requests, href="/requests" + address.search()), " · ", then]
    if address.t is None:
        return []
    arrived = dcc.Link("Select the requests that arrived in this window", href="/tail" + address.search(arrived_s=address.t))
    return [arrived, " · ", dcc.Link("What the scheduler did then", href="/timeline" + address.search())]


def _then(data: RunData, address: Address) -> tuple[float, float]:
    """From the first arrival of the selected requests to when the last of them had what the metric is of, s."""
    keep = selected(data, address)
    if not keep.any():
        return 0.0, 0.0
    arrival = data.outcomes["arrival_ns"][keep] / 1e9
    later = np.nan_to_num(latency_s(data, "ttft" if address.metric == "ttft" else "e2e")[keep])
    return max(float(arrival.min()), 0.0), float((arrival + later).max())


def _card(at: int, found: Contrast, theme: Any) -> Any:
    unit = f" {found.unit}" if found.unit else ""
    medians = ""
    if found.selected_median is not None and found.rest_median is not None:
        medians = f"median {number(found.selected_median)} against {number(found.rest_median)}{unit}"
    said = f"{found.name}: {percent(found.distance)} apart" + (f", {medians}" if medians else "")
    figure = dcc.Graph(id=f"tl-contrast-{at}", figure=contrast_figure(found, theme), config=SMALL)
    rows = [[a, percent(b), percent(c)] for a, b, c in zip(found.labels, found.selected, found.rest, strict=True)]
    twin = data_table((found.unit or found.name, "Selected", "The rest"), rows, caption=f"{found.name}: shares", numeric=1)
    twin = html.Details([html.Summary("The same as a table"), twin])
    return html.Section(
        [
            html.H3(found.name),
            html.P(said, className="quiet"),
            html.Div(figure, role="group", **aria(said)),
            html.Div([twin, chart_exports(f"tl-contrast-{at}")], className="below"),
        ],
        className="card",
    )
