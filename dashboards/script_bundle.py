"""All scripts that a page needs before it shows anything, as one: a browser asks once, where it asked twenty times.

Left out is what no page needs: Babel's polyfill, for browsers of a decade ago, which takes as long to run as all others together
(``assets/early.js`` has the one thing of it that Dash's own scripts use), and Dash's older tables. The grid's place is taken by
what reads the grid when one is drawn (``assets/grid.js``).
"""

from __future__ import annotations

import hashlib
import re
import threading
from pathlib import Path
from typing import Any

from dash import Dash
from flask import Response, make_response

__all__ = ["BUNDLE", "GRID", "LEFT_OUT", "BundledDash", "script_paths"]

BUNDLE = "/_dash-component-suites/dash/dcc/with-dash-renderer.js"
"""Where it is asked for. Dash looks for parts that are read later beside the script it is in, and wants its renderer named."""
GRID = re.compile(r"/_dash-component-suites/dash_ag_grid/dash_ag_grid\.[\w.]*min\.js")
LEFT_OUT = re.compile(r"/dash/deps/polyfill@|/dash/dash_table/")
_ASSETS = Path(__file__).parent / "assets"
_TAG = re.compile(r'<script src="([^"?]+)(?:\?[^"]*)?"></script>')
_YEAR_S = 31_536_000


def script_paths(tags: str) -> list[str]:
    """Paths of the scripts in what Dash would put on the page, in their order, without what is left out."""
    return [path for path in _TAG.findall(tags) if not LEFT_OUT.search(path)]


class BundledDash(Dash):
    """Dash, whose page loads its scripts as one. ``bundle_scripts`` is called once all callbacks are registered."""

    _bundled: tuple[bytes, str] | None = None
    _bundling = threading.Lock()

    def interpolate_index(self, **parts: Any) -> str:  # type: ignore[override]  # Dash calls it with all parts, by name
        """The page around the app, with one script for all that Dash lists."""
        _, mark = self._bundle()
        own = _TAG.sub("", parts["scripts"]).strip()
        parts["scripts"] = f'<script src="{BUNDLE}?v={mark}"></script>{own}'
        page: str = super().interpolate_index(**parts)  # type: ignore[no-untyped-call]
        return page

    def bundle_scripts(self) -> None:
        """Answer for the bundle; before any other rule that would."""
        self.server.add_url_rule(BUNDLE, "scripts_as_one", self._answer)

    def _answer(self) -> Response:
        response = make_response(self._bundle()[0])
        response.headers["Content-Type"] = "text/javascript; charset=utf-8"
        response.headers["Cache-Control"] = f"max-age={_YEAR_S}"
        return response

    def _bundle(self) -> tuple[bytes, str]:
        """The script and the mark of what is in it; made once, within a request."""
        with self._bundling:
            if self._bundled is None:
                tags: str = self._generate_scripts_html()
                # the first line keeps a file's "use strict" from all that follow it
                text = b"\n".join([b";", *(self._source(path) + b"\n;" for path in script_paths(tags))])
                self._bundled = text, hashlib.sha256(text).hexdigest()[:16]
            return self._bundled

    def _source(self, path: str) -> bytes:
        if GRID.fullmatch(path):
            return (_ASSETS / "grid.js").read_bytes().replace(b"GRID_SCRIPT", f'"{path}"'.encode())
        with self.server.test_request_context(path):
            endpoint, values = self.server.url_map.bind("localhost").match(path)
            response = make_response(self.server.view_functions[endpoint](**values))
            response.direct_passthrough = False
            assert response.status_code == 200, path
            return response.get_data()
