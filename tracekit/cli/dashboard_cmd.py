"""``tracekit dashboard``: runs in a browser, finished ones and those under way."""

from __future__ import annotations

from typing import Annotated

import typer

from tracekit.cli.options import DEFAULT_DB, AsJson, Db, Debug
from tracekit.cli.output import note, print_json

__all__ = ["register"]

Port = Annotated[int, typer.Option("--port", min=0, max=65535, metavar="N", help="Port to serve on; 0 takes a free one.")]
Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address to serve on; any but a loopback one is public.")]
NoOpen = Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")]


def dashboard(
    db: Db = DEFAULT_DB,
    port: Port = 8050,
    host: Host = "127.0.0.1",
    no_open: NoOpen = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Serve the runs of a database as pages, finished ones and those under way, until interrupted."""
    from dashboards.serve import serve

    def started(url: str) -> None:
        if as_json:
            print_json({"schema": "tracekit.dashboard/1", "url": url, "db": str(db)})
        missing = "" if db.exists() else f"; {db} is not there yet: it appears with the first replay"
        note(f"{db} is at {url} until Ctrl-C{missing}")

    serve(db, host=host, port=port, open_browser=not no_open and not as_json, started=started)


def register(app: typer.Typer) -> None:
    app.command("dashboard", short_help="Show runs in the browser, live while they replay.")(dashboard)
