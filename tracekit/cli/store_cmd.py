"""``tracekit sql`` and ``tracekit doctor``: the database itself."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from tracekit.cli.options import DEFAULT_DB, AsJson, Db, Debug
from tracekit.cli.output import emit, note, print_table, print_text, safe

__all__ = ["register"]


def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A DuckDB query; - reads it from standard input.")],
    db: Db = DEFAULT_DB,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Run a query on the database, read-only."""
    from tracekit.store import Store
    from tracekit.store import sql as run_query

    result = run_query(Store(db), sys.stdin.read() if query == "-" else query)
    document = {
        "schema": "tracekit.sql/1",
        "columns": [{"name": n, "type": t} for n, t in zip(result.columns, result.types, strict=True)],
        "rows": [list(row) for row in result.rows],
    }
    emit(document, as_json, lambda: print_table(result.columns, result.rows, empty="no rows"))


def doctor(db: Db = DEFAULT_DB, as_json: AsJson = False, debug: Debug = False) -> None:
    """Say what is installed, missing, locked and recoverable."""
    from tracekit.store import Store
    from tracekit.store import doctor as examine

    facts = examine(Store(db))
    emit({"schema": "tracekit.doctor/1", **facts}, as_json, lambda: _print(facts))


def _print(facts: dict[str, Any]) -> None:
    database, jobs = facts["database"], facts["jobs"]
    lines = [f"python     {facts['python']}"]
    lines.append("installed  " + ", ".join(f"{name} {version}" for name, version in facts["installed"].items()))
    lines += [f"missing    {name}: needed for {why}" for name, why in facts["missing"].items()]
    if database["exists"]:
        size = (database["size"] or {}).get("file_bytes")
        state = "readable" if database["readable"] else "not readable now"
        lines.append(
            f"database   {safe(database['path'])}: {state}, schema {safe(database['schema_version'])} of"
            f" {database['schema_expected']}, {safe(database['runs'])} runs, {safe(size) if size is None else f'{size:,}'} bytes"
        )
    else:
        lines.append(f"database   {safe(database['path'])}: none yet; load or replay a trace to make it")
    if database["locked_by"]:
        lines.append(f"locked by  {safe(database['locked_by'])}")
    for spool in facts["spools"]:
        state = "under way" if spool["alive"] else "whole, not committed" if spool["complete"] else "cut short"
        lines.append(f"spool      {safe(spool['spool'])}: {state}, {spool['bytes']:,} bytes")
    lines.append(f"jobs       {jobs['total']} ({jobs['running']} running, {len(jobs['lost'])} lost)")
    print_text("\n".join(lines))
    for problem in facts["problems"]:
        note(f"problem: {problem}")
    if not facts["problems"]:
        note("no problems found")


def register(app: typer.Typer) -> None:
    app.command("sql")(sql)
    app.command("doctor")(doctor)
