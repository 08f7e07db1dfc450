"""Work that pages start: jobs like the shell's, few at a time, none where the dashboard is read-only."""

from __future__ import annotations

import fcntl
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from dashboards.queries import RunBook
from dashboards.spoken import spoken
from dashboards.words import seconds
from tracekit import jobs
from tracekit.errors import TracekitError, UsageError
from tracekit.jobs import Job, JobStatus
from tracekit.studies import studies_by_job

__all__ = [
    "MOST_AT_ONCE",
    "JobRow",
    "UNDER_WAY",
    "acts_on",
    "cancel_job",
    "command_text",
    "do_to_job",
    "list_work",
    "resume_job",
    "room_for_one",
    "start_job",
]

MOST_AT_ONCE = 4
"""Jobs under way that pages have started."""
MOST_LISTED = 50
UNDER_WAY = ("queued", "running")


class JobRow(NamedTuple):
    """A job as a page shows it. ``progress`` 0 to 1, ``None``: not known. ``look``: an address to look at what it makes or made,
    and ``label`` its words. ``can``: what may be done with it: cancel, resume."""

    id: str
    kind: str
    who: str
    state: str
    created: str
    command: str
    progress: float | None
    said: str
    look: str | None
    label: str
    can: tuple[str, ...]


def start_job(book: RunBook, kind: str, words: Sequence[str]) -> str:
    """Start ``tracekit WORDS``, detached, as a job of the book's database; its id. ``UsageError``: read-only, or enough runs."""
    command = [sys.executable, "-m", "tracekit.cli.main", *words]
    if book.read_only:
        raise UsageError(f"this dashboard is read-only; from the shell: {shlex.join(['tracekit', *words])}")
    if not book.store.path.parent.is_dir():
        raise UsageError(f"{book.store.path.parent}: no such folder to put a database into")
    with room_for_one(book):
        job = Job.create(book.store.folder, kind, {"who": "ui", "argv": command})
        job.start_detached(command, cwd=book.store.folder)
    return job.id


@contextmanager
def room_for_one(book: RunBook) -> Iterator[None]:
    """Start one job in here: nobody else counts and starts meanwhile, in whatever worker. ``UsageError`` as ``start_job``."""
    _refuse_read_only(book)
    with _one_at_a_time(book):
        _refuse_more(book)
        yield


def cancel_job(book: RunBook, job: str, *, force: bool = False) -> None:
    """``UsageError``: read-only, or no such job."""
    _refuse_read_only(book)
    jobs.cancel(book.store.folder, job, force=force)


def resume_job(book: RunBook, job: str) -> None:
    """Start an ended job again in its folder. ``UsageError`` as ``start_job``, and for one that runs."""
    with room_for_one(book):
        jobs.resume(book.store.folder, job)


def do_to_job(book: RunBook, act: str, job: str) -> tuple[str, bool]:
    """Cancel or resume a job: what there is to say of it, and whether it was done."""
    try:
        if act == "cancel":
            cancel_job(book, job)
            return f"{job}: asked to stop", True
        if act == "resume":
            resume_job(book, job)
            return f"{job}: started again", True
    except TracekitError as error:
        return spoken(error), False
    return "", False


def list_work(book: RunBook) -> list[JobRow]:
    """The latest jobs, those under way first."""
    spools = {info.pid: info.folder.name for info in book.spools()}
    found = jobs.list_jobs(book.store.folder)[-MOST_LISTED:]
    searched = studies_by_job(book.store) if any(status.kind == "tune" for status in found) else {}
    rows = [_row(book, status, spools, searched) for status in reversed(found)]
    return sorted(rows, key=lambda row: row.state not in UNDER_WAY)


def _refuse_read_only(book: RunBook) -> None:
    if book.read_only:
        raise UsageError("this dashboard is read-only; jobs are cancelled and resumed with tracekit jobs")


def _refuse_more(book: RunBook) -> None:
    busy = [status for status in jobs.list_jobs(book.store.folder) if status.who == "ui" and status.state in UNDER_WAY]
    if len(busy) >= MOST_AT_ONCE:
        raise UsageError(f"{len(busy)} jobs that pages started are under way, and no more run at once; cancel one or wait")


@contextmanager
def _one_at_a_time(book: RunBook) -> Iterator[None]:
    """Nobody else counts and starts meanwhile, in whatever worker."""
    folder: Path = book.store.folder / "jobs"
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / ".starting", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def acts_on(book: RunBook, status: JobStatus) -> tuple[str, ...]:
    """What a page may do to a job."""
    if book.read_only:
        return ()
    if status.state in UNDER_WAY:
        return ("cancel",)
    return ("resume",) if status.state in ("lost", "cancelled", "failed") and status.argv else ()


def _row(book: RunBook, status: JobStatus, spools: dict[int, str], searched: dict[str, str]) -> JobRow:
    result = status.result or {}
    look, label = _look(status, spools, searched)
    return JobRow(
        id=status.id,
        kind=status.kind,
        who={"ui": "page"}.get(status.who, status.who),
        state=status.state,
        created=status.created[:19].replace("T", " "),
        command=command_text(status.argv),
        progress=_share(status),
        said=_said(status, str(result.get("error") or "")),
        look=look,
        label=label,
        can=acts_on(book, status),
    )


def command_text(argv: Sequence[str]) -> str:
    """What one would type: without the interpreter and the place of the module."""
    at = next((k for k, word in enumerate(argv) if word == "tracekit.cli.main" or Path(word).name == "tracekit"), None)
    return shlex.join(argv if at is None else ["tracekit", *argv[at + 1 :]])


def _share(status: JobStatus) -> float | None:
    if status.state == "finished":
        return 1.0
    row = status.progress or {}
    return min(1.0, row["done"] / row["total"]) if row.get("total") else None


def _said(status: JobStatus, error: str) -> str:
    row = status.progress or {}
    done = f"{row['done']:,.0f}" + (f" of {row['total']:,.0f}" if row.get("total") else "") if row else ""
    done += f" {row.get('unit') or ''}".rstrip()
    match status.state:
        case "queued":
            return "starting"
        case "running":
            left = f", about {seconds(row['eta_s'])} left" if row.get("eta_s") else ""
            note = f" ({row['note']})" if row.get("note") else ""
            return (done or "reading") + left + note
        case "lost":
            return f"its process is gone{f' at {done}' if done else ''}; it left no result"
    return error or done


def _look(status: JobStatus, spools: dict[int, str], searched: dict[str, str]) -> tuple[str | None, str]:
    """Where what a job makes can be seen."""
    run = (status.result or {}).get("run")
    spool = None if status.pid is None else spools.get(status.pid)
    if isinstance(run, int):
        base = next((word.partition("=")[2] for word in status.argv if word.startswith("--from-run=")), None)
        return (f"/compare?run={base}&cmp={run}", f"compare {base} and {run}") if base else (f"/verdict?run={run}", f"run {run}")
    if spool is not None or (status.kind == "replay" and status.state in UNDER_WAY):
        return f"/timeline?run={status.id}", "live" if status.state == "running" else "what ran"
    if status.kind == "tune" and (status.id in searched or status.state in UNDER_WAY):
        return f"/tuner?study={searched[status.id][:8] if status.id in searched else status.id}", "its search"
    if status.kind == "capacity":
        return f"/what-if?cap={status.id}", "its answer" if status.state == "finished" else "how far it is"
    experiment = (status.result or {}).get("experiment")
    if isinstance(experiment, int):
        return f"/experiments?exp={experiment}", f"experiment {experiment}"
    return None, ""
