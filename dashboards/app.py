"""The app: a shell with navigation and themes around the pages, and what keeps it local.

Everything is served from this process: no page asks the network for anything, and browsers are told so.
"""

from __future__ import annotations

import contextlib
import ipaddress
import threading
from pathlib import Path
from typing import Any

from dash import Dash, Input, Output, html
from flask import Response, abort, request

from dashboards.address import parse_address
from dashboards.frame import frame, register_frame
from dashboards.pages import PAGES, Page
from dashboards.queries import RunBook
from tracekit.errors import TracekitError

__all__ = ["create_app", "is_loopback"]

POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; frame-ancestors 'none'"
)
"""Dash writes scripts and styles into its page; from elsewhere nothing is loaded and nothing is sent there."""


def create_app(db: str | Path, *, host: str = "127.0.0.1") -> Dash:
    """The dashboard of one database as a Dash app (``app.server`` is its WSGI application). The file need not be there yet.

    ``host`` is the address it will be served on: on a loopback address, requests that name another host are refused, and on
    any other the page says that the network can read it.
    """
    book = RunBook(db)
    app = Dash(
        __name__, title="tracekit", update_title="", assets_folder=str(Path(__file__).parent / "assets"), use_pages=False,
        suppress_callback_exceptions=True, serve_locally=True, enable_mcp=False, add_log_handler=False,
        meta_tags=[{"name": "viewport", "content": "width=device-width, initial-scale=1"}],
    )  # fmt: skip
    public = f"Served on {host}: whoever reaches this address can read the runs."
    app.layout = frame(Path(db), None if is_loopback(host) else public)
    register_frame(app, book)
    for page in PAGES:
        page.register(app, book)
    app.callback(Output("page", "children"), Input("url", "pathname"))(_route)
    _guard(app, host)
    _read_ahead(app, book)
    return app


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _route(pathname: str | None) -> Any:
    """The page of a path; the root is the first page."""
    path = (pathname or "/").rstrip("/") or PAGES[0].path
    page: Page | None = next((page for page in PAGES if page.path == path), None)
    if page is not None:
        return page.layout()
    there = ", ".join(page.path for page in PAGES)
    return html.Div([html.H1("No such page"), html.P(f"{path[:80]}: no such page; there is {there}", className="status missing")])


def _read_ahead(app: Dash, book: RunBook) -> None:
    """Read a page's run while the browser still starts the page: a large run takes about as long."""

    def read(ref: str) -> None:
        with contextlib.suppress(TracekitError):  # the page will say it
            book.view(ref)

    def begin() -> None:
        if request.path.rstrip("/") in ("", *(page.path for page in PAGES)):
            ref = parse_address(request.query_string.decode("utf-8", "replace")).run
            threading.Thread(target=read, args=(ref,), daemon=True).start()

    app.server.before_request(begin)


def _guard(app: Dash, host: str) -> None:
    """Refuse other host names on a loopback address (a page elsewhere could point its name here), and forbid what is foreign."""
    server = app.server
    local = is_loopback(host)

    def refuse_foreign_hosts() -> None:
        name = request.host.rsplit(":", 1)[0] if not request.host.endswith("]") else request.host
        if local and not is_loopback(name):
            abort(403, "this dashboard answers to its own address only")

    def add_policy(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        return response

    server.before_request(refuse_foreign_hosts)
    server.after_request(add_policy)
