"""``tracekit load`` and ``traces``: request traces in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli.options import DEFAULT_DB, AsJson, Db, Debug
from tracekit.cli.output import emit, print_table, print_text, safe
from tracekit.cli.reading_options import ArrivalOption, CachedOption, Dedupe, Format, Map, MaxDropped, OnError, OnErrorOption

if TYPE_CHECKING:
    from tracekit.traces.load import LoadReport

__all__ = ["register"]

REJECTS_SHOWN = 5

Files = Annotated[
    list[str], typer.Argument(metavar="FILE...", help="Files, globs, a folder, or - for standard input; plain or gzipped.")
]
SharedPrefix = Annotated[
    str | None,
    typer.Option("--shared-prefix", metavar="TOKENS[@REQUESTS]", help="All prompts begin with the same so many tokens (a chat"
                 " template, a system prompt), where the trace has no block hashes; with @REQUESTS so many on average, and none"
                 " in the first so many requests."),
]  # fmt: skip
Name = Annotated[str | None, typer.Option("--name", metavar="TEXT", help="The trace's name in the database.")]


_LISTED = """SELECT trace, name, source_format AS format, rows_kept AS requests, rows_read - rows_kept AS dropped,
    round(span_ns / 1e9, 3) AS span_s, block_tokens, loaded_at FROM traces ORDER BY trace"""


def load(
    files: Files,
    mapping: Map = None,
    trace_format: Format = None,
    arrival: ArrivalOption = None,
    cached: CachedOption = None,
    on_error: OnErrorOption = OnError.skip,
    max_dropped: MaxDropped = None,
    dedupe: Dedupe = False,
    shared_prefix: SharedPrefix = None,
    name: Name = None,
    db: Db = DEFAULT_DB,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Load a trace into the database and say what was kept and what was dropped."""
    from tracekit.store import Store
    from tracekit.traces.load import load_trace
    from tracekit.traces.said_prefix import Beginning
    from tracekit.traces.tolerance import tolerance

    allowed = tolerance(on_error.value, max_dropped, dedupe)
    said = None if shared_prefix is None else Beginning.parse(shared_prefix, "--shared-prefix")
    with Store(db).write("load a trace") as con:
        report = load_trace(con, files, name=name, mapping=list(mapping or ()), fmt=trace_format, arrival=arrival,
                            tolerance=allowed, cached=None if cached is None else cached.value,
                            shared_prefix=said)  # fmt: skip
    emit({"schema": "tracekit.load/1", **report.as_dict()}, as_json, lambda: print_text("\n".join(_lines(report))))


def _lines(report: LoadReport) -> Iterator[str]:
    again = ", loaded before" if report.already_loaded else ""
    yield f"trace {report.trace} '{safe(report.name)}': {report.format} ({safe(report.detected_by)}){again}"
    dropped = sum(report.rows_dropped.values())
    rows = f"rows: {report.rows_read:,} read = {report.rows_kept:,} kept + {dropped:,} dropped"
    yield f"{rows}; {report.span_ns / 1e9:,.1f} s of arrivals"
    yield from (f"dropped {count:,}: {safe(reason)}" for reason, count in report.rows_dropped.items())
    for reject in report.rejects[:REJECTS_SHOWN]:
        column = f", column {safe(reject.column)}" if reject.column else ""
        yield f"  {safe(reject.file)}, line {reject.line}{column}: {safe(reject.reason)}"
    if dropped > REJECTS_SHOWN:
        yield '  and more: tracekit sql "SELECT * FROM quarantine" has the first thousand'
    yield from (f"note: {safe(warning)}" for warning in report.warnings)
    if report.ignored_columns:
        yield f"columns not used: {safe(', '.join(report.ignored_columns))}"


def traces(db: Db = DEFAULT_DB, as_json: AsJson = False, debug: Debug = False) -> None:
    """List the loaded traces."""
    from tracekit.store import Store, sql

    store = Store(db)
    there = sql(store, "SELECT 1 FROM duckdb_tables() WHERE table_name = 'traces'").rows
    found = sql(store, _LISTED) if there else None
    columns, rows = (found.columns, found.rows) if found else ([], [])
    document = {"schema": "tracekit.traces/1", "traces": [dict(zip(columns, row, strict=True)) for row in rows]}
    emit(document, as_json, lambda: print_table(columns, rows, empty="no traces yet; `tracekit load FILE` loads one"))


def register(app: typer.Typer) -> None:
    app.command("load", short_help="Load a trace into the database.")(load)
    app.command("traces")(traces)
