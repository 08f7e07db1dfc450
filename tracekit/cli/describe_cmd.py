"""``tracekit describe``: what a trace is, and a slice of it beside the whole."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tracekit.cli.options import DEFAULT_DB, AsJson, Db, Debug
from tracekit.cli.reading_options import ArrivalOption, CachedOption
from tracekit.cli.slice_options import ByOption, Limit, RateScale, Seed, SpreadTicks, Thin, Where, Window

__all__ = ["register"]

Inputs = Annotated[
    list[str],
    typer.Argument(metavar="TRACE...", help="The name of a loaded trace; or files, globs, a folder, -, read and not kept."),
]
Map = Annotated[
    list[str] | None,
    typer.Option("--map", metavar="COLUMN=SOURCE", help="A canonical column from a source column, as arrival=ts:ms; repeatable."),
]
Format = Annotated[
    str | None, typer.Option("--format", metavar="NAME", help="The trace's format; found by its content when not given.")
]
WindowLength = Annotated[
    int | None,
    typer.Option("--window-length", metavar="S", min=4, help="Seconds of a representative window [default: for 1,000 requests]."),
]


def describe(
    inputs: Inputs,
    window: Window = None,
    where: Where = None,
    thin: Thin = None,
    by: ByOption = None,
    limit: Limit = None,
    rate_scale: RateScale = 1.0,
    spread_ticks: SpreadTicks = False,
    seed: Seed = 0,
    window_length: WindowLength = None,
    mapping: Map = None,
    trace_format: Format = None,
    arrival: ArrivalOption = None,
    cached: CachedOption = None,
    db: Db = DEFAULT_DB,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Say what a trace is: rates, bursts, lengths, prefix reuse, tenants, sessions, and which windows stand for it."""
    _run(**locals())


def _run(*, inputs: list[str], as_json: bool, debug: bool, **options: Any) -> None:
    from tracekit.cli.output import emit, print_text
    from tracekit.describe import describe as describe_inputs
    from tracekit.describe import render

    for name in ("by", "cached"):
        options[name] = None if options[name] is None else options[name].value
    options["mapping"] = tuple(options["mapping"] or ())
    document = describe_inputs(inputs, **options)
    emit(document, as_json, lambda: print_text(render(document)))


def register(app: typer.Typer) -> None:
    app.command("describe", short_help="Say what a trace is: rates, bursts, lengths, prefix reuse.")(describe)
