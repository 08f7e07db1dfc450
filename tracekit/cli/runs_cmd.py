"""``tracekit runs``, ``show`` and ``explain``: what was replayed, and the story of one request."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracekit.cli.options import DEFAULT_DB, AsJson, Db, Debug
from tracekit.cli.output import emit, emit_run, note, print_table, print_text
from tracekit.errors import UsageError

if TYPE_CHECKING:
    from tracekit.store import SpoolInfo, Store

__all__ = ["register"]

class Tool(StrEnum):
    vllm = "vllm"
    guidellm = "guidellm"
    aiperf = "aiperf"


runs = typer.Typer(help="Recorded runs: list, remove, recover.")
Run = Annotated[str, typer.Argument(metavar="RUN", help="A run's number, its name, or last.")]
Spool = Annotated[str, typer.Argument(metavar="SPOOL", help="The spool's name as doctor shows it; all takes every one.")]


@runs.callback(invoke_without_command=True)
def _runs(context: typer.Context, db: Db = DEFAULT_DB, as_json: AsJson = False, debug: Debug = False) -> None:
    if context.invoked_subcommand is None:
        list_(db=db, as_json=as_json)


@runs.command("list")
def list_(db: Db = DEFAULT_DB, as_json: AsJson = False, debug: Debug = False) -> None:
    """List the runs of a database, oldest first, and the size of the file."""
    from tracekit.store import Store, database_size, list_runs

    store = Store(db)
    found = list_runs(store)
    size = database_size(store)
    head = ("run", "name", "trace_name", "started_at", "wall_s", "engine", "profile", "events", "state", "requests", "iterations")
    rows = [[*(run[column] for column in head), _typed(run["command"])] for run in found]

    def render() -> None:
        columns = [*(column.removesuffix("_name") for column in head), "command"]
        print_table(columns, rows, empty="no runs yet; `tracekit replay` makes one")
        note(f"{db}: {size['file_bytes']:,} bytes, {size['free_bytes']:,} of them free to be written again")

    emit({"schema": "tracekit.runs/1", "runs": found, "size": size}, as_json, render)


def _typed(command: str | None) -> str | None:
    """A command as it was typed: the program by its name, wherever it lies."""
    return None if command is None else " ".join(["tracekit", *command.split(" ")[1:]])


@runs.command()
def rm(
    run: Annotated[list[str], typer.Argument(metavar="RUN...", help="Numbers or names of runs, or last.")],
    db: Db = DEFAULT_DB,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Remove runs and their events."""
    from tracekit.store import Store, remove_runs, resolve_run

    store = Store(db)
    gone = remove_runs(store, [resolve_run(store, text) for text in run])
    names = ", ".join(str(number) for number in gone.runs)
    line = f"removed run {names}: {gone.events:,} event rows; the file shrank by {gone.freed_bytes:,} bytes"
    line += f", {gone.reusable_bytes:,} bytes in it are free to be written again"
    emit({"schema": "tracekit.removed/1", **asdict(gone)}, as_json, lambda: print_text(line))


@runs.command()
def recover(spool: Spool, db: Db = DEFAULT_DB, as_json: AsJson = False, debug: Debug = False) -> None:
    """Commit what a killed replay left behind."""
    from tracekit.store import Store
    from tracekit.store import recover as recover_spool

    store = Store(db)
    numbers = [recover_spool(store, found) for found in _left(store, spool)]
    text = "\n".join(f"recovered as run {number}" for number in numbers)
    emit({"schema": "tracekit.recovered/1", "runs": numbers}, as_json, lambda: print_text(text))


@runs.command()
def discard(spool: Spool, db: Db = DEFAULT_DB, as_json: AsJson = False, debug: Debug = False) -> None:
    """Throw away what a killed replay left behind."""
    from tracekit.store import Store
    from tracekit.store import discard as discard_spool

    found = _left(Store(db), spool)
    for each in found:
        discard_spool(each)
    names = [each.folder.name for each in found]
    emit({"schema": "tracekit.discarded/1", "spools": names}, as_json, lambda: print_text(f"discarded {', '.join(names)}"))


def _left(store: Store, name: str) -> list[SpoolInfo]:
    from tracekit.store import find_spools

    left = [spool for spool in find_spools(store) if not spool.alive]
    chosen = [spool for spool in left if name in ("all", spool.folder.name)]
    if not chosen:
        names = ", ".join(spool.folder.name for spool in left) or "nothing: no run was cut short"
        raise UsageError(f"'{name}': no such spool to recover or discard; there is {names}")
    return chosen


def show(
    run: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Numbers or names of runs, or last; several stand side by side.")
    ],
    markdown: Annotated[bool, typer.Option("--markdown", help="The matrix as Markdown.")] = False,
    as_: Annotated[Tool | None, typer.Option("--as", help="In the terms and formulas of another tool.")] = None,
    db: Db = DEFAULT_DB,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show the acceptance matrix of a run, or the key figures of several runs side by side."""
    from tracekit.store import Store, load_run, resolve_run

    store = Store(db)
    if as_ is not None:
        if len(run) > 1 or markdown:
            raise UsageError("--as: one run as text or JSON; expected no --markdown and no second run")
        _in_terms(store, run[0], as_.value, as_json)
        return
    rows = [load_run(store, resolve_run(store, text)) for text in run]
    for row in rows:
        if row["matrix"] is None:
            raise UsageError(f"run {row['run']}: state {row['state']}, it has no matrix; `tracekit sql` reads its events")
    if len(rows) > 1:
        _emit_beside(rows, as_json, markdown)
    else:
        emit_run(rows[0]["run"], rows[0]["state"], rows[0]["matrix"], as_json, markdown)


def _in_terms(store: Store, run: str, tool: str, as_json: bool) -> None:
    from tracekit.diagnosis.stored import load_run_data
    from tracekit.terms import in_terms_of, seen_of

    data = load_run_data(store, run)
    found = in_terms_of(seen_of(data), tool)

    def render() -> None:
        print_table(("figure", "value", "unit", "n"), [(each.name, each.value, each.unit, each.n) for each in found.terms])
        missing = [f"{each.name}: {each.note}" for each in found.terms if each.note]
        print_text("\n".join(["", f"run {data.run} as {found.version} computes it", *found.notes, *missing]))

    emit({"schema": "tracekit.terms/1", "run": data.run, **found.to_dict()}, as_json, render)


def _emit_beside(runs: list[dict[str, Any]], as_json: bool, markdown: bool) -> None:
    from tracekit.sidebyside import render_rows, run_labels, side_by_side

    rows = side_by_side([run["matrix"] for run in runs])
    head = ["", *run_labels(runs)]
    names = [{"run": run["run"], "name": run["name"], "state": run["state"]} for run in runs]
    document = {"schema": "tracekit.sidebyside/1", "runs": names, "rows": [row.to_dict() for row in rows]}

    def render() -> None:
        cells = render_rows(rows)
        if markdown:
            lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in [head, *cells]]
            print_text("\n".join([lines[0], "|---" + "|---:" * len(runs) + "|", *lines[1:]]))
        else:
            print_table(head, cells)

    emit(document, as_json, render)


def explain(
    run: Run,
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="The request's number in the run (column request).")],
    db: Db = DEFAULT_DB,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Tell the story of one request: every stretch of its life, and why it waited."""
    from tracekit.explain import explain as explain_request
    from tracekit.store import Store, resolve_run

    store = Store(db)
    number = resolve_run(store, run)
    with store.read() as con:
        story = explain_request(con, number, _request_number(request))

    def render() -> None:
        from tracekit.explain import render_explain

        print_text(render_explain(story))

    emit(story, as_json, render)


def _request_number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"'{text}': expected a request's number in the run; `tracekit sql` on outcomes lists them")
    return int(text)


def register(app: typer.Typer) -> None:
    app.add_typer(runs, name="runs")
    app.command("show", short_help="Print the matrix of a run, or several runs side by side.")(show)
    app.command("explain", short_help="Tell the story of one request of a run.")(explain)
