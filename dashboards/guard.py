"""What every request passes before a page sees it, and what every answer carries: checks, headers, health, quiet errors."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path
from typing import Any

from dash import Dash
from dash.exceptions import DependencyException
from flask import Flask, Response, abort, jsonify, make_response, request
from werkzeug.exceptions import HTTPException

from dashboards.access import Access, forged
from dashboards.scripts import FIXED, keep_packed
from dashboards.sign_in import SIGN_IN, challenge, register_sign_in
from dashboards.uploads import MOST_BYTES
from tracekit import __version__
from tracekit.errors import shown

__all__ = ["HEALTH", "guard"]

HEALTH = "/health"
ASKED = "/_dash-update-component"
LONGEST_QUERY = 8192
_OURS = tuple(Path(__file__).resolve().parents[1] / name for name in ("dashboards", "tracekit", "tuner", "replay_engine"))
_LOG = logging.getLogger("tracekit.dashboard")
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin-allow-popups",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
}


def guard(app: Dash, access: Access) -> None:
    """Put checks and headers around an app whose callbacks are all registered: its own inline scripts are named by digest."""
    server: Flask = app.server
    policy = _policy(app)
    server.config["MAX_CONTENT_LENGTH"] = MOST_BYTES * 4 // 3 + (1 << 20)

    def check() -> Response | None:
        if not access.answers_to(request.host):
            abort(403, "this dashboard answers to its own address only")
        if forged(request):
            abort(403, "asked by another site")
        if len(request.query_string) > LONGEST_QUERY:
            abort(414)
        if request.path == HEALTH or (request.path == SIGN_IN and request.method == "POST" and access.token is not None):
            return None
        return challenge(access)

    def dress(response: Response) -> Response:
        response.headers.setdefault("Content-Security-Policy", policy)
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        if not request.path.startswith(FIXED):
            response.headers["Cache-Control"] = "no-store"  # a shared machine keeps nothing of the runs
        return response

    server.before_request(check)
    keep_packed(server)
    server.after_request(dress)
    server.add_url_rule(HEALTH, view_func=lambda: jsonify(status="ok", version=__version__))
    server.errorhandler(DependencyException)(lambda _: make_response("No such file.\n", 404))
    server.errorhandler(Exception)(_failed)
    if access.token is not None:
        register_sign_in(server, access)


def _policy(app: Dash) -> str:
    """From elsewhere nothing is loaded and nothing is sent there; of inline scripts only the app's own run."""
    hashes = " ".join(app.csp_hashes())
    return (
        f"default-src 'self'; script-src 'self' {hashes}; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:;"
        " font-src 'self' data:; connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self';"
        " frame-ancestors 'none'"
    )


def _failed(error: Exception) -> Any:
    """An error of ours: the log gets where it arose, not what it says, since that may be a row of somebody's trace."""
    if isinstance(error, HTTPException):
        return error
    every = traceback.extract_tb(error.__traceback__)
    if request.path == ASKED and not any(Path(each.filename).resolve().is_relative_to(ours) for each in every for ours in _OURS):
        return make_response("Not what a page of this dashboard asks.\n", 400)  # Dash could not even find whom to ask
    frames = every[-4:]
    where = " > ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
    _LOG.error("%s at %s while answering %s", type(error).__name__, where, shown(request.path))
    return make_response("This page failed; the server's log says where.\n", 500)
