"""A commit that begins before its run's matrix is made: inserting rows takes one core, matrix and verdict another."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from tracekit.store.commit import commit_rows, note_complete
from tracekit.store.database import Store
from tracekit.store.spool import SpoolSink, remove_spool

__all__ = ["EarlyCommit"]

SWITCH_S = 0.0005
"""How long a thread may keep the interpreter from another one: both mostly compute without it."""


class _AbandonedError(Exception):
    """Whoever should have handed over the row will not: the transaction is rolled back."""


class EarlyCommit:
    """One transaction in a thread of its own, for the time of a ``with`` block: a closed spool's rows go into the database at
    once, the ``runs`` row when it is handed over. A block that is left before has committed nothing, and the spool stays.

    The database is held from the beginning, as any commit holds it: do not read it within the block.
    """

    def __init__(self, store: Store, spool: SpoolSink) -> None:
        self._store, self._spool = store, spool
        self._row: Mapping[str, Any] | None = None
        self._handed, self._committed = threading.Event(), threading.Event()
        self._abandoned = False
        self._run = 0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="commit")

    def __enter__(self) -> Self:
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_S)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._abandoned = not self._committed.is_set()
        self._handed.set()
        sys.setswitchinterval(self._interval)
        self._thread.join()

    def finish(self, run_row: Mapping[str, Any], per_request: Mapping[str, Mapping[str, Any]]) -> int:
        """Hand over the row (as ``commit_run`` takes it), wait until everything is committed; the run's number. Errors are those
        of ``commit_run``."""
        self._row = note_complete(self._spool, run_row, per_request)
        self._handed.set()
        self._committed.wait()
        if self._error is not None:
            raise self._error
        return self._run

    def _work(self) -> None:
        try:
            self._run = commit_rows(self._store, self._spool.folder, self._wait_for_row, self._look)
        except BaseException as error:  # told to whoever waits for the commit
            self._error = error
        finally:
            self._committed.set()
        if self._error is None:
            remove_spool(self._spool.folder)

    def _wait_for_row(self) -> Mapping[str, Any]:
        self._handed.wait()
        self._look()
        assert self._row is not None
        return self._row

    def _look(self) -> None:
        if self._abandoned:
            raise _AbandonedError
