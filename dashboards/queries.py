"""What the pages read: the list of runs, and a run's iterations, from the database once or from its spool as it grows.

A finished run is immutable: it is read from the database once and kept. A run under way is followed through its spool and
never read twice; when it has been committed its columns are taken over as they are. No database connection outlives a query,
and a page that finds a writer at work shows what it has and asks again later: it never stands in the writer's way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from dashboards.buckets import Buckets
from dashboards.columns import Frame
from dashboards.job_runs import JobRuns, is_job
from dashboards.kept import Followed, Kept, arrivals_ns, follow, read_run
from dashboards.remembered import Coming, Remembered, array_bytes
from dashboards.run_words import Listed, listed_run, listed_spool, live_message, recorded_message
from dashboards.spoken import spoken
from tracekit.diagnosis import Attribution, RunData, attribute, load_run_data
from tracekit.errors import LockedError, TracekitError, UsageError
from tracekit.store import SpoolInfo, Store, spools_there

T = TypeVar("T")

__all__ = ["LATEST", "Catalogue", "RunBook", "RunView"]

LATEST = "last"
"""Stands for the run under way that began last, else the latest recorded one."""
WAIT_S = 0.5
"""How long a page waits for a writer before it shows what it has."""
KEPT_BYTES = 1 << 30
"""Columns of finished runs that are kept; the one least recently looked at goes first."""
DATA_KEPT = 3
"""Runs whose rows of every table are kept: some 250 bytes an iteration."""
CUTS_KEPT = 32
"""Windows of recorded runs that are kept cut to buckets: a quarter of a megabyte each."""
REMEMBERED = 64
"""Small facts of recorded runs that are kept."""
_RUN_COLUMNS = (
    "run", "name", "trace_name", "state", "events", "engine", "profile", "requests", "iterations", "spool",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """The runs, latest first, and why the list may be old."""

    runs: tuple[Listed, ...]
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run as it stands now. ``state``: running, committing, killed, gone, or that of a recorded run (finished, ...)."""

    ref: str
    title: str
    state: str
    message: str
    events: str
    live: bool
    """Whether more may come."""
    arrivals_ns: int = 0
    """Of a run under way: how long requests go on to arrive, so that a figure fills from the left; 0: not known."""
    frames: dict[int, Frame] = field(default_factory=dict)
    """Iterations by replica; empty where none are recorded, or none yet."""
    budget: dict[int, int] = field(default_factory=dict)
    kv_total: dict[int, int] = field(default_factory=dict)
    reserved: dict[int, int] = field(default_factory=dict)
    """Blocks that admission leaves free, where it leaves any."""
    expected: bool = False
    """Whether the profile says how long iterations take."""
    spool: str | None = None
    """Of a recorded run: what no other run has."""


class RunBook:
    """One database's runs for all pages of a process; every method may be called from any thread."""

    def __init__(self, db: str | Path, *, read_only: bool = False) -> None:
        self.store = Store(Path(db).absolute(), wait_s=WAIT_S)
        self.read_only = read_only
        """Whether pages may start nothing."""
        self._lock = threading.RLock()
        self._rows: list[dict[str, Any]] = []
        self._file_mark: tuple[int, ...] = ()
        self._held_off: tuple[float, str] = (0.0, "")
        self._kept: Remembered[Kept] = Remembered(KEPT_BYTES, lambda kept: kept.bytes)
        self._followed: dict[str, Followed] = {}
        self._jobs = JobRuns(self.store.folder)
        self._memory: Remembered[object] = Remembered(REMEMBERED)
        self._arrays: Remembered[object] = Remembered(KEPT_BYTES, array_bytes)
        self.cuts: Remembered[Buckets] = Remembered(CUTS_KEPT)
        self.coming = Coming()
        self._data: Remembered[RunData] = Remembered(DATA_KEPT)
        self._attributed: Remembered[Attribution] = Remembered(DATA_KEPT)

    def catalogue(self) -> Catalogue:
        """The runs, latest first; what runs now stands before what is recorded."""
        with self._lock:
            note = self._refresh()
            listed = [listed_spool(spool) for spool in self.spools()]
            listed += [listed_run(row) for row in reversed(self._rows)]
        return Catalogue(runs=tuple(sorted(listed, key=lambda each: not each.live)), note=note)

    def remember(self, key: str, make: Callable[[], T]) -> T:
        """What ``make`` gives for ``key``, kept: only for what never changes."""
        return self._memory.get(key, make)

    def remember_arrays(self, key: str, make: Callable[[], T]) -> T:
        """The same for a tuple that has arrays, or tuples with arrays, in it: kept by their bytes."""
        return self._arrays.get(key, make)

    def data(self, ref: str) -> RunData:
        """All rows of a recorded run with what decided it, kept while few others are looked at. ``UsageError`` for a run under
        way, and for one whose rows or trace are not in the database any more."""
        row = self.recorded(ref)
        if row is None:
            raise UsageError("this run is under way: its requests can be looked at when it has been committed")
        number = str(row["run"])
        return self._data.get(row["spool"], lambda: load_run_data(self.store, number))

    def attribution(self, ref: str) -> Attribution:
        """Where the time of every request of a recorded run went, kept with its rows. Errors: those of ``data``."""
        data, row = self.data(ref), self.recorded(ref)
        assert row is not None
        return self._attributed.get(row["spool"], lambda: attribute(data))

    def spools(self) -> list[SpoolInfo]:
        """What is not in the database: runs under way and those left behind, latest first."""
        with self._lock:
            done = {row["spool"] for row in self._rows}
        return [spool for spool in reversed(spools_there(self.store)) if spool.folder.name not in done]

    def spool(self, ref: str) -> SpoolInfo | None:
        """The spool of a run that is not in the database (yet); ``None`` for a recorded one, and where there is none. Errors as
        ``view``."""
        with self._lock:
            self._refresh()
            found = self._find(ref)
        return found if isinstance(found, SpoolInfo) else None

    def job_of(self, spool: str) -> str | None:
        """The job that a page saw writing a spool, if any did."""
        return self._jobs.job_of(spool)

    def recorded(self, ref: str) -> dict[str, Any] | None:
        """The ``runs`` row (some columns of it) of a recorded run; ``None`` for one under way. Errors as ``view``."""
        with self._lock:
            self._refresh()
            found = self._find(ref)
            if found is None:
                raise UsageError(self._nothing(ref))
            return None if isinstance(found, SpoolInfo) else found

    def view(self, ref: str) -> RunView:
        """The run that ``ref`` names: a number, a run's or spool's name, a job's id, or ``LATEST``.

        ``UsageError`` where there is none; ``LockedError`` while it is in the database only and a writer is at work.
        """
        with self._lock:
            note = self._refresh()
            found = self._find(ref)
            if found is None:  # committed between the two looks, perhaps
                note = self._refresh()
                found = self._find(ref)
            if found is None:
                if note is not None:
                    raise LockedError(note)
                raise UsageError(self._nothing(ref))
        # what takes long is waited for by those who want it, not by everybody
        return self._live_view(found) if isinstance(found, SpoolInfo) else self._recorded_view(found)

    def _refresh(self) -> str | None:
        """Read the table of runs again if the file has changed; why not, where a writer is at work."""
        try:
            stat = self.store.path.stat()
        except FileNotFoundError:
            self._rows, self._file_mark = [], ()
            return None
        mark = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if mark == self._file_mark:
            return None
        until, why = self._held_off
        if time.monotonic() < until and self.store.intent.announced():  # somebody has just waited for this writer
            return why
        try:
            with self.store.read() as con:
                rows = con.execute(f"SELECT {', '.join(_RUN_COLUMNS)} FROM runs ORDER BY run").fetchall()
        except LockedError as error:
            self._held_off = (time.monotonic() + WAIT_S, spoken(error))
            return spoken(error)
        self._rows = [dict(zip(_RUN_COLUMNS, row, strict=True)) for row in rows]
        self._file_mark = mark
        for row in self._rows:
            followed = self._followed.pop(row["spool"], None)
            if followed is not None and followed.tail.seen == row["iterations"]:
                self._kept.put(row["spool"], followed.kept())
        return None

    def _find(self, ref: str) -> SpoolInfo | dict[str, Any] | None:
        recorded = {row["spool"]: row for row in self._rows}
        spools = [spool for spool in spools_there(self.store) if spool.folder.name not in recorded]
        if is_job(ref):
            ref = self._jobs.run_of(ref, spools)
        if ref == LATEST:
            running = [spool for spool in spools if spool.alive]
            latest: list[SpoolInfo | dict[str, Any]] = [*spools[-1:], *self._rows[-1:], *running[-1:]]
            return latest[-1] if latest else None
        exact: list[dict[str, Any]] = [row for row in self._rows if ref in (str(row["run"]), row["spool"])]
        named: list[dict[str, Any]] = [row for row in self._rows if row["name"] == ref]
        under_way = [spool for spool in spools if ref in (spool.folder.name, spool.run.get("name"))]
        found: list[SpoolInfo | dict[str, Any]] = [*named[-1:], *under_way[-1:], *exact[-1:]]
        return found[-1] if found else None

    def _nothing(self, ref: str) -> str:
        if not self._rows:
            return f"{self.store.path} holds no runs yet; tracekit replay TRACE makes one, and it appears here while it runs"
        if ref in self._followed:
            return "this run's spool was discarded before it was committed"
        return f"run {ref[:80]}: no such run in {self.store.path}; the latest is {self._rows[-1]['run']}"

    def _live_view(self, info: SpoolInfo) -> RunView:
        name = info.folder.name
        try:
            kept = self._follow(info).read_on()
        except (FileNotFoundError, TracekitError):
            # committed or discarded in this very moment: the next look finds out which
            raise LockedError("the run is being moved into the database") from None
        state = ("committing" if info.alive else "left") if info.complete else "running" if info.alive else "killed"
        return RunView(
            ref=name,
            title=listed_spool(info).title,
            state=state,
            message=live_message(info, state, self.store.path),
            events=str(info.run.get("events")),
            live=info.alive,
            frames={replica: columns.frame() for replica, columns in sorted(kept.columns.items())},
            budget=kept.budget,
            kv_total=kept.kv_total,
            reserved=kept.reserved,
            expected=kept.expected,
            arrivals_ns=self._arrivals(info),
        )

    def _arrivals(self, info: SpoolInfo) -> int:
        """How long requests of a run under way go on to arrive, ns; 0: not known."""
        try:
            return self.remember(f"arrivals {info.folder.name}", lambda: arrivals_ns(self.store, info.run))
        except (TracekitError, KeyError):
            return 0

    def _follow(self, info: SpoolInfo) -> Followed:
        with self._lock:
            followed = self._followed.get(info.folder.name)
            if followed is None:
                followed = self._followed[info.folder.name] = follow(info)
        return followed

    def _recorded_view(self, row: dict[str, Any]) -> RunView:
        kept = self._kept.get(row["spool"], lambda: read_run(self.store, row["run"]))
        return RunView(
            ref=str(row["run"]),
            title=listed_run(row).title,
            state=row["state"],
            message=recorded_message(row),
            events=row["events"] or "full",
            live=False,
            frames={replica: columns.frame() for replica, columns in sorted(kept.columns.items())},
            budget=kept.budget,
            kv_total=kept.kv_total,
            reserved=kept.reserved,
            expected=kept.expected,
            spool=row["spool"],
        )
