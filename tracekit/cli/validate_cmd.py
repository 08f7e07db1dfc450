"""``tracekit validate`` and ``anonymize``: what a file is worth before it is loaded, and giving a part of it away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracekit.cli.options import AsJson, Debug
from tracekit.cli.output import emit, print_table, print_text, safe
from tracekit.cli.reading_options import ArrivalOption, CachedOption, Dedupe, Format, Map, MaxDropped, OnError, OnErrorOption

if TYPE_CHECKING:
    from tracekit.traces.load import LoadReport

__all__ = ["register"]

UNUSABLE = 3

Files = Annotated[
    list[str], typer.Argument(metavar="FILE...", help="Files, globs, a folder, or - for standard input; plain or gzipped.")
]
Rows = Annotated[int, typer.Option("--rows", metavar="N", min=0, help="How many bad rows are listed.")]
Out = Annotated[Path, typer.Option("--out", metavar="FILE", help="The file to write, .jsonl or .jsonl.gz; it must not be there.")]
Window = Annotated[
    str | None, typer.Option("--window", metavar="FROM:TO", help="Only what arrives in this part of the trace, as 10m:20m.")
]
Salt = Annotated[
    str | None, typer.Option("--salt", metavar="TEXT", help="Makes hashes of ids the same in another run [default: random].")
]


def validate(
    files: Files,
    rows: Rows = 20,
    mapping: Map = None,
    trace_format: Format = None,
    arrival: ArrivalOption = None,
    cached: CachedOption = None,
    on_error: OnErrorOption = OnError.skip,
    max_dropped: MaxDropped = None,
    dedupe: Dedupe = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> int:
    """Say what a file is and which rows would be dropped, without loading it."""
    from tracekit.traces.tolerance import tolerance
    from tracekit.traces.validate import validate as validate_inputs

    report, refused = validate_inputs(
        files, allowed=tolerance(on_error.value, max_dropped, dedupe), mapping=list(mapping or ()), fmt=trace_format,
        arrival=arrival, cached=None if cached is None else cached.value,
    )  # fmt: skip
    found = report.as_dict()
    document = {
        "schema": "tracekit.validate/1",
        "usable": refused is None,
        "refused": refused,
        **{name: found[name] for name in ("format", "detected_by", "files", "rows_read", "rows_kept", "rows_dropped", "span_ns",
                                          "t0_ns", "arrival_kind", "block_tokens", "times", "ignored_columns", "warnings")},
        "bad_rows": found["rejects"][:rows],
    }  # fmt: skip
    emit(document, as_json, lambda: print_text("\n".join(_lines(report, refused, rows))))
    return 0 if refused is None else UNUSABLE


def _lines(report: LoadReport, refused: str | None, rows: int) -> Iterator[str]:
    yield f"{', '.join(map(safe, report.files))}: {report.format} ({safe(report.detected_by)})"
    yield from (f"times in {safe(column)}: {safe(how)}" for column, how in report.times.items())
    dropped = sum(report.rows_dropped.values())
    yield f"rows: {report.rows_read:,} read = {report.rows_kept:,} kept + {dropped:,} dropped; {report.span_ns / 1e9:,.1f} s"
    yield from (f"dropped {count:,}: {safe(reason)}" for reason, count in report.rows_dropped.items())
    for reject in report.rejects[:rows]:
        column = f", column {safe(reject.column)}" if reject.column else ""
        value = f" '{safe(reject.value)}'" if reject.value is not None else ""
        yield f"  {safe(reject.file)}, line {reject.line}{column}:{value} {safe(reject.reason)}"
    yield from (f"note: {safe(warning)}" for warning in report.warnings)
    if report.ignored_columns:
        yield f"columns not used: {safe(', '.join(report.ignored_columns))}"
    yield "usable" if refused is None else f"not usable: {safe(refused)}"


def anonymize(
    files: Files,
    out: Out,
    window: Window = None,
    salt: Salt = None,
    mapping: Map = None,
    trace_format: Format = None,
    arrival: ArrivalOption = None,
    cached: CachedOption = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Write a slice that can be given away: ids hashed, names numbered, times from zero; and say what is in it."""
    from tracekit.traces.anonymize import anonymize as write_slice

    found = write_slice(
        files, out, window=window, salt=salt, mapping=list(mapping or ()), fmt=trace_format, arrival=arrival,
        cached=None if cached is None else cached.value,
    )  # fmt: skip
    emit({"schema": "tracekit.anonymize/1", **found}, as_json, lambda: _print_left(found))


def _print_left(found: dict[str, Any]) -> None:
    print_text(f"{safe(found['file'])}: {found['rows']:,} requests; {found['rows_left_behind']:,} stay behind")
    rows = [[column["column"], column["values"], column.get("distinct"), column["range"]] for column in found["columns"]]
    print_table(["column", "values", "distinct", "what leaves"], rows)


def register(app: typer.Typer) -> None:
    app.command("validate", short_help="Say what a file is and which rows would be dropped.")(validate)
    app.command("anonymize", short_help="Write a slice of a trace that can be given away.")(anonymize)
