"""``tracekit jobs``: work that runs in processes of its own."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli.options import DEFAULT_DB, AsJson, Db, Debug
from tracekit.cli.output import emit, print_table, print_text, safe
from tracekit.cli.progress import left_text

if TYPE_CHECKING:
    from tracekit.jobs import JobStatus

__all__ = ["register"]

jobs = typer.Typer(help="Work under way or ended: list, show, cancel, resume.")
JobId = Annotated[str, typer.Argument(metavar="JOB", help="A job's id, the start of one, or last.")]


@jobs.callback(invoke_without_command=True)
def _jobs(context: typer.Context, db: Db = DEFAULT_DB, as_json: AsJson = False, debug: Debug = False) -> None:
    if context.invoked_subcommand is None:
        list_(db=db, as_json=as_json)


@jobs.command("list")
def list_(db: Db = DEFAULT_DB, as_json: AsJson = False, debug: Debug = False) -> None:
    """List the jobs of a database, oldest first."""
    from tracekit.jobs import list_jobs
    from tracekit.store import Store

    found = list_jobs(Store(db).folder)
    head = ("job", "kind", "state", "created", "by", "progress", "command")
    rows = [(j.id, j.kind, j.state, j.created, j.who, _progress(j), _command(j.argv)) for j in found]
    document = {"schema": "tracekit.jobs/1", "jobs": [asdict(job) for job in found]}
    emit(document, as_json, lambda: print_table(head, rows, empty="no jobs"))


@jobs.command()
def show(job: JobId, db: Db = DEFAULT_DB, as_json: AsJson = False, debug: Debug = False) -> None:
    """Show one job: state, progress, result and the end of its log."""
    from tracekit.jobs import show as show_job
    from tracekit.store import Store

    _print(show_job(Store(db).folder, job), as_json)


@jobs.command()
def cancel(
    job: JobId,
    force: Annotated[bool, typer.Option("--force", help="End its process at once.")] = False,
    db: Db = DEFAULT_DB,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Ask a job to stop."""
    from tracekit.jobs import cancel as cancel_job
    from tracekit.store import Store

    _print(cancel_job(Store(db).folder, job, force=force), as_json)


@jobs.command()
def resume(job: JobId, db: Db = DEFAULT_DB, as_json: AsJson = False, debug: Debug = False) -> None:
    """Start an ended job again, in the background."""
    from tracekit.jobs import resume as resume_job
    from tracekit.store import Store

    _print(resume_job(Store(db).folder, job), as_json)


def _command(argv: list[str]) -> str:
    """What was typed: the interpreter and the module's place left out where it is ours."""
    ours = next((k for k, word in enumerate(argv) if word == "tracekit.cli.main" or Path(word).name == "tracekit"), None)
    return shlex.join(argv if ours is None else ["tracekit", *argv[ours + 1 :]])


def _progress(job: JobStatus) -> str:
    row = job.progress
    if not row:
        return "-"
    total = f" of {row['total']:,.0f}" if row.get("total") else ""
    left = f", {left_text(row['eta_s'])}" if row.get("eta_s") and job.state == "running" else ""
    return f"{row['done']:,.0f}{total} {row.get('unit') or ''}".rstrip() + left


def _note(job: JobStatus) -> str:
    """What a running job is at."""
    note = (job.progress or {}).get("note")
    return f" ({note})" if note and job.state == "running" else ""


def _print(job: JobStatus, as_json: bool) -> None:
    lines = [f"job       {job.id}", f"state     {job.state}", f"kind      {job.kind}", f"created   {job.created} by {job.who}"]
    lines += [f"command   {safe(_command(job.argv))}", f"process   {safe(job.pid)}"]
    lines += [f"progress  {safe(_progress(job) + _note(job))}"]
    result = job.result or {}
    lines += [f"{key:<9} {safe(result[key])}" for key in ("run", "exit_code", "error") if result.get(key) is not None]
    lines += ["", *(safe(line) for line in job.log)] if job.log else []
    emit({"schema": "tracekit.job/1", **asdict(job)}, as_json, lambda: print_text("\n".join(lines)))


def register(app: typer.Typer) -> None:
    app.add_typer(jobs, name="jobs")
