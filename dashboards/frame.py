"""The frame around every page: rail, heading, selection, help. One callback fills it from the address."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, dcc, html

from dashboards.address import Address, parse_address
from dashboards.download_links import download_menu, register_download_menu
from dashboards.heading import Heading, heading_of, selection_chips
from dashboards.live import LIVE_MS, live_row, register_live
from dashboards.markup import aria
from dashboards.pages import PAGES
from dashboards.queries import RunBook
from dashboards.sign_in import SIGN_OUT

__all__ = ["frame", "register_frame", "render_frame"]

KEYS = (
    ("g then r, v, t, l, q, c", "go to Runs, Verdict, Tail, Timeline, Requests, Compare"),
    ("j / k", "next, previous finding or row"),
    ("Enter", "show what is marked"),
    ("← / →", "move the window along the time axis"),
    ("+ / -", "zoom in, zoom out"),
    ("[ / ]", "on the Timeline: where the selected requests waited most before this window, after it"),
    ("Esc", "take back the last part of the selection"),
    ("s", "copy the address of this view"),
    ("?", "this help"),
)
"""What ``assets/keys.js`` listens to."""
FRAME_MS = 5000


def frame(db: Path, banner: str | None, *, signed_in: bool = False) -> Any:
    """The shell; ``banner``: a warning that stands above everything; ``signed_in``: there is a session to end."""
    return html.Div(
        [
            html.A("Skip to the page", href="#page", className="skip"),
            html.P(banner, className="banner", role="alert", hidden=banner is None),
            _side(db, signed_in),
            html.Div(
                [
                    html.Header(id="heading", className="heading"),
                    live_row(),
                    html.Div(
                        [
                            html.Div(id="chips", className="chips", role="group", **aria("Selection")),
                            download_menu(),
                            html.Button("Share", id="share", type="button", title="Copy the address of this view (s)"),
                            html.Span(id="shared", role="status", className="shared"),
                        ],
                        className="chip-row",
                    ),
                    html.Main(id="page", tabIndex="-1"),
                ],
                className="body",
            ),
            _help(),
            dcc.Location(id="url", refresh=False),
            dcc.Interval(id="frame-tick", interval=FRAME_MS),
            dcc.Interval(id="live-tick", interval=LIVE_MS),
            dcc.Store(id="paused", data=False),
            dcc.Store(id="theme"),
            dcc.Store(id="narrow"),
        ],
        className="frame",
    )


def _side(db: Path, signed_in: bool) -> Any:
    opens: dict[str, Any] = {"aria-haspopup": "dialog"}
    foot = [
        html.Span(db.name, className="database", title=str(db)),
        html.Div(id="themes", className="themes", role="radiogroup", **aria("Theme")),
        html.Button("Keys ?", id="help-open", type="button", **opens),
    ]
    if signed_in:
        foot.append(html.Form(html.Button("Sign out"), action=SIGN_OUT, method="post"))
    brand, pages = html.Strong("tracekit", className="brand"), html.Nav(_rail("", ""), id="rail", **aria("Pages"))
    return html.Aside([brand, pages, html.Div(foot, className="rail-foot")], className="rail")


def _help() -> Any:
    """The browser's own dialog: it keeps the keyboard in, closes on Esc, and gives the focus back."""
    rows = [html.Tr([html.Td(html.Kbd(keys)), html.Td(text)]) for keys, text in KEYS]
    head = html.Div([html.H2("Keys", id="help-title"), html.Button("Close", type="button", id="help-close")], className="head")
    told: dict[str, Any] = {"aria-labelledby": "help-title"}
    return html.Dialog([head, html.Table(html.Tbody(rows), className="keys")], id="help", **told)


def _rail(pathname: str, search: str) -> list[Any]:
    here = pathname.rstrip("/") or PAGES[0].path
    return [
        dcc.Link(page.title, href=page.path + search, className="current" if page.path == here else "", title=page.asks)
        for page in PAGES
    ]


def register_frame(app: Dash, book: RunBook) -> None:
    """Heading, rail and chips follow the address; theme, share and help need no server."""

    def show(pathname: str | None, search: str | None, _: int | None) -> tuple[Any, Any, Any]:
        return render_frame(book, pathname or "/", search or "")

    app.callback(
        Output("rail", "children"),
        Output("heading", "children"),
        Output("chips", "children"),
        Input("url", "pathname"),
        Input("url", "search"),
        Input("frame-tick", "n_intervals"),
    )(show)
    register_live(app, book)
    register_download_menu(app, book)
    # Dash has no types for these.
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("tracekit", "theme"),
        Output("theme", "data"),
        Output("narrow", "data"),
        Input("themes", "id"),
    )
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("tracekit", "share"),
        Output("shared", "children"),
        Input("share", "n_clicks"),
        prevent_initial_call=True,
    )


def render_frame(book: RunBook, pathname: str, search: str) -> tuple[Any, Any, Any]:
    """Rail, heading and chips for an address."""
    address = parse_address(search)
    chips = [
        dcc.Link(
            [chip.text, html.Span(" ✕", className="cross")],
            href=pathname + chip.without,
            className="chip",
            title=f"Remove: {chip.text}",
        )
        for chip in selection_chips(address)
    ]
    said = [*_back(pathname, address), *chips] or html.Span("nothing selected: the whole run")
    return _rail(pathname, search), _heading(heading_of(book, address)), said


def _back(pathname: str, address: Address) -> list[Any]:
    """From what a finding shows on another page back to what to do about it."""
    if not address.finding or pathname.rstrip("/") == "/verdict":
        return []
    search = address.search(t=None, last_s=None, requests=(), latency_s=None, arrived_s=None, iterations=None)
    return [dcc.Link("← Back to the verdict", href="/verdict" + search, className="back", title="What to change, and the proof")]


def _heading(heading: Heading) -> list[Any]:
    marks = {True: "✓ ", False: "✗ ", None: ""}
    names = {True: "slo met", False: "slo missed", None: "slo"}
    slo = [html.Span(marks[chip.met] + chip.text, className=names[chip.met]) for chip in heading.slo]
    return [
        html.Div([html.Strong(heading.title), html.Span(heading.trace, className="quiet")], className="what"),
        html.Div([html.Code(heading.policy)] if heading.policy else [], className="flags"),
        html.Div(slo, className="slos"),
        *([html.P(heading.note, className="notice")] if heading.note else []),
    ]
