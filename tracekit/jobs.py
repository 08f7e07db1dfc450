"""Jobs: work in a process of its own, followed through a folder. The same for the shell, a page and a cluster.

``<db>.d/jobs/ID/`` holds ``spec.json`` (argv, kind, created, who), ``pid.json``, ``progress.jsonl``, ``result.json``, ``log``,
and ``cancel``, an empty file that asks the process to stop. A process started as a job finds its folder in ``TRACEKIT_JOB``.
States: queued, running, finished, failed, cancelled, and lost (its process is gone and left no result).
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any

from replay_engine.config import ConfigError
from tracekit.errors import TracekitError, UsageError, shown
from tracekit.store.files import read_json, write_json
from tracekit.store.processes import is_alive, process_mark

__all__ = ["JOB_VARIABLE", "Job", "JobStatus", "cancel", "list_jobs", "resume", "show"]

JOB_VARIABLE = "TRACEKIT_JOB"
PROGRESS_EVERY_S = 0.2
KEPT = 200
"""Ended jobs that stay when there are twice as many."""
_RAN = (0, 1, 4)
"""Exit codes of a process that did its work: passed, a gate failed, inconclusive."""
_INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """A job as another process sees it. ``progress`` is the last note: t (Unix time), done, total, unit, note, eta_s."""

    id: str
    kind: str
    state: str
    created: str
    who: str
    argv: list[str]
    pid: int | None = None
    progress: dict[str, Any] | None = None
    result: dict[str, Any] | None = None
    log: list[str] = field(default_factory=list)
    """Last lines of the process's output; only ``show`` fills it."""


class Job:
    """The writing side of one job: the process that does the work reports through it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.id = folder.name
        self._progress: FileIO | None = None
        self._began = time.monotonic()
        self._next = 0.0
        self._unit = ""

    @classmethod
    def create(cls, store_dir: Path, kind: str, spec: Mapping[str, Any]) -> Job:
        """A new folder under ``store_dir/jobs``. ``spec`` may hold ``argv`` (to resume), ``who`` (shell or ui) and more."""
        jobs = store_dir / "jobs"
        if not store_dir.parent.is_dir():
            where = shown(str(store_dir.parent), 4096)
            raise UsageError(f"{where}: no such folder; expected --db to name a path in an existing one")
        now = datetime.now(UTC)
        job = cls(jobs / f"{now:%Y%m%d-%H%M%S-%f}{secrets.token_hex(2)}")  # names sort as the jobs were created
        made = jobs / f".new-{job.id}"
        made.mkdir(parents=True)
        fixed = {"kind": kind, "created": now.isoformat(timespec="milliseconds")}
        creator = {"pid": os.getpid(), "mark": process_mark()}
        write_json(made / "spec.json", {"argv": [], "cwd": os.getcwd(), "who": "shell", **spec, **fixed, "by": creator})
        made.rename(job.folder)
        _prune(jobs)
        return job

    @classmethod
    def adopt(cls) -> Job | None:
        """The job that this process was started as, or ``None``. Its own children are not that job."""
        folder = os.environ.pop(JOB_VARIABLE, None)
        if folder is None or not (Path(folder) / "spec.json").is_file():
            return None
        job = cls(Path(folder))
        job.begin()
        return job

    def begin(self) -> None:
        """Say that this process does the work from now on."""
        self._note_process(os.getpid())

    def start_detached(self, argv: Sequence[str], *, cwd: Path | None = None) -> int:
        """Start ``argv`` as this job in a session of its own, so that it outlives the caller; the process id."""
        spec = read_json(self.folder / "spec.json") or {}
        cwd = Path(spec.get("cwd") or ".") if cwd is None else cwd
        write_json(self.folder / "spec.json", {**spec, "argv": list(argv), "cwd": str(cwd)})
        with (self.folder / "log").open("ab") as log:
            try:
                process = subprocess.Popen(
                    list(argv),
                    cwd=cwd,
                    env={**os.environ, JOB_VARIABLE: str(self.folder.resolve())},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            except OSError as error:
                self.finish({"exit_code": 2, "error": f"{argv[0]}: cannot be started ({error.strerror})"})
                raise UsageError(f"{shown(argv[0])}: cannot be started ({error.strerror})") from None
        self._note_process(process.pid)
        threading.Thread(target=process.wait, daemon=True).start()  # or it stays a zombie as long as we run
        return process.pid

    def progress(
        self, done: float, total: float | None = None, *, unit: str = "", note: str = "", eta_s: float | None = None,
        since: float = 0,
    ) -> None:  # fmt: skip
        """Note how far the work is; at most five notes a second are written, always a unit's first and the last (done = total).

        ``eta_s`` is the time left in seconds; left out, the mean speed so far gives it, of what is done beyond ``since``.
        """
        now = time.monotonic()
        if now < self._next and done != total and unit == self._unit:
            return
        self._next, self._unit = now + PROGRESS_EVERY_S, unit
        if eta_s is None and total and done > since:
            eta_s = (now - self._began) * max(total - done, 0.0) / (done - since)
        if self._progress is None:
            self._progress = FileIO(self.folder / "progress.jsonl", "ab")
        row = {"t": round(time.time(), 3), "done": done, "total": total, "unit": unit, "note": note, "eta_s": eta_s}
        self._progress.write(json.dumps(row).encode() + b"\n")

    def cancelled(self) -> bool:
        """Whether somebody asked this job to stop; costs one look at the disk."""
        return os.path.exists(self.folder / "cancel")

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result: ``exit_code``, and as they apply ``run`` (number), ``error`` (one line), ``cancelled`` (true)."""
        if self._progress is not None:
            self._progress.close()
            self._progress = None
        write_json(self.folder / "result.json", {"exit_code": 0, **result, "t": round(time.time(), 3)})

    @contextmanager
    def accounted(self, *, interrupted: str) -> Iterator[None]:
        """However the body ends early, the folder says so: its error and exit code, or ``interrupted``. A body that ends
        calls ``finish`` itself."""
        self.begin()
        try:
            yield
        except KeyboardInterrupt:
            self.finish({"exit_code": 130, "cancelled": True, "error": interrupted})
            raise
        except Exception as error:  # whatever it is, it is raised again; an unknown one is an internal error
            code = error.exit_code if isinstance(error, TracekitError) else 2 if isinstance(error, ConfigError) else 5
            self.finish({"exit_code": code, "error": str(error)})
            raise

    def _note_process(self, pid: int) -> None:
        note = {"pid": pid, "mark": process_mark(pid), "started": round(time.time(), 3)}
        write_json(self.folder / "pid.json", note)


def list_jobs(store_dir: Path) -> list[JobStatus]:
    """Every job of a database, oldest first."""
    found = [_status(folder) for folder in _folders(store_dir / "jobs")]
    return [status for status in found if status is not None]


def show(store_dir: Path, job: str, *, log_lines: int = 20) -> JobStatus:
    """One job, by id, the start of one, or ``last``, with the end of its log."""
    folder = _find(store_dir, job)
    log = folder / "log"
    lines: list[str] = []
    if log_lines and log.exists():
        lines = _tail(log, 65536).decode(errors="replace").splitlines()[-log_lines:]
    status = _status(folder, lines)
    if status is None:
        raise UsageError(f"{folder.name}: the job's spec cannot be read")
    return status


def cancel(store_dir: Path, job: str, *, force: bool = False) -> JobStatus:
    """Ask a job to stop; ``force`` also terminates its process. A job that never started is cancelled at once."""
    folder = _find(store_dir, job)
    status = show(store_dir, folder.name, log_lines=0)
    if status.state in ("queued", "running"):
        (folder / "cancel").touch()
    if status.state == "queued":
        Job(folder).finish({"exit_code": _INTERRUPTED, "cancelled": True})
    elif status.state == "running" and force and status.pid is not None:
        os.kill(status.pid, signal.SIGTERM)
        Job(folder).finish({"exit_code": _INTERRUPTED, "cancelled": True, "error": "terminated"})
    return show(store_dir, folder.name, log_lines=0)


def resume(store_dir: Path, job: str) -> JobStatus:
    """Start an ended job's argv again, in the same folder."""
    folder = _find(store_dir, job)
    status = show(store_dir, folder.name, log_lines=0)
    if status.state in ("queued", "running"):
        raise UsageError(f"{status.id}: is {status.state}; expected a job that has ended")
    if not status.argv:
        raise UsageError(f"{status.id}: has no command line to start again")
    for name in ("cancel", "result.json", "pid.json"):
        (folder / name).unlink(missing_ok=True)
    Job(folder).start_detached(status.argv)
    return show(store_dir, folder.name, log_lines=0)


def _folders(jobs: Path) -> list[Path]:
    if not jobs.is_dir():
        return []
    return sorted(folder for folder in jobs.iterdir() if not folder.name.startswith("."))


def _find(store_dir: Path, job: str) -> Path:
    folders = _folders(store_dir / "jobs")
    if job == "last" and folders:
        return folders[-1]
    found = [folder for folder in folders if folder.name == job] or [f for f in folders if job and f.name.startswith(job)]
    if len(found) != 1:
        reason = f"fits {len(found)} jobs" if found else "no such job"
        raise UsageError(f"'{shown(job)}': {reason}; expected an id that `tracekit jobs list` shows, or last")
    return found[0]


def _status(folder: Path, log: list[str] | None = None) -> JobStatus | None:
    spec = read_json(folder / "spec.json")
    if spec is None:
        return None
    process = read_json(folder / "pid.json")
    state = _running_state(spec, process)
    result = read_json(folder / "result.json")  # after the look at the process: it may have ended in between
    if result is not None:
        state = _end_state(result)
    return JobStatus(
        id=folder.name,
        kind=spec["kind"],
        state=state,
        created=spec["created"],
        who=spec["who"],
        argv=list(spec["argv"]),
        pid=None if process is None else process["pid"],
        progress=_last_progress(folder / "progress.jsonl"),
        result=result,
        log=log or [],
    )


def _running_state(spec: Mapping[str, Any], process: Mapping[str, Any] | None) -> str:
    if process is None:
        creator = spec["by"]
        return "queued" if is_alive(creator["pid"], creator["mark"]) else "lost"
    return "running" if is_alive(process["pid"], process["mark"]) else "lost"


def _end_state(result: Mapping[str, Any]) -> str:
    if result.get("cancelled") or result["exit_code"] == _INTERRUPTED:
        return "cancelled"
    return "finished" if result["exit_code"] in _RAN else "failed"


def _tail(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - size))
        return file.read()


def _last_progress(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    for line in reversed(_tail(path, 4096).split(b"\n")[:-1]):  # the last piece is empty or half written
        try:
            row = json.loads(line)
        except ValueError:
            continue
        return row if isinstance(row, dict) else None
    return None


def _prune(jobs: Path) -> None:
    """Drop the oldest ended jobs when many have gathered."""
    folders = _folders(jobs)
    if len(folders) < 2 * KEPT:
        return
    for folder in folders[: len(folders) - KEPT]:
        if (folder / "result.json").exists():
            shutil.rmtree(folder, ignore_errors=True)
