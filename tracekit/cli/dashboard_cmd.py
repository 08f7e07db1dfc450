"""``tracekit dashboard``: runs in a browser, finished ones and those under way."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from tracekit.cli.options import DEFAULT_DB, AsJson, Db, Debug
from tracekit.cli.output import note, print_json

__all__ = ["register"]

Port = Annotated[int, typer.Option("--port", min=0, max=65535, metavar="N", help="Port to serve on; 0 takes a free one.")]
Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address to serve on; beyond loopback it needs a token.")]
Token = Annotated[
    str | None,
    typer.Option("--token", metavar="TEXT", envvar="TRACEKIT_TOKEN", show_envvar=False,
                 help="What callers must know, 16 characters or more; better in TRACEKIT_TOKEN, where `ps` does not show it."),
]  # fmt: skip
AllowHost = Annotated[
    list[str] | None, typer.Option("--allow-host", metavar="NAME", help="Another host name to answer to, repeatable.")
]
ReadOnly = Annotated[bool, typer.Option("--read-only", help="Let the pages start nothing.")]
NoOpen = Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")]


def dashboard(
    db: Db = DEFAULT_DB,
    port: Port = 8050,
    host: Host = "127.0.0.1",
    token: Token = None,
    allow_host: AllowHost = None,
    read_only: ReadOnly = False,
    no_open: NoOpen = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Serve the runs of a database as pages, finished ones and those under way, until interrupted."""
    from dashboards.access import settle_access
    from dashboards.serve import serve

    access = settle_access(host=host, token=token, names=tuple(allow_host or ()), read_only=read_only)

    os.environ.pop("TRACEKIT_TOKEN", None)  # jobs that pages start need not know it

    def started(url: str) -> None:
        if as_json:
            print_json({"schema": "tracekit.dashboard/1", "url": url, "db": str(db)})
        missing = "" if db.exists() else f"; {db} is not there yet: it appears with the first replay"
        asks = "" if access.token is None else "; it asks for the token"
        note(f"{db} is at {url} until Ctrl-C{asks}{missing}")

    serve(db, access=access, port=port, open_browser=not no_open and not as_json, started=started)


def register(app: typer.Typer) -> None:
    app.command("dashboard", short_help="Show runs in the browser, live while they replay.")(dashboard)
