"""Serving the app from this process until it is interrupted."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dashboards.access import Access
from tracekit.errors import UsageError, shown
from tracekit.store import Store

__all__ = ["bound", "check_database", "serve"]


def serve(db: Path, *, access: Access, port: int, open_browser: bool, started: Callable[[str], None]) -> None:
    """Serve the dashboard of ``db`` on ``access.host``; ``started`` gets the URL once requests are answered. Returns when
    interrupted.

    ``UsageError`` where the address is taken or is none, or ``db`` is not a database of tracekit's.
    """
    host = access.host
    check_database(db)
    _try_address(host, port)
    from dashboards.app import create_app  # half a second, so after what can be refused

    server = bound(create_app(db, access=access).server, host, port)
    name = f"[{host}]" if ":" in host else host
    url = f"http://{name}:{server.server_port}/"
    with contextlib.suppress(KeyboardInterrupt):
        started(url)
        if open_browser and _has_desktop():
            webbrowser.open(url)
        server.serve_forever()
    server.server_close()


def check_database(db: Path) -> None:
    """``UsageError`` or ``InputError`` where ``db`` can never be served: no folder to hold it, or a file of another kind."""
    if not db.parent.is_dir():
        raise UsageError(f"{db}: no such folder; expected a path in an existing folder")
    store = Store(db)
    if store.exists():
        with store.read():
            pass


def _try_address(host: str, port: int) -> None:
    """Refuse an address that cannot be had; Werkzeug itself would end the process."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
    except OSError as error:
        why = error.strerror or error
        raise UsageError(f"{shown(host)}:{port}: cannot be served on ({why}); choose another with --port") from None


def bound(application: Any, host: str, port: int) -> Any:
    """A server that answers each request in a thread of its own, on an address that is free."""
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    return make_server(host, port, application, threaded=True)


def _has_desktop() -> bool:
    """Whether a browser window can open; on a bare terminal ``webbrowser`` would start a text browser over it."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
