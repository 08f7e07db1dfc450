"""What runs and what has run: jobs of the shell and of the pages, with progress, and what can be done with each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import ALL, Dash, Input, Output, State, ctx, dcc, html, no_update

from dashboards.markup import aria, data_table
from dashboards.queries import RunBook
from dashboards.words import percent
from dashboards.work import UNDER_WAY, JobRow, do_to_job, list_work

__all__ = ["layout", "register", "render"]

EVERY_MS = 1500
COLUMNS = ("Job", "State", "How far", "To look at", "What can be done", "Started by", "Created (UTC)", "Command")
EMPTY = "No jobs yet. A replay, a search or a diagnosis appears here, whoever starts it."
ACTIONS = {"cancel": "Cancel", "resume": "Resume"}
WORDS = {"lost": "killed", "queued": "starting"}


def layout() -> Any:
    return html.Div(
        [
            html.H1("Jobs"),
            html.P("Loading the list of jobs …", id="jb-said", className="summary", role="status"),
            html.P(id="jb-notice", className="notice", role="alert"),
            html.Div(id="jb-table"),
            dcc.Interval(id="jb-tick", interval=EVERY_MS),
            dcc.Store(id="jb-drawn"),
        ]
    )


def register(app: Dash, book: RunBook) -> None:
    def show(_: int | None, __: Any, drawn: list[Any] | None) -> Any:
        rows = list_work(book)
        token = [list(row) for row in rows]
        if token == drawn:
            return no_update, no_update, no_update
        said, table = render(rows, read_only=book.read_only)
        return said, table, token

    app.callback(
        Output("jb-said", "children"),
        Output("jb-table", "children"),
        Output("jb-drawn", "data"),
        Input("jb-tick", "n_intervals"),
        Input("jb-notice", "children"),
        State("jb-drawn", "data"),
    )(show)

    def act(clicks: list[int | None]) -> Any:
        pressed = ctx.triggered_id
        if not any(clicks) or not isinstance(pressed, dict):
            return no_update
        return do_to_job(book, str(pressed.get("act")), str(pressed.get("job")))[0]

    app.callback(
        Output("jb-notice", "children"),
        Input({"type": "jb-act", "act": ALL, "job": ALL}, "n_clicks"),
        prevent_initial_call=True,
    )(act)


def render(rows: Sequence[JobRow], *, read_only: bool) -> tuple[str, Any]:
    """The sentence above the table, and the table."""
    if not rows:
        return EMPTY, None
    busy = sum(row.state in UNDER_WAY for row in rows)
    said = f"{len(rows)} jobs, {busy} under way." + (
        " This dashboard is read-only: it starts and stops nothing." if read_only else ""
    )
    cells = [_cells(row) for row in rows]
    return said, data_table(COLUMNS, cells, caption="Jobs of this database, those under way first", numeric=9)


def _cells(row: JobRow) -> list[Any]:
    buttons = [
        html.Button(
            ACTIONS[act],
            id={"type": "jb-act", "act": act, "job": row.id},
            type="button",
            title="Starts it again; a search goes on where it stopped" if act == "resume" else "Asks it to stop",
        )
        for act in row.can
    ]
    bar: list[Any] = [html.Span(row.said)]
    if row.progress is not None and row.state in UNDER_WAY:
        share = percent(row.progress)
        bar.insert(0, html.Progress(value=str(round(row.progress, 3)), max="1", **aria(f"{row.kind}: {share} done")))
    return [
        [html.Strong(row.kind), html.Br(), html.Span(row.id, className="quiet")],
        WORDS.get(row.state, row.state),
        html.Div(bar, className="how-far"),
        dcc.Link(row.label, href=row.look) if row.look else "",
        html.Div(buttons, className="ways"),
        row.who,
        row.created,
        html.Code(row.command[:300] + ("…" if len(row.command) > 300 else "")),
    ]
