"""The app: a shell with navigation and themes around the pages, and what keeps it local.

Everything is served from this process: no page asks the network for anything, and browsers are told so.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

from dash import Dash, Input, Output, html
from flask import request

from dashboards.access import Access
from dashboards.downloads import register_downloads
from dashboards.frame import frame, register_frame
from dashboards.guard import guard
from dashboards.pages import PAGES, Page
from dashboards.pages.timeline_answer import render
from dashboards.queries import RunBook
from dashboards.script_bundle import BundledDash
from dashboards.scripts import OWN, index_page

__all__ = ["create_app"]

_PLAIN = ("/", "/jobs", "/replay")
"""Pages without a chart."""


def create_app(db: str | Path, *, access: Access | None = None) -> Dash:
    """The dashboard of one database as a Dash app (``app.server`` is its WSGI application). The file need not be there yet.

    ``access``: the address it will be served on and who may ask; without one, this machine only.
    """
    access = access or Access()
    book = RunBook(db, read_only=access.read_only)
    app = BundledDash(
        __name__, title="tracekit", update_title="", assets_folder=str(Path(__file__).parent / "assets"), assets_ignore=OWN,
        index_string=index_page(_PLAIN), use_pages=False, suppress_callback_exceptions=True, serve_locally=True, enable_mcp=False,
        add_log_handler=False, compress=True,
        meta_tags=[{"name": "viewport", "content": "width=device-width, initial-scale=1"}],
    )  # fmt: skip
    app.layout = frame(Path(db), _banner(access), signed_in=access.token is not None)
    register_frame(app, book)
    for page in PAGES:
        page.register(app, book)
    app.callback(Output("page", "children"), Input("url", "pathname"))(_route)
    register_downloads(app.server, book)
    app.bundle_scripts()
    guard(app, access)
    _read_ahead(app, book)
    return app


def _banner(access: Access) -> str | None:
    """What must not be overlooked, above every page."""
    if not access.public:
        return None
    what = "read the runs" if access.read_only else "read the runs and start replays"
    return f"Served on {access.host}: whoever has the token can {what}."


def _route(pathname: str | None) -> Any:
    """The page of a path; the root is the first page."""
    path = (pathname or "/").rstrip("/") or PAGES[0].path
    page: Page | None = next((page for page in PAGES if page.path == path), None)
    if page is not None:
        return page.layout()
    there = ", ".join(page.path for page in PAGES)
    return html.Div([html.H1("No such page"), html.P(f"{path[:80]}: no such page; there is {there}", className="status missing")])


def _read_ahead(app: Dash, book: RunBook) -> None:
    """Answer the timeline before it asks, while the browser still starts the page: what takes long of a large run is kept."""

    def answer(search: str) -> None:
        with contextlib.suppress(Exception):  # the page asks again, and says what it is; a thread would print it with its values
            render(book, search, "light", {})

    def begin() -> None:
        if request.path.rstrip("/") == "/timeline":
            search = "?" + request.query_string.decode("utf-8", "replace")
            threading.Thread(target=answer, args=(search,), daemon=True).start()

    app.server.before_request(begin)
