"""The run that a job makes, from the moment the job is created: first none, then a spool, then a run of the database."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tracekit.errors import LockedError, UsageError, shown
from tracekit.jobs import show
from tracekit.store import SpoolInfo

__all__ = ["JobRuns", "is_job"]

_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6,16}")


def is_job(ref: str) -> bool:
    """Whether a run is named by the job that makes it."""
    return _ID.fullmatch(ref) is not None


class JobRuns:
    """Which run belongs to which job of a database, with the spools that were seen."""

    def __init__(self, store_dir: Path) -> None:
        self._store_dir = store_dir
        self._seen: dict[str, tuple[int | None, str]] = {}

    def job_of(self, spool: str) -> str | None:
        """The job that was seen writing a spool."""
        return next((job for job, (_, name) in self._seen.items() if name == spool), None)

    def run_of(self, job: str, spools: Sequence[SpoolInfo]) -> str:
        """What the book calls the run of a job. ``LockedError``: there is none yet. ``UsageError``: there will be none."""
        status = show(self._store_dir, job, log_lines=0)
        run = (status.result or {}).get("run")
        if isinstance(run, int):
            return str(run)
        mine = [spool.folder.name for spool in spools if status.pid is not None and spool.pid == status.pid]
        if mine:
            self._seen[job] = (status.pid, mine[-1])
        pid, spool = self._seen.get(job, (None, ""))
        if spool and pid == status.pid:
            return spool
        if status.state in ("queued", "running"):
            raise LockedError(f"job {job} is starting: it reads the trace")
        why = (status.result or {}).get("error") or "it ended before the replay began"
        raise UsageError(f"job {job}: {status.state}: {shown(why, 300)}; see Jobs")
