"""The rows that are described: all of a trace in batches, or a slice of it in arrival order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.traces.slicing import Slice, choose_rows, place_rows

if TYPE_CHECKING:
    import duckdb

__all__ = ["Batch", "Rows"]

Ints = npt.NDArray[np.int64]
BATCH_ROWS = 1 << 20


class Batch(NamedTuple):
    """Rows in arrival order: ``arrival_ns`` from trace start (in a slice: from its window's begin, at its rate)."""

    req_idx: Ints
    arrival_ns: Ints
    input_tokens: Ints
    output_tokens: Ints


@dataclass(slots=True)
class Rows:
    """Trace ``trace`` of ``con``, or ``part`` of it; ``chosen`` (a slice's rows in arrival order) is ``None`` for all."""

    con: duckdb.DuckDBPyConnection
    trace: int
    chosen: Batch | None = None
    weight: float = 1.0
    by: str | None = None

    @classmethod
    def of_slice(cls, con: duckdb.DuckDBPyConnection, trace: int, part: Slice, tick_ns: int) -> Rows:
        """The rows of ``part``; failed requests are among them (a replay leaves them out). No lead-in."""
        chosen = choose_rows(con, trace, part)
        table = con.execute(
            "SELECT req_idx, arrival_ns, input_tokens, output_tokens FROM arrivals WHERE trace = ? ORDER BY req_idx", [trace]
        ).fetchnumpy()
        columns = [np.asarray(table[name]).astype(np.int64) for name in Batch._fields]
        rows, arrival = place_rows(part, columns[0], columns[1], tick_ns, chosen)
        rows, arrival = rows[: part.limit], arrival[: part.limit]
        moved = arrival - part.begin_ns
        if part.rate_scale != 1.0:
            moved = np.rint(moved / part.rate_scale).astype(np.int64)
        batch = Batch(columns[0][rows], moved, columns[2][rows], columns[3][rows])
        return cls(con, trace, batch, 1.0 if chosen is None else chosen.weight, None if chosen is None else chosen.by)

    def batches(self) -> Iterator[Batch]:
        """In arrival order."""
        if self.chosen is not None:
            yield self.chosen
            return
        # a stretch at a time: sorting all of them would hold the table, and the stored order makes a stretch cheap to find;
        # within one, rows nearly always come as they are stored
        last = self.con.execute("SELECT coalesce(max(req_idx), -1) FROM arrivals WHERE trace = ?", [self.trace]).fetchall()[0][0]
        query = f"SELECT {', '.join(Batch._fields)} FROM arrivals WHERE trace = ? AND req_idx BETWEEN ? AND ?"
        for low in range(0, last + 1, BATCH_ROWS):
            found = self.con.execute(query, [self.trace, low, low + BATCH_ROWS - 1]).fetchnumpy()
            columns = [np.asarray(found[name]).astype(np.int64) for name in Batch._fields]
            if (np.diff(columns[0]) < 0).any():
                order = np.argsort(columns[0])
                columns = [values[order] for values in columns]
            yield Batch(*columns)

    def extras(self, select: str) -> list[tuple[Any, ...]]:
        """A query over ``request_extras`` joined to ``arrivals`` of these rows, as view ``described``: ``select`` is everything
        from SELECT on."""
        picked = f"SELECT * FROM requests WHERE trace = {int(self.trace)}"
        if self.chosen is not None:
            import pyarrow as pa

            self.con.register("described_rows", pa.table({"req_idx": self.chosen.req_idx}))
            picked += " AND req_idx IN (SELECT req_idx FROM described_rows)"
        return self.con.execute(f"WITH described AS ({picked}) {select}").fetchall()

    def runs(self) -> tuple[Ints, Ints, Ints, Ints] | None:
        """Prefix runs with requests numbered in arrival order, or ``None`` where there are none."""
        names = ("req_idx", "pos_start", "first_id", "len")
        query = f"SELECT {', '.join(names)} FROM blocks WHERE trace = ? ORDER BY req_idx, pos_start"
        table = self.con.execute(query, [self.trace]).fetchnumpy()
        row, pos, first, length = (np.asarray(table[name]).astype(np.int64) for name in names)
        if not len(row):
            return None
        if self.chosen is None:
            return row, pos, first, length
        by_number = np.argsort(self.chosen.req_idx)
        owners = self.chosen.req_idx[by_number]
        at = np.minimum(np.searchsorted(owners, row), max(len(owners) - 1, 0))
        kept = owners[at] == row if len(owners) else np.zeros(len(row), bool)
        row = by_number[at[kept]]
        order = np.lexsort((pos[kept], row))
        return row[order], pos[kept][order], first[kept][order], length[kept][order]
