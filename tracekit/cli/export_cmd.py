"""``tracekit export``: a run for other tools and other people: traces, tables, a page, a ticket, flags to paste."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracekit.cli.options import DEFAULT_DB, AsJson, Db, Debug

if TYPE_CHECKING:
    from tracekit.exports.export import ExportReport

__all__ = ["register"]


class To(StrEnum):
    perfetto = "perfetto"
    csv = "csv"
    parquet = "parquet"
    html = "html"
    markdown = "markdown"
    vllm_args = "vllm-args"
    vllm_yaml = "vllm-yaml"
    sglang_args = "sglang-args"
    helm_values = "helm-values"
    env = "env"


class Pool(StrEnum):
    prefill = "prefill"
    decode = "decode"


Run = Annotated[
    str,
    typer.Argument(metavar="RUN", help="A run's number, its name, or last; for a tuner's answer its JSON file, or tune."),
]
ToOption = Annotated[To, typer.Option("--to", help="The format.")]
Out = Annotated[
    str | None,
    typer.Option("--out", metavar="FILE|-", help="Where to, - for standard output [default: texts are printed, the rest is named "
                 "after the run]."),
]  # fmt: skip
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
Tables = Annotated[
    list[str] | None, typer.Option("--table", metavar="NAME", help="csv, parquet: only this table; repeatable [default: all].")
]
Window = Annotated[
    str | None, typer.Option("--window", metavar="FROM:TO", help="perfetto: this part of the engine clock, as 40s:80s.")
]
Finding = Annotated[
    str | None,
    typer.Option("--finding", metavar="ID", help="Flags: only the change that a replay confirmed against this finding."),
]
PoolOption = Annotated[Pool | None, typer.Option("--pool", help="Flags: which of separate pools.")]
Diff = Annotated[
    str | None,
    typer.Option("--diff", metavar='"vllm serve ..."|FILE.yaml', help="vllm-args: what to change in the line that runs today."),
]
EngineVersion = Annotated[
    str | None, typer.Option("--engine-version", metavar="V", help="Flags: of this vLLM [default: the one that was replayed].")
]


def export(
    to: ToOption,
    run: Run = "last",
    out: Out = None,
    force: Force = False,
    table: Tables = None,
    window: Window = None,
    finding: Finding = None,
    pool: PoolOption = None,
    diff: Diff = None,
    engine_version: EngineVersion = None,
    db: Db = DEFAULT_DB,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Export a run, a finding's confirmed change, or a tuner's answer. Files appear whole or not at all."""
    from tracekit.cli.output import note, print_json, write_out
    from tracekit.errors import UsageError

    if as_json and out == "-":
        raise UsageError("--json and --out -: both want standard output; expected one of them")
    options = {"to": to.value, "out": out, "force": force, "tables": tuple(table or ()), "window": window, "finding": finding,
               "pool": None if pool is None else pool.value, "diff": diff, "engine_version": engine_version}  # fmt: skip
    report = _page(run, db, options) if to is To.html else _export(run, db, options)
    if as_json:
        print_json(report.to_dict())
    elif report.text is not None:
        write_out(report.text)
    elif report.out != "-":
        note(f"{report.out} is written")


def _export(run: str, db: Path, options: dict[str, Any]) -> ExportReport:
    from tracekit.exports.export import export as export_run

    return export_run(run, db=db, **options)


def _page(run: str, db: Path, options: dict[str, Any]) -> ExportReport:
    from dashboards.report import export_run_page, export_tune_page
    from tracekit.exports.export import Asked, is_tuned, tuned_answer
    from tracekit.store import Store

    asked, store = Asked(**options), Store(db)
    if not is_tuned(run, store):
        return export_run_page(run, asked, db)
    from tuner.report import render_report

    document = tuned_answer(run, store)
    return export_tune_page(document, render_report(document), asked)


def register(app: typer.Typer) -> None:
    app.command("export", short_help="Write a run for Perfetto, as tables, a page, or flags.")(export)
