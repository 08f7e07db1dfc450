"""``tracekit load``, ``traces`` and ``synth``: request traces in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli.options import DEFAULT_DB, AsJson, Db, Debug
from tracekit.cli.output import emit, print_table, print_text

__all__ = ["register"]

Files = Annotated[
    list[str], typer.Argument(metavar="FILE...", help="Files, globs, a folder, or - for standard input; plain or gzipped.")
]
Map = Annotated[
    list[str] | None,
    typer.Option("--map", metavar="COLUMN=SOURCE", help="A canonical column from a source column, as arrival=ts:ms; repeatable."),
]
Format = Annotated[
    str | None, typer.Option("--format", metavar="NAME", help="The trace's format; found by its content when not given.")
]
Name = Annotated[str | None, typer.Option("--name", metavar="TEXT", help="The trace's name in the database.")]


def load(
    files: Files,
    mapping: Map = None,
    trace_format: Format = None,
    name: Name = None,
    db: Db = DEFAULT_DB,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Load a trace into the database and say what was kept and what was dropped."""
    from tracekit.store import Store
    from tracekit.traces import load_trace

    with Store(db).write("load a trace") as con:
        report = load_trace(con, files, name=name, mapping=list(mapping or ()), fmt=trace_format)
    document = {"schema": "tracekit.load/1", **report.to_dict()}
    emit(document, as_json, lambda: print_text("\n".join(report.lines())))


def traces(db: Db = DEFAULT_DB, as_json: AsJson = False, debug: Debug = False) -> None:
    """List the loaded traces."""
    from tracekit.store import Store
    from tracekit.traces import list_traces

    with Store(db).read() as con:
        found = list_traces(con)
    head = list(found[0]) if found else []
    rows = [list(row.values()) for row in found]
    empty = "no traces yet; `tracekit load FILE` loads one"
    emit({"schema": "tracekit.traces/1", "traces": found}, as_json, lambda: print_table(head, rows, empty=empty))


def synth(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write, .jsonl or .jsonl.gz.")],
    requests: Annotated[int, typer.Option("--requests", metavar="N", min=1, help="How many requests.")] = 2000,
    seed: Annotated[int, typer.Option("--seed", help="Same seed, same bytes.")] = 0,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Make a synthetic trace: bursts, shared prefixes, three tenants."""
    from tracekit.traces.synth import synthesise, write_jsonl

    write_jsonl(synthesise(requests, seed=seed), out)
    document = {"schema": "tracekit.synth/1", "file": str(out), "requests": requests, "seed": seed}
    emit(document, as_json, lambda: print_text(f"{out}: {requests:,} requests, seed {seed}"))


def register(app: typer.Typer) -> None:
    app.command("load")(load)
    app.command("traces")(traces)
    app.command("synth")(synth)
