"""A real browser for the tests: which one, and how it is started."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dashboards.app import create_app
from dashboards.serve import bound
from tests.dashboards.watched import leave

__all__ = ["ARGUMENTS", "chromium", "served", "serving"]

ROOT = Path(__file__).parents[2]
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip


def chromium() -> str | None:
    """The Chromium to test with: ``TRACEKIT_CHROMIUM``, else the system's."""
    named = os.environ.get("TRACEKIT_CHROMIUM")
    return named or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


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
    command = [sys.executable, "-m", "tracekit.cli.main", "dashboard", "--db", str(db), "--port", "0", "--json", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    url = ""
    try:
        url = _announced(process)["url"]
        yield url
    finally:
        leave(url)
        process.terminate()
        said = process.communicate(timeout=30)[1]
        assert "Traceback" not in said, said


def _announced(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    lines = []
    while lines[-1:] != ["}\n"]:
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        lines.append(line)
    document: dict[str, Any] = json.loads("".join(lines))
    return document
