"""Searches by the job that carries them out: an address can name one before its study is there, and what to say meanwhile."""

from __future__ import annotations

from dashboards.job_runs import is_job
from dashboards.queries import RunBook
from dashboards.work import UNDER_WAY
from tracekit.errors import UsageError
from tracekit.jobs import JobStatus, list_jobs
from tracekit.studies import Study, load_study, studies_by_job

__all__ = ["before_study", "job_named", "study_named"]


def study_named(book: RunBook, ref: str | None) -> Study:
    """The study that an address names: by its key, by the job that searches it, or the last one. ``UsageError``: none."""
    key = studies_by_job(book.store).get(ref, ref) if ref is not None and is_job(ref) else ref
    return load_study(book.store, key or "last")


def job_named(book: RunBook, ref: str | None) -> JobStatus | None:
    """The job behind what an address names: that of its study, or one whose study is not there yet; of no name the latest."""
    try:
        return study_named(book, ref).job
    except UsageError:
        if ref is not None and not is_job(ref):
            return None
        found = [job for job in list_jobs(book.store.folder) if job.kind == "tune" and ref in (None, job.id)]
        return found[-1] if found else None


def before_study(job: JobStatus) -> str:
    """What a search that has no study yet is at, or why there will be none."""
    error = (job.result or {}).get("error") or ""
    match job.state:
        case state if state in UNDER_WAY:
            return (
                f"Starting: job {job.id} reads the trace, replays the current policy and looks whether any setting can help;"
                " its trials appear here."
            )
        case "lost":
            return f"Killed before its first trial: the process of job {job.id} is gone; it can be started again."
        case "finished":
            return f"Job {job.id} has ended; what it searched is among the studies above."
        case _:
            return f"Job {job.id} ended before its first trial{f': {error}' if error else ''}."
