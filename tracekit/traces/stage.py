"""Where readers put what they read: canonical columns in an in-memory database that spills to disk, prefix runs, rejects.

Arrival times are int64 ns on the source's own clock here; they become ns from trace start when the trace is finished.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from tracekit.errors import shown
from tracekit.traces.columns import COLUMNS, Column

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

__all__ = ["Facts", "Reject", "Stage", "cell"]

EXAMPLES = 1000
MOST_IGNORED = 200_000
_PROSE = re.compile(r"[^\W\d_]{2,}[\s,;:.!?]+[^\W\d_]{2,}|@|[^\x00-\x7f]{4}|[^\W\d_]{24}")
"""Two words, an address, a run of letters of another script: no number, date or id looks like that."""
MEMORY = "500MB"
FLUSH_ROWS = 1 << 16


@dataclass(frozen=True, slots=True, order=True)
class Reject:
    """One dropped row: where, which cell, why. ``value`` is escaped and clipped, never prompt text."""

    file: str
    line: int
    column: str | None
    value: str | None
    reason: str


@dataclass(slots=True, kw_only=True)
class Facts:
    """What a format knows of its trace as a whole."""

    absolute: bool = False
    """Whether arrivals are ns since 1970 (UTC), not since some start."""
    zone_assumed: bool = False
    block_tokens: int | None = None
    hash_scope: Literal["global", "session", "none"] = "none"
    hash_rounding: Literal["ceil", "floor"] | None = None
    obs_clock: Literal["server", "client", "gateway"] | None = None
    arrival_kind: str | None = None
    """How arrivals came to be, where they are neither absolute nor relative times of a log: ``generated``, ``closed_loop``."""
    ignored: dict[str, None] = field(default_factory=dict)
    """Columns and keys that were not read, in the order of appearance."""
    warnings: list[str] = field(default_factory=list)

    times: dict[str, str] = field(default_factory=dict)
    """How each source column of times was read, and why so."""

    def ignore(self, names: Iterable[str]) -> None:
        """Columns that are not read; beyond thousands (a log keyed by somebody's words) no more are kept."""
        for name in names:
            if len(self.ignored) >= MOST_IGNORED:
                return
            self.ignored[name] = None

    def read_after_all(self, name: str) -> None:
        """A column that was thought not to be read, but is."""
        self.ignored.pop(name, None)

    def warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)


def cell(value: object) -> str | None:
    """A failing cell as it may be told: escaped and clipped; what may be something that a person wrote is only described."""
    if value is None:
        return None
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    text = str(value)
    return f"a text of {len(text)} characters" if _PROSE.search(text) else shown(text)


class Stage:
    """A sink for readers. Use as a context manager; rows keep the order in which they are appended."""

    def __init__(self) -> None:
        import duckdb

        self._folder = TemporaryDirectory(prefix="tracekit-stage-")
        self.con: duckdb.DuckDBPyConnection = duckdb.connect()
        self.con.execute(f"SET memory_limit = '{MEMORY}'")
        self.con.execute(f"SET temp_directory = '{self._folder.name}'")
        self.con.execute("SET TimeZone = 'UTC'")
        self.con.execute("CREATE TABLE stage (file USMALLINT, line UBIGINT)")
        self.columns: list[Column] = []
        self.facts = Facts()
        self.read = 0
        self.kept = 0
        self.dropped: Counter[str] = Counter()
        self.rejects: list[Reject] = []
        self.names: dict[int, str] = {}
        """What messages call each source, by its number."""
        self.session_ids = 0
        """First block id that no session has, where ids are local to sessions and were set apart."""
        self.not_requests: set[str] = set()
        """Reasons of dropped rows that are no bad rows: they were never requests, or are left out on demand."""
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._runs: list[tuple[npt.NDArray[np.int64], ...]] = []

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.con.close()
        self._folder.cleanup()

    def one(self, query: str) -> tuple[Any, ...]:
        """The only row of a query."""
        # all of it: a result that is not read to its end blocks the connection
        rows: list[tuple[Any, ...]] = self.con.execute(query).fetchall()
        return rows[0]

    def open(self, names: Sequence[str]) -> None:
        """Declare the canonical columns that the following rows may fill."""
        for name in names:
            column = COLUMNS[name]
            if column.kind != "blocks" and column not in self.columns:
                self.con.execute(f'ALTER TABLE stage ADD COLUMN "{column.stored}" {column.sql_type}')
                self.columns.append(column)

    def append(self, file: int, lines: npt.NDArray[np.int64], columns: Mapping[str, Any]) -> None:
        """Rows as columns by canonical name: int64 arrays, or Arrow arrays where there are NULLs or text."""
        import pyarrow as pa

        if not len(lines):
            return
        self.open(list(columns))
        data = {"file": pa.array(np.full(len(lines), file, np.uint16)), "line": pa.array(lines)}
        data |= {COLUMNS[name].stored: pa.array(values) for name, values in columns.items()}
        self._pending.append(pa.table(data))
        self._pending_rows += len(lines)
        self.kept += len(lines)
        self.read += len(lines)
        if self._pending_rows >= FLUSH_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write what ``append`` has gathered: small batches cost the database more than their rows do."""
        import pyarrow as pa

        if self._pending:
            self.con.register("batch", pa.concat_tables(self._pending, promote_options="default"))
            self.con.execute("INSERT INTO stage BY NAME SELECT * FROM batch")
            self.con.unregister("batch")
        self._pending, self._pending_rows = [], 0

    def append_query(self, names: Sequence[str], select: str) -> None:
        """Rows by SQL: ``select`` yields ``file``, ``line`` and the stored names of ``names``."""
        self.flush()
        self.open(names)
        count = int(self.one(f"INSERT INTO stage BY NAME {select}")[0])
        self.kept += count
        self.read += count

    def append_runs(self, row: npt.NDArray[np.int64], pos: npt.NDArray[np.int64], first: npt.NDArray[Any],
                    length: npt.NDArray[np.int64]) -> None:  # fmt: skip
        """Prefix runs of rows already counted from 0 over the whole stage; ``first`` may be uint64."""
        self._runs.append((row, pos, first, length))

    def runs(self) -> tuple[npt.NDArray[Any], ...] | None:
        """All prefix runs (row, position, first id, length) as four arrays, or ``None``."""
        if not self._runs:
            return None
        return tuple(np.concatenate([part[i] for part in self._runs]) for i in range(4))

    def reject(self, file: str, line: int, column: str | None, value: object, reason: str) -> None:
        """Drop one row. Counts are exact; only the first rejects are kept as examples."""
        self.count_dropped(reason, 1)
        if len(self.rejects) < EXAMPLES:
            self.rejects.append(Reject(file, line, column, cell(value), reason))

    def set_aside(self, reason: str, rows: int) -> None:
        """Count rows that are well-formed but no requests of this trace (tool events, health checks)."""
        if rows:
            self.not_requests.add(reason)
            self.count_dropped(reason, rows)

    def keep_only(self, rows: npt.NDArray[np.int64], reason: str) -> None:
        """Leave out on demand all staged rows but ``rows`` (ascending, from 0), prefix runs included."""
        import pyarrow as pa

        gone = self.kept - len(rows)
        self.con.register("kept_rows", pa.table({"kept": rows}))
        self.con.execute("CREATE TABLE fewer AS SELECT s.* FROM stage s JOIN kept_rows ON s.rowid = kept ORDER BY s.rowid")
        self.con.unregister("kept_rows")
        self.con.execute("DROP TABLE stage; ALTER TABLE fewer RENAME TO stage")
        place = np.full(self.kept, -1, np.int64)
        place[rows] = np.arange(len(rows))
        runs = self.runs()
        if runs is not None:
            stays = place[runs[0]] >= 0
            self._runs = [(place[runs[0][stays]], *(part[stays] for part in runs[1:]))]
        self.kept -= gone
        self.read -= gone
        self.set_aside(reason, gone)

    def count_dropped(self, reason: str, rows: int) -> None:
        """Count dropped rows without an example."""
        self.read += rows
        self.dropped[reason] += rows
