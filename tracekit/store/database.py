"""The database file: who may open it when, and in which state it is left.

The file is DuckDB's, in storage format v1.2.0, so a DuckDB shell of version 1.2.0 or later opens it. Beside ``NAME`` lies the
folder ``NAME.d`` with ``spool/`` (runs under way), ``jobs/`` and ``intent.lock``.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.errors import InputError, UsageError
from tracekit.store.intent import IntentLock, Patience, describe
from tracekit.store.schema import SCHEMA_VERSION, STORAGE_VERSION, migrate, schema_version

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

__all__ = ["DEFAULT_DATABASE", "Store", "one_line"]

DEFAULT_DATABASE = "tracekit.duckdb"
_MAGIC, _MAGIC_AT = b"DUCK", 8
WAIT_S = 300.0
"""How long a reader or writer waits for its turn; loading a large trace holds the file for seconds."""


class Store:
    """One database, named by its path; nothing is opened until it is read or written.

    Connections live for one ``with`` block. Waiting for another process is said on standard error after a second and ends
    in ``LockedError`` after ``wait_s`` seconds. Do not read while writing in the same thread: take the writer's connection.
    """

    def __init__(self, path: str | Path = DEFAULT_DATABASE, *, wait_s: float = WAIT_S) -> None:
        self.path = Path(path)
        self.folder = self.path.with_name(self.path.name + ".d")
        self.spool_folder = self.folder / "spool"
        self.intent = IntentLock(self.folder / "intent.lock")
        self.wait_s = wait_s
        self._current = False
        self._writing = threading.local()

    def exists(self) -> bool:
        """Whether there is a database file."""
        return self.path.is_file()

    @contextmanager
    def read(self) -> Iterator[DuckDBPyConnection]:
        """A read-only connection for one query or a few; raises ``UsageError`` where there is no database."""
        self._refuse_nesting()
        con = self._open_to_read()
        try:
            if not self._current and self._is_old(con):
                con.close()
                with self.write("upgrade the schema"):
                    pass
                con = self._open_to_read()
            self._current = True
            yield con
        finally:
            con.close()

    @contextmanager
    def write(self, what: str) -> Iterator[DuckDBPyConnection]:
        """A connection inside one transaction, committed at exit and rolled back on an exception.

        Creates the database where there is none. ``what`` tells waiting processes what is done ("commit run").
        """
        self._refuse_nesting()
        patience = Patience(self.path, self.wait_s)
        with self._announced(what, patience):
            con = self._open_to_write(patience)
            self._writing.active = True
            try:
                con.begin()
                try:
                    self._is_old(con)
                    migrate(con)
                    yield con
                except BaseException:
                    con.rollback()
                    raise
                con.commit()
                con.execute("CHECKPOINT")
                self._current = True
            finally:
                self._writing.active = False
                con.close()

    def _refuse_nesting(self) -> None:
        if getattr(self._writing, "active", False):
            raise RuntimeError("this thread already writes the database: use that connection")

    @contextmanager
    def _announced(self, what: str, patience: Patience) -> Iterator[None]:
        if not self.path.parent.is_dir():
            raise UsageError(f"{self.path}: no such folder to put a database into; expected a path in an existing folder")
        try:
            self.folder.mkdir(exist_ok=True)
        except OSError as error:
            raise UsageError(f"{self.folder}: cannot be written ({error.strerror}); expected a writable folder") from None
        with self.intent.hold(what, patience):
            yield

    def _open_to_read(self) -> DuckDBPyConnection:
        import duckdb

        patience = Patience(self.path, self.wait_s)
        while True:
            if not self.exists():
                raise UsageError(f"{self.path}: no such database; load or replay a trace first, or name another with --db")
            holder = self.intent.announced()
            if holder is not None:
                patience.pause(describe(holder))
                continue
            self._refuse_others()
            try:
                return duckdb.connect(str(self.path), read_only=True)
            except duckdb.Error as error:
                self._pause_if_locked(error, patience)

    def _open_to_write(self, patience: Patience) -> DuckDBPyConnection:
        import duckdb

        if not self.path.exists():
            self._create()
        self._refuse_others()
        while True:
            try:
                return duckdb.connect(str(self.path), config={"storage_compatibility_version": STORAGE_VERSION})
            except duckdb.Error as error:
                self._pause_if_locked(error, patience)

    def _create(self) -> None:
        """Make the file under another name first: a kill leaves a whole database or none."""
        import duckdb

        for left in self.path.parent.glob(f".{self.path.name}.new*"):
            left.unlink()
        new = self.path.with_name(f".{self.path.name}.new")
        with duckdb.connect(str(new), config={"storage_compatibility_version": STORAGE_VERSION}) as con:
            con.begin()
            migrate(con)
            con.commit()
            con.execute("CHECKPOINT")
        new.rename(self.path)

    def _refuse_others(self) -> None:
        """Refuse a file that is no database: DuckDB takes some kinds (CSV by its name) as data for a database in memory."""
        try:
            with self.path.open("rb") as file:
                head = file.read(len(_MAGIC) + _MAGIC_AT)
        except OSError as error:
            raise InputError(
                f"cannot be read: {error.strerror or error}", file=str(self.path), expected="a DuckDB database"
            ) from None
        if head[_MAGIC_AT:] != _MAGIC:
            reason = "not a DuckDB database" if head else "an empty file"
            raise InputError(reason, file=str(self.path), expected="a DuckDB database, or a name that is free")

    def _pause_if_locked(self, error: Exception, patience: Patience) -> None:
        """Wait when the file is held elsewhere or, in another mode, by another thread; anything else is the file's fault."""
        text = str(error)
        if "Could not set lock" in text:
            found = re.search(r"PID (\d+)", text)
            patience.pause(f"process {found[1]}" if found else "another process")
        elif "different configuration" in text or "already attached" in text:
            patience.pause("another thread of this process")
        else:
            raise InputError(one_line(error), file=str(self.path), expected="a DuckDB database") from None

    def _is_old(self, con: DuckDBPyConnection) -> bool:
        """Whether the schema needs migrating; ``UsageError`` when it is not ours or newer than this program."""
        version = schema_version(con)
        if version > SCHEMA_VERSION:
            raise UsageError(
                f"{self.path}: schema version {version} is newer than this program's {SCHEMA_VERSION}; update tracekit"
            )
        if version == 0 and con.execute("SELECT 1 FROM duckdb_tables() WHERE NOT internal LIMIT 1").fetchall():
            raise UsageError(f"{self.path}: a DuckDB database, but not one of tracekit's; name another with --db")
        return version < SCHEMA_VERSION


def one_line(error: Exception) -> str:
    """First line of a DuckDB error, without its class."""
    first = next(iter(str(error).splitlines()), "")
    return first.split(" Error: ", 1)[-1]
