"""How writers get a turn: a lock file beside the database by which a writer announces itself.

DuckDB lets either one process write or several read, and readers that reopen back to back would never leave a gap. So a
writer holds this lock from before it opens the database until it has closed it, and readers do not start meanwhile. Readers
only try the lock, for microseconds, and never keep it: they cannot starve a writer. The kernel frees it when its holder dies.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tracekit.errors import LockedError

__all__ = ["IntentLock", "Patience"]

FIRST_PAUSE_S = 0.002
LONGEST_PAUSE_S = 0.05
QUIET_S = 1.0
"""How long a wait stays silent."""


class Patience:
    """One wait with growing pauses: a message on standard error after a second, ``LockedError`` after ``limit_s``."""

    def __init__(self, path: Path, limit_s: float) -> None:
        self._path = path
        self._limit_s = limit_s
        self._began = time.monotonic()
        self._pause_s = FIRST_PAUSE_S
        self._said = False

    def pause(self, holder: str) -> None:
        """Sleep a little longer than the last time; ``holder`` says who is waited for."""
        waited = time.monotonic() - self._began
        if waited >= self._limit_s:
            raise LockedError(f"{self._path}: in use by {holder}; gave up after {self._limit_s:g} s, try again when it is done")
        if waited >= QUIET_S and not self._said:
            self._said = True
            print(f"waiting for {self._path}: in use by {holder}", file=sys.stderr, flush=True)
        time.sleep(min(self._pause_s, max(self._limit_s - waited, 0.0)))
        self._pause_s = min(self._pause_s * 1.5, LONGEST_PAUSE_S)


class IntentLock:
    """The lock file of one database; it holds ``{pid, what, since}`` while a writer is announced."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def announced(self) -> dict[str, Any] | None:
        """Who writes or is about to, ``None`` when nobody does. Keys ``pid``, ``what``, ``since`` (UTC), may be missing."""
        try:
            handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        except BlockingIOError:
            return _holder(os.pread(handle, 4096, 0))
        finally:
            os.close(handle)

    @contextmanager
    def hold(self, what: str, patience: Patience) -> Iterator[None]:
        """Be the announced writer while the block runs; waits for another one."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    patience.pause(describe(_holder(os.pread(handle, 4096, 0))))
            note = {"pid": os.getpid(), "what": what, "since": datetime.now(UTC).isoformat(timespec="seconds")}
            os.pwrite(handle, json.dumps(note).encode(), 0)
            os.ftruncate(handle, len(json.dumps(note).encode()))
            yield
            os.ftruncate(handle, 0)
        finally:
            os.close(handle)


def describe(holder: dict[str, Any]) -> str:
    """``process 4711 (commit run since ...)``, as far as known."""
    if not holder.get("pid"):
        return "another process"
    return f"process {holder['pid']} ({holder.get('what')}, since {holder.get('since')})"


def _holder(content: bytes) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
