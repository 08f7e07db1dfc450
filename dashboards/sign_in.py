"""Giving the token once: by the form, or in the address, out of which it goes again at once."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from typing import Any
from urllib.parse import urlencode

from flask import Flask, Response, make_response, redirect, request

from dashboards.access import SESSION_S, Access

__all__ = ["SIGN_IN", "SIGN_OUT", "challenge", "register_sign_in"]

SIGN_IN = "/sign-in"
SIGN_OUT = "/sign-out"
_SCRIPT = (
    "const given = new URLSearchParams(location.hash.slice(1)).get('token');"
    "if (given) { history.replaceState(null, '', location.pathname + location.search);"
    " document.getElementById('token').value = given; document.getElementById('form').submit(); }"
)
"""A token behind ``#`` never leaves the browser but by the form: no server's log sees it."""
_STYLE = (
    "body{font:16px system-ui,sans-serif;margin:12vh auto;max-width:28rem;padding:0 1rem;color-scheme:light dark}"
    "label,input,button{display:block;width:100%;box-sizing:border-box;font:inherit;margin-top:.6rem}"
    "input,button{min-height:44px;padding:.4rem .8rem}"
)


def challenge(access: Access) -> Response | None:
    """What somebody gets who may not read yet; ``None``: may read. A token in the address is taken and cut out of it."""
    given = request.args.get("token")
    if request.method == "GET" and given is not None and access.token is not None:
        rest = [(key, value) for key, value in request.args.items(multi=True) if key != "token"]
        clean = request.path + (f"?{urlencode(rest)}" if rest else "")
        answer = make_response(redirect(clean, 303))
        return _signed_in(access, answer) if access.is_token(given) else answer
    if access.lets_in(request):
        return None
    if access.token is None:
        return make_response("This server answers this machine only: other machines need a token.\n", 403)
    if request.method != "GET" or "text/html" not in request.headers.get("Accept", ""):
        answer = make_response("Not signed in: the token is needed.\n", 401)
        answer.headers["WWW-Authenticate"] = "Bearer"
        return answer
    if request.headers.get("Sec-Fetch-Site") == "cross-site":
        return _once_more()
    return _form(_inside(request.full_path.rstrip("?")))


def register_sign_in(server: Flask, access: Access) -> None:
    """The form's answer, and the way out."""

    def sign_in() -> Response:
        there = _inside(request.form.get("next", "/"))
        if not access.is_token(request.form.get("token", "").strip()):
            return _form(there, "That is not the token.")
        return _signed_in(access, make_response(redirect(there, 303)))

    def sign_out() -> Response:
        answer = make_response(redirect("/", 303))
        answer.delete_cookie(access.cookie, samesite="Strict", httponly=True)
        return answer

    server.add_url_rule(SIGN_IN, view_func=sign_in, methods=["POST"])
    server.add_url_rule(SIGN_OUT, view_func=sign_out, methods=["POST"])


def _signed_in(access: Access, answer: Response) -> Response:
    session: dict[str, Any] = {"httponly": True, "samesite": "Strict", "secure": request.is_secure, "max_age": SESSION_S}
    answer.set_cookie(access.cookie, access.new_session(), **session)
    return answer


def _inside(there: str) -> str:
    """Where a page may lead: a path of this server, never another one."""
    odd = "\\" in there or not there.isprintable()
    return "/" if odd or not there.startswith("/") or there.startswith("//") else there


def _once_more() -> Response:
    """Whoever comes by a link on another site brings no strict cookie; the same address asked for by this page does."""
    there = escape(_inside(request.full_path.rstrip("?")), quote=True)
    text = (
        f'<!doctype html><title>tracekit</title><meta http-equiv="refresh" content="0; url={there}"><a href="{there}">Go on</a>'
    )
    return _page(text, 200)


def _form(there: str, said: str = "") -> Response:
    text = (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>tracekit</title><style>{_STYLE}</style><h1>tracekit</h1>"
        f'<form id="form" method="post" action="{SIGN_IN}"><label for="token">Token</label>'
        '<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>'
        f'<input type="hidden" name="next" value="{escape(there, quote=True)}"><button>Sign in</button>'
        f'</form><p role="alert">{escape(said)}</p><script>{_SCRIPT}</script></html>'
    )
    return _page(text, 401)


def _page(text: str, status: int) -> Response:
    answer = make_response(text, status)
    digest = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    answer.headers["Content-Security-Policy"] = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none';"
        " frame-ancestors 'none'"
    )
    return answer
