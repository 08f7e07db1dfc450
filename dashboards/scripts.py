"""Fixed files as they go to the browser: which script comes first, the smaller Plotly, and every file packed once for all who
ask."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterable

from flask import Flask, Response, make_response, request

from dashboards.plotly_script import plotly_source
from dashboards.remembered import Remembered

__all__ = ["FIRST", "FIXED", "OWN", "PLOTLY", "index_page", "keep_packed"]

FIXED = ("/_dash-component-suites/", "/assets/")
"""Paths of files that never change while a server runs."""
PLOTLY = "/_dash-component-suites/plotly/package_data/plotly.min.js"
"""Where the page asks for Plotly."""
FIRST = "early.js"
OWN = r"^(early|grid)\.js$"
"""Assets that have a place of their own on the page."""
_ASKED = "/_dash-layout /_dash-dependencies"
_DRAWN_WITH = f"{PLOTLY} /_dash-component-suites/dash/dcc/async-graph.js"
KEPT_BYTES = 1 << 25
LEAST_BYTES = 500
"""Smaller answers are not packed."""


def index_page(plain: Iterable[str]) -> str:
    """The page around the app for Dash to fill in; ``plain``: paths on which nothing is drawn at first."""
    about = f'data-ask="{_ASKED}" data-scripts="{_DRAWN_WITH}" data-plain="{" ".join(plain)}"'
    first = f'<script src="/assets/{FIRST}" {about}></script>'
    return f"""<!DOCTYPE html>
<html lang="en">
<head>{{%metas%}}<title>{{%title%}}</title>{{%favicon%}}{{%css%}}{first}</head>
<body>{{%app_entry%}}<footer>{{%config%}}{{%scripts%}}{{%renderer%}}</footer></body>
</html>"""


def keep_packed(server: Flask) -> None:
    """Answer for fixed files with what was packed when they were first asked for; call it after whoever refuses requests."""
    kept: Remembered[tuple[bytes, dict[str, str]]] = Remembered(KEPT_BYTES, lambda each: len(each[0]))

    def fixed() -> Response | None:
        asked = request.method == "GET" and request.path.startswith(FIXED) and request.endpoint is not None
        if not asked or "gzip" not in request.headers.get("Accept-Encoding", "") or request.headers.get("Range"):
            return None
        try:
            body, headers = kept.get(request.path, lambda: _packed(server))
        except _NotKeptError as other:
            return other.response
        response = Response(body, headers=headers)
        response.make_conditional(request)
        return response

    server.before_request(fixed)


class _NotKeptError(Exception):
    """An answer that is not to be kept."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response = response


def _packed(server: Flask) -> tuple[bytes, dict[str, str]]:
    """The answer of the view that the request is for, packed, and its headers."""
    assert request.endpoint is not None
    response = make_response(server.view_functions[request.endpoint](**(request.view_args or {})))
    if response.status_code != 200:
        raise _NotKeptError(response)
    response.direct_passthrough = False
    body = plotly_source().encode() if request.path == PLOTLY else response.get_data()
    if len(body) < LEAST_BYTES:
        raise _NotKeptError(response)
    headers = {name: value for name, value in response.headers if name not in ("Content-Length", "Date", "Set-Cookie")}
    packed = gzip.compress(body, 6, mtime=0)
    headers |= {"Content-Encoding": "gzip", "Vary": "Accept-Encoding", "ETag": f'"{hashlib.sha256(packed).hexdigest()[:32]}"'}
    return packed, headers
