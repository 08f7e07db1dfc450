"""Out to the engine: a trace, or a window of it, as column batches in arrival order, without a Python object per row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from replay_engine.types import RequestBatch
from tracekit.errors import InputError, UsageError

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from tracekit.traces.load import LoadedTrace

__all__ = ["BATCH", "TraceSource"]

BATCH = 8192
Ints = npt.NDArray[np.int64]


class TraceSource:
    """A ``RequestSource`` over columns. Attributes have one entry per yielded request, aligned with its dense index.

    ``arrival_ns`` counts from the first moment of the slice (lead-in included), divided by the rate scale. Unknown is -1
    in int64 columns; columns that the trace does not have at all are ``None``. ``tenant`` and ``class_`` are int32 codes into
    ``tenant_names`` and ``class_names`` (-1: unknown). ``counted`` is False in the lead-in. ``req_idx`` leads back to the
    ``requests`` table. ``window_ns`` is the length of the arrival window on the engine clock. ``left_out`` requests of the
    slice cannot be replayed (failed in the trace, or without tokens).
    """

    def __init__(self, arrivals: pa.Table, extras: pa.Table | None, runs: pa.Table | None, *, name: str,
                 block_tokens: int | None, window_ns: tuple[int, int] | None, lead_in_ns: int, limit: int | None,
                 rate_scale: float) -> None:  # fmt: skip
        if not rate_scale > 0:
            raise UsageError(f"--rate-scale {rate_scale}: expected a number above 0")
        arrival = _ints(arrivals, "arrival_ns")
        begin, end = _bounds(arrival, window_ns, lead_in_ns)
        low, high = (int(edge) for edge in np.searchsorted(arrival, [begin, end], "left"))
        arrival, arrivals = arrival[low:high], arrivals.slice(low, high - low)
        extras = _aligned(extras, _ints(arrivals, "req_idx"))
        keep = _replayable(arrivals, extras)
        rows = np.flatnonzero(keep)[:limit]
        if not len(rows):
            raise InputError("no request to replay in this part of the trace", file=name,
                             expected="at least one with input and output tokens")  # fmt: skip
        self.name = name
        self.left_out = len(keep) - int(np.count_nonzero(keep))
        self.origin_ns = begin if window_ns is not None else 0
        self.rate_scale = rate_scale
        if len(rows) < len(keep):
            arrival, arrivals = arrival[rows], arrivals.take(rows)
            extras = extras if extras is None else extras.take(rows)
        self.req_idx = _ints(arrivals, "req_idx")
        self._columns(arrivals, extras, arrival)
        first = window_ns[0] if window_ns is not None else int(arrival[0])
        self.counted: npt.NDArray[np.bool_] = arrival >= first
        # a limit that bites ends the window at its last request
        ended = window_ns is None or (limit is not None and len(rows) < int(np.count_nonzero(keep)))
        last = int(arrival[-1]) if window_ns is None or ended else window_ns[1]
        self.window_ns = max(round((last - first) / rate_scale), 0)
        self._prefix(runs, arrivals, block_tokens)

    @classmethod
    def from_database(cls, con: duckdb.DuckDBPyConnection, trace_id: int, *, window_ns: tuple[int, int] | None = None,
                      lead_in_ns: int = 0, limit: int | None = None, rate_scale: float = 1.0) -> TraceSource:  # fmt: skip
        """A loaded trace, or the arrivals in ``window_ns`` (ns from trace start, end excluded) after a lead-in."""
        head = con.execute("SELECT name, block_tokens FROM traces WHERE trace = ?", [trace_id]).fetchall()
        if not head:
            raise UsageError(f"trace {trace_id}: not in this database")
        name, block_tokens = head[0]
        where = f"trace = {int(trace_id)}"
        inside = where
        if window_ns is not None:
            inside += f" AND arrival_ns >= {int(window_ns[0] - lead_in_ns)} AND arrival_ns < {int(window_ns[1])}"
        shared = "" if block_tokens is None else ", shared_blocks"
        arrivals = con.sql(
            f"SELECT req_idx, arrival_ns, input_tokens, output_tokens{shared} FROM arrivals WHERE {inside} ORDER BY req_idx"
        ).to_arrow_table()
        extras = runs = None
        if arrivals.num_rows:
            low, high = arrivals["req_idx"][0].as_py(), arrivals["req_idx"][arrivals.num_rows - 1].as_py()
            where += f" AND req_idx BETWEEN {low} AND {high}"
            extras = _extras(con, where)
            if block_tokens is not None:
                picked = f"SELECT req_idx, pos_start, first_id, len FROM blocks WHERE {where} ORDER BY req_idx, pos_start"
                runs = con.sql(picked).to_arrow_table()
        return cls(arrivals, extras, runs, block_tokens=block_tokens, window_ns=window_ns, lead_in_ns=lead_in_ns, limit=limit,
                   rate_scale=rate_scale, name=name)  # fmt: skip

    @classmethod
    def from_loaded(cls, loaded: LoadedTrace, *, window_ns: tuple[int, int] | None = None, lead_in_ns: int = 0,
                    limit: int | None = None, rate_scale: float = 1.0) -> TraceSource:  # fmt: skip
        """The same from a trace in memory."""
        return cls(loaded.arrivals, loaded.extras, loaded.runs, block_tokens=loaded.report.block_tokens, window_ns=window_ns,
                   lead_in_ns=lead_in_ns, limit=limit, rate_scale=rate_scale, name=loaded.report.name)  # fmt: skip

    def _columns(self, arrivals: pa.Table, table: pa.Table | None, arrival: Ints) -> None:
        self.arrival_ns = self._clock(arrival)
        self.prompt_tokens = _ints(arrivals, "input_tokens")
        self.output_tokens = _ints(arrivals, "output_tokens")
        self.max_tokens = _known(table, "max_tokens")
        self.predicted_tokens = _known(table, "predicted_output_tokens")
        self.priority = _known(table, "priority", 0)
        ids = _column(table, "request_id")
        self.request_id: list[str] | None = None if ids is None else ["" if text is None else text for text in ids.to_pylist()]
        self.tenant, self.tenant_names = _codes(table, "tenant")
        self.class_, self.class_names = _codes(table, "class")
        self.obs_queue_ns = _known(table, "obs_queue_ns")
        self.obs_ttft_ns = _known(table, "obs_ttft_ns")
        self.obs_tpot_ns = _known(table, "obs_tpot_ns")
        self.obs_e2e_ns = _known(table, "obs_e2e_ns")
        self.slo_ttft_ns = _known(table, "slo_ttft_ns")
        self.slo_tpot_ns = _known(table, "slo_tpot_ns")
        self.deadline_ns = self._after_arrival(_known(table, "deadline_ns"), arrival)
        self.cancel_ns = self._after_arrival(_known(table, "cancel_ns"), arrival)

    def _clock(self, arrival: Ints) -> Ints:
        shifted = arrival - self.origin_ns
        return shifted if self.rate_scale == 1.0 else np.rint(shifted / self.rate_scale).astype(np.int64)

    def _after_arrival(self, moment: Ints | None, arrival: Ints) -> Ints | None:
        """A moment on the trace's clock to the engine's: its distance from the arrival stays, whatever the rate."""
        if moment is None:
            return None
        return np.where(moment < 0, -1, np.maximum(self.arrival_ns + moment - arrival, 0))

    def _prefix(self, runs: pa.Table | None, table: pa.Table, block_tokens: int | None) -> None:
        self.block_tokens = block_tokens or 0
        self.run_offsets: Ints | None = None
        if runs is None or not block_tokens:
            return
        owner = _ints(runs, "req_idx")
        begins = np.searchsorted(owner, self.req_idx, "left")
        counts = np.searchsorted(owner, self.req_idx, "right") - begins
        self.run_offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        take = np.repeat(begins - self.run_offsets[:-1], counts) + np.arange(int(self.run_offsets[-1]))
        self.run_pos = _ints(runs, "pos_start")[take]
        self.run_first = _ints(runs, "first_id")[take]
        self.run_len = _ints(runs, "len")[take]
        shared = _known(table, "shared_blocks")
        self.shared_blocks = np.zeros(self.total, np.int64) if shared is None else np.maximum(shared, 0)

    @property
    def total(self) -> int:
        """Number of requests that ``batches`` yields."""
        return len(self.arrival_ns)

    def batches(self, size: int = BATCH) -> Iterator[RequestBatch]:
        """The requests in arrival order, ``size`` at a time."""
        for low in range(0, self.total, size):
            yield self._batch(low, min(low + size, self.total))

    def _batch(self, low: int, high: int) -> RequestBatch:
        part = slice(low, high)
        n = high - low
        batch = RequestBatch(
            index=np.arange(low, high, dtype=np.int64),
            arrival_ns=self.arrival_ns[part],
            prompt_tokens=self.prompt_tokens[part],
            output_tokens=self.output_tokens[part],
            priority=np.zeros(n, np.int64) if self.priority is None else self.priority[part],
            max_tokens=np.full(n, -1, np.int64) if self.max_tokens is None else self.max_tokens[part],
            request_id=None if self.request_id is None else self.request_id[part],
            cancel_ns=None if self.cancel_ns is None else self.cancel_ns[part],
            tenant=None if self.tenant is None else self.tenant[part],
            deadline_ns=None if self.deadline_ns is None else self.deadline_ns[part],
            predicted_tokens=None if self.predicted_tokens is None else self.predicted_tokens[part],
        )
        if self.run_offsets is not None:
            offsets = self.run_offsets[low : high + 1]
            runs = slice(int(offsets[0]), int(offsets[-1]))
            batch.block_tokens, batch.run_offsets = self.block_tokens, offsets - offsets[0]
            batch.run_pos, batch.run_first, batch.run_len = self.run_pos[runs], self.run_first[runs], self.run_len[runs]
            batch.shared_blocks = self.shared_blocks[part]
        return batch


def _extras(con: duckdb.DuckDBPyConnection, where: str) -> pa.Table | None:
    """What more is known of these requests: only the columns that say something."""
    from tracekit.traces.columns import EXTRA

    names = [column.stored for column in EXTRA]
    asked = ", ".join(f'count("{name}")' for name in names)
    counts = con.execute(f"SELECT {asked} FROM request_extras WHERE {where}").fetchall()[0]
    known = [f'"{name}"' for name, count in zip(names, counts, strict=True) if count]
    if not known:
        return None
    return con.sql(f"SELECT req_idx, {', '.join(known)} FROM request_extras WHERE {where} ORDER BY req_idx").to_arrow_table()


def _aligned(extras: pa.Table | None, req_idx: Ints) -> pa.Table | None:
    """``extras`` with one row per request of ``req_idx``, NULL where it had none."""
    import pyarrow as pa

    if extras is None or not extras.num_rows:
        return None
    owner = _ints(extras, "req_idx")
    at = np.minimum(np.searchsorted(owner, req_idx), len(owner) - 1)
    return extras.take(pa.array(at, mask=owner[at] != req_idx))


def _bounds(arrival: Ints, window_ns: tuple[int, int] | None, lead_in_ns: int) -> tuple[int, int]:
    if window_ns is None:
        return 0, int(arrival[-1]) + 1 if len(arrival) else 1
    if window_ns[1] <= window_ns[0]:
        raise UsageError(f"--window {window_ns[0]}:{window_ns[1]} ns: expected an end after its begin")
    return max(window_ns[0] - lead_in_ns, 0), window_ns[1]


def _ints(table: pa.Table, name: str, null: int = -1) -> Ints:
    """A column as int64, NULL as ``null``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = table[name]
    if column.null_count:
        column = pc.fill_null(column.cast(pa.int64()), null)
    return np.asarray(column.to_numpy(), np.int64)


def _column(table: pa.Table | None, name: str) -> Any:
    """A column, or ``None`` when the table lacks it or it says nothing."""
    if table is None or name not in table.column_names or table[name].null_count == len(table):
        return None
    return table[name]


def _known(table: pa.Table | None, name: str, null: int = -1) -> Ints | None:
    """A column as int64 with ``null`` for unknown, ``None`` when nothing is known."""
    return None if table is None or _column(table, name) is None else _ints(table, name, null)


def _replayable(arrivals: pa.Table, extras: pa.Table | None) -> npt.NDArray[np.bool_]:
    import pyarrow.compute as pc

    keep: npt.NDArray[np.bool_] = (_ints(arrivals, "input_tokens") > 0) & (_ints(arrivals, "output_tokens") > 0)
    status = _column(extras, "status")
    if status is not None:
        good = pc.or_(pc.is_null(status), pc.is_in(status, value_set=_good_statuses()))
        keep &= np.asarray(good.to_numpy(), bool)
    return keep


def _good_statuses() -> pa.Array:
    import pyarrow as pa

    return pa.array(["ok", "unknown"])


def _codes(table: pa.Table | None, name: str) -> tuple[npt.NDArray[np.int32] | None, list[str]]:
    """Codes and names in order of first appearance."""
    import pyarrow.compute as pc

    column = _column(table, name)
    if column is None:
        return None, []
    coded = column.combine_chunks().dictionary_encode()
    codes = pc.fill_null(coded.indices, -1).to_numpy(zero_copy_only=False)
    return np.asarray(codes, np.int32), coded.dictionary.to_pylist()
