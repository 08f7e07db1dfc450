"""Where one starts: the runs of the database, those under way first, each with its tail and how to look at it."""

from __future__ import annotations

from typing import Any

from dash import Dash, Input, Output, State, dcc, html, no_update

from dashboards.address import Address
from dashboards.markup import data_table
from dashboards.queries import RunBook
from dashboards.run_rows import MOST_RUNS, RunRow, RunTable, read_runs
from dashboards.words import MISSING, count, percent, rate, seconds

__all__ = ["layout", "lead_of", "register", "render"]

EVERY_MS = 2000
COLUMNS = (
    "Run",
    "Trace",
    "State",
    "Began (UTC)",
    "Engine",
    "Requests",
    "SLO met",
    "Goodput",
    "TTFT P50",
    "TTFT P99",
    "TPOT P99",
    "Longest gap",
    "Preempted",
)
EMPTY = "No runs yet. tracekit replay TRACE makes one, and it appears here while it runs."


def layout() -> Any:
    return html.Div(
        [
            html.H1("Runs"),
            html.P("Loading the list of runs …", id="runs-said", className="summary", role="status"),
            html.Div(id="runs-lead"),
            html.Div(id="runs-table"),
            dcc.Interval(id="runs-tick", interval=EVERY_MS),
            dcc.Store(id="runs-drawn"),
        ]
    )


def register(app: Dash, book: RunBook) -> None:
    def show(_: int | None, drawn: list[Any] | None) -> Any:
        table = read_runs(book)
        token = [list(row) for row in table.rows] + [table.more, table.note]
        if token == drawn:
            return no_update, no_update, no_update, no_update
        said, shown = render(table)
        return said, lead_of(table), shown, token

    app.callback(
        Output("runs-said", "children"),
        Output("runs-lead", "children"),
        Output("runs-table", "children"),
        Output("runs-drawn", "data"),
        Input("runs-tick", "n_intervals"),
        State("runs-drawn", "data"),
    )(show)


def render(table: RunTable) -> tuple[str, Any]:
    """The sentence above the table, and the table."""
    if not table.rows:
        return table.note or EMPTY, None
    live = sum(row.live for row in table.rows)
    total = len(table.rows) + table.more
    said = f"{count(total)} run{'' if total == 1 else 's'}" + (f", {live} under way" if live else "")
    said += f"; the latest {MOST_RUNS} are listed" if table.more else ""
    said += f". The list may be old: {table.note}" if table.note else "."
    cells = [_cells(row) for row in table.rows]
    return said, data_table(COLUMNS, cells, caption="Runs of this database, latest first", numeric=5)


def lead_of(table: RunTable) -> Any:
    """Where to go on from here: the latest recorded run in a sentence, and the page that says why it was slow."""
    row = next((row for row in table.rows if row.ref.isdigit()), None)
    if row is None:
        return None
    parts = [f"The latest is run {row.ref}{f' ({row.name})' if row.name else ''}, of {row.trace or 'a trace'}."]
    if row.attainment is not None and row.requests:
        missed = 1 - row.attainment
        parts.append(f"{percent(missed)} of its requests missed their SLO." if missed > 0 else "All its requests met their SLO.")
    if row.ttft_p99_s is not None:
        parts.append(f"One in a hundred waited {seconds(row.ttft_p99_s)} or longer for its first token.")
    asks = "What does its verdict say?" if row.attainment == 1 else "Why was it slow?"
    way = dcc.Link(asks, href="/verdict" + Address(run=row.ref).search(), className="button")
    return html.Div([html.P(" ".join(parts)), html.Div(way, className="ways")], className="card lead")


def _cells(row: RunRow) -> list[Any]:
    address = Address(run=row.ref)
    first = "/timeline" if row.live else "/verdict"
    name = f"run {row.ref}" if row.ref.isdigit() else "under way" if row.live else "left"
    title = [dcc.Link(name, href=first + address.search()), html.Span(f" {row.name}" if row.name else "", className="quiet")]
    if row.ref.isdigit():
        title += [html.Br(), dcc.Link("What if …", href="/what-if" + address.search(), title="What its traffic takes, or costs")]
    return [
        title,
        row.trace or MISSING,
        row.state,
        row.began or MISSING,
        " ".join(filter(None, (row.engine, row.profile))) or MISSING,
        count(row.requests),
        percent(row.attainment),
        rate(row.goodput),
        seconds(row.ttft_p50_s),
        seconds(row.ttft_p99_s),
        seconds(row.tpot_p99_s),
        seconds(row.gap_max_s),
        count(row.preemptions),
    ]
