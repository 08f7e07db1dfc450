"""Can one believe this? How the trace was read and what was not, which findings need what is missing, and how far the profile
is to be trusted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dash import Dash, Input, Output, html

from dashboards.address import parse_address
from dashboards.markup import data_table
from dashboards.queries import RunBook
from dashboards.spoken import spoken
from dashboards.traffic import load_report
from dashboards.words import MISSING, count, percent, short
from tracekit.errors import TracekitError
from tracekit.store import load_run
from tracekit.traces.load import LoadReport

__all__ = ["layout", "register", "render"]

REJECTS = 200


def layout() -> Any:
    return html.Div(
        [
            html.H1("Data quality"),
            html.P("Loading …", id="dq-said", className="summary", role="status"),
            html.Div(id="dq-body"),
        ]
    )


def register(app: Dash, book: RunBook) -> None:
    def show(search: str | None) -> tuple[Any, Any]:
        return render(book, search)

    app.callback(Output("dq-said", "children"), Output("dq-body", "children"), Input("url", "search"))(show)


def render(book: RunBook, search: str | None) -> tuple[Any, Any]:
    """The sentence at the head, and all below it."""
    ref = parse_address(search).run
    try:
        report = load_report(book, ref)
        row = book.recorded(ref)
        assert row is not None
        run = load_run(book.store, row["run"])
    except TracekitError as error:
        return spoken(error), None
    return _said(report), [*_reading(report), *_trust(run), *_kept(run), *_quarantine(report)]


def _said(report: LoadReport) -> str:
    dropped = report.rows_read - report.rows_kept
    share = dropped / report.rows_read if report.rows_read else 0.0
    lost = f"{count(dropped)} rows ({percent(share)}) were not taken" if dropped else "every row was taken"
    return f"{report.name}: read as {report.format}, {count(report.rows_kept)} of {count(report.rows_read)} rows; {lost}."


def _reading(report: LoadReport) -> Iterator[Any]:
    yield html.H2("How the trace was read")
    rows = [
        ["Format", f"{report.format} ({report.detected_by})"],
        ["Files", ", ".join(name.rsplit("/", 1)[-1] for name in report.files)],
        ["SHA-256", report.digest[:16] + " …"],
        ["Latencies observed at", report.obs_clock or "none in the trace: predictions cannot be held against it"],
        ["Prefix identities", f"blocks of {report.block_tokens} tokens" if report.block_tokens else "none: no reuse can be seen"],
        ["Columns not used", ", ".join(report.ignored_columns) or "none"],
        *([f"Times of {name}", how] for name, how in report.times.items()),
    ]
    yield data_table(("What", "Found"), rows, caption="Facts of the file", numeric=9)
    for reason, rows_lost in report.rows_dropped.items():
        yield html.P(f"{count(rows_lost)} rows not taken: {reason}", className="notice")
    for warning in report.warnings:
        yield html.P(warning, className="notice")


def _trust(run: dict[str, Any]) -> Iterator[Any]:
    yield html.H2("How far to trust the engine's times")
    profile = (run["matrix"] or {}).get("profile") or {}
    error = profile.get("error_on_trace")
    if run["engine"] == "torch":
        yield html.P("Measured on a real engine: times are what they were on that machine.", className="summary")
        return
    origin = profile.get("origin")
    told = origin.get("reason") if isinstance(origin, dict) else origin
    yield html.P(f"Simulated with profile {run['profile']}: {told or 'origin not recorded'}.", className="summary")
    if isinstance(error, dict) and error.get("value", 0) is None and "reason" in error:
        yield html.P(f"Its error on this trace is {error['reason']}.", className="notice")
    elif isinstance(error, dict):
        rows = [[name.removesuffix("_ns").upper(), *_errors(each)] for name, each in error.items() if isinstance(each, dict)]
        yield data_table(("Latency", "What", "Error"), [row[:3] for row in rows], caption="Replayed against observed", numeric=2)


def _errors(each: dict[str, Any]) -> list[str]:
    text = "; ".join(f"{key} {short(value)}" for key, value in each.items() if isinstance(value, float | int))
    return [text or str(each.get("reason", MISSING)), ""]


def _kept(run: dict[str, Any]) -> Iterator[Any]:
    yield html.H2("What this run kept")
    full = run["events"] in (None, "full")
    yield html.P(
        "Every iteration, span and outcome: every page can be drawn."
        if full
        else f"Recorded with --events {run['events']}: without iterations and spans there is no timeline, no waterfall and no"
        " blame; replay with --events full.",
        className="summary" if full else "notice",
    )
    matrix = run["matrix"] or {}
    gone = sorted(
        {
            f"{section}: {value['reason']}"
            for section, fields in matrix.items()
            if isinstance(fields, dict)
            for value in fields.values()
            if isinstance(value, dict) and value.get("reason")
        }
    )
    if gone:
        yield html.Details(
            [
                html.Summary("Figures of the matrix that this run does not have, and why"),
                html.Ul([html.Li(each) for each in gone]),
            ]
        )


def _quarantine(report: LoadReport) -> Iterator[Any]:
    yield html.H2("Quarantine")
    if not report.rejects:
        yield html.P("No row is in quarantine.", className="summary")
        return
    rows = [
        [each.file.rsplit("/", 1)[-1], count(each.line), each.column or MISSING, str(each.value)[:80], each.reason]
        for each in report.rejects[:REJECTS]
    ]
    more = f"; the first {REJECTS} are shown" if len(report.rejects) > REJECTS else ""
    yield data_table(
        ("File", "Line", "Column", "Value", "Reason"),
        rows,
        caption=f"{count(len(report.rejects))} rows in quarantine{more}",
        numeric=9,
    )
