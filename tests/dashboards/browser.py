"""A dashboard for the tests, served by this process or by one of its own; its pages are left before it stops."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import pages
from dashboards.app import create_app
from dashboards.serve import bound
from tests.dashboards.watched import leave

__all__ = ["ROOT", "served", "serving"]

ROOT = pages.ROOT


@contextmanager
def serving(db: Path) -> Iterator[str]:
    """The dashboard served by this process, which saves starting one; its URL."""
    server = bound(create_app(db).server, "127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/"
    try:
        yield url
    finally:
        leave(url)
        server.shutdown()
        thread.join(30)
        server.server_close()


@contextmanager
def served(db: Path, *options: str) -> Iterator[str]:
    """``tracekit dashboard`` in a process of its own; its URL."""
    with pages.served(db, *options) as (url, _):
        try:
            yield url
        finally:
            leave(url)
