"""Out to the engine: a trace, or a window of it, as column batches in arrival order, without a Python object per row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from replay_engine.types import RequestBatch
from tracekit.errors import InputError, UsageError
from tracekit.traces.arrow_columns import aligned, codes, column_of, ints, known, taken
from tracekit.traces.clock import engine_clock
from tracekit.traces.lengths import cut_runs, scale_lengths
from tracekit.traces.session_tree import roots_of
from tracekit.traces.sessions import Placement, Turns, choose_turns, placement_of
from tracekit.traces.slicing import WHOLE, Chosen, Slice, choose_rows, tables_of
from tracekit.traces.ticks import find_tick

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from tracekit.traces.load import LoadedTrace

__all__ = ["BATCH", "TraceRows", "TraceSource"]

BATCH = 8192
Ints = npt.NDArray[np.int64]


class TraceRows(NamedTuple):
    """What was read of a trace for a part of it: enough for the same part at any rate, with lengths or bursts scaled."""

    arrivals: pa.Table
    extras: pa.Table | None
    runs: pa.Table | None
    name: str
    block_tokens: int | None
    tick_ns: int
    kind: str | None
    chosen: Chosen | None

    @property
    def nbytes(self) -> int:
        return sum(table.nbytes for table in (self.arrivals, self.extras, self.runs) if table is not None)


class TraceSource:
    """A ``RequestSource`` over columns. Attributes have one entry per yielded request, aligned with its dense index.

    ``arrival_ns`` counts from the first moment of the slice (lead-in included), divided by the rate scale. Unknown is -1
    in int64 columns; columns that the trace does not have at all are ``None``. ``tenant`` and ``class_`` are int32 codes into
    ``tenant_names`` and ``class_names`` (-1: unknown). ``counted`` is False in the lead-in. ``req_idx`` leads back to the
    ``requests`` table. ``window_ns`` is the length of the arrival window on the engine clock. ``left_out`` requests of the
    slice cannot be replayed (failed in the trace, or without tokens). Each request of a thinned slice stands for ``weight``
    requests of the trace.

    ``parent`` and ``think_ns`` are ``None`` where no request waits for another; else ``arrival_ns`` of one that does is the
    earliest moment for it (-1: any), its deadline and cancel count from its release, and ``start_ns`` is its root's arrival.
    ``gap_cv``: of the arrivals before and after their bursts were scaled. ``recorded_ns``: arrivals from trace start, as the
    trace has them; ``edges``: where the lead-in begins, the window, and where it ends, ``span_ns`` of the last two, so too.
    """

    def __init__(self, arrivals: pa.Table, extras: pa.Table | None, runs: pa.Table | None, *, name: str,
                 block_tokens: int | None, part: Slice, chosen: Chosen | None, tick_ns: int,
                 placement: Placement) -> None:  # fmt: skip
        turns = choose_turns(arrivals, aligned(extras, ints(arrivals, "req_idx")), part, tick_ns, chosen, placement)
        if not len(turns.rows):
            raise InputError("no request to replay in this part of the trace", file=name,
                             expected="at least one with input and output tokens")  # fmt: skip
        window, deciding = part.window_ns, turns.root
        first = window[0] if window is not None else int(deciding[0])
        # the lead-in is not counted against a limit, and a limit that bites ends the window at its last request
        after = np.cumsum(deciding >= first)
        ended = part.limit is not None and part.limit < int(after[-1])
        if part.limit is not None and ended:
            turns = turns.first(int(np.searchsorted(after, part.limit)) + 1)
            deciding = turns.root
        self.name = name
        self.part, self.tick_ns, self.placement = part, tick_ns, placement
        self.weight = 1.0 if chosen is None else chosen.weight
        self.by = None if chosen is None else chosen.by
        self.left_out = turns.left_out
        self.origin_ns = part.begin_ns
        self.rate_scale = part.rate_scale
        arrivals = taken(arrivals, turns.rows)
        self.req_idx = ints(arrivals, "req_idx")
        last = int(deciding.max()) if window is None or ended else window[1]
        self.edges = (self.origin_ns, first, last + (window is None or ended))
        self.span_ns, self.recorded_ns = last - first, turns.arrival
        self._turns(turns)
        self._columns(arrivals, aligned(extras, self.req_idx), turns)
        if part.scales_lengths:
            scale_lengths(self, part.isl_scale, part.osl_scale)
        self.counted: npt.NDArray[np.bool_] = deciding >= first
        self.window_ns = max(round(self.span_ns / part.rate_scale), 0)
        self._prefix(runs, arrivals, block_tokens)
        if part.isl_scale < 1:
            cut_runs(self)

    @classmethod
    def from_database(cls, con: duckdb.DuckDBPyConnection, trace_id: int, part: Slice = WHOLE) -> TraceSource:
        """A loaded trace, or a part of it. Errors: ``UsageError``, ``InputError`` where nothing can be replayed."""
        return cls.from_rows(cls.rows_of(con, trace_id, part), part)

    @classmethod
    def from_rows(cls, rows: TraceRows, part: Slice) -> TraceSource:
        """Of rows that were read for this part, or for one that differs in its scales alone."""
        tables = {name: value for name, value in rows._asdict().items() if name != "kind"}
        return cls(**tables, part=part, placement=placement_of(part, rows.kind))

    @staticmethod
    def rows_of(con: duckdb.DuckDBPyConnection, trace_id: int, part: Slice = WHOLE) -> TraceRows:
        """What a part of a loaded trace is made of."""
        head = con.execute(
            "SELECT name, block_tokens, time_resolution_ns, arrival_kind FROM traces WHERE trace = ?", [trace_id]
        ).fetchall()
        if not head:
            raise UsageError(f"trace {trace_id}: not in this database")
        name, block_tokens, tick_ns, kind = head[0]
        chosen = choose_rows(con, trace_id, part)
        where = inside = f"trace = {int(trace_id)}"
        if part.window_ns is not None and not _needs_all(con, trace_id, placement_of(part, kind)):
            # one tick earlier: spreading moves arrivals into the window
            begin = part.begin_ns - (tick_ns if part.spread_ticks else 0)
            inside += f" AND arrival_ns >= {begin} AND arrival_ns < {int(part.window_ns[1])}"
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
        return TraceRows(arrivals, extras, runs, name, block_tokens, tick_ns, kind, chosen)

    @classmethod
    def from_loaded(cls, loaded: LoadedTrace, part: Slice = WHOLE) -> TraceSource:
        """The same from a trace in memory."""
        chosen = None
        if part.picks:
            with tables_of(loaded) as con:
                chosen = choose_rows(con, 0, part)
        tick_ns = find_tick(ints(loaded.arrivals, "arrival_ns")) if part.spread_ticks else 1
        return cls(loaded.arrivals, loaded.extras, loaded.runs, name=loaded.report.name, block_tokens=loaded.report.block_tokens,
                   part=part, chosen=chosen, tick_ns=tick_ns,
                   placement=placement_of(part, loaded.report.arrival_kind))  # fmt: skip

    def _turns(self, turns: Turns) -> None:
        """Times on the engine clock: a rate scales roots; what depends on another request keeps its distance."""
        scaled, self.gap_cv = engine_clock(turns.arrival, turns.parent, self.part, self.edges)
        self.arrival_ns = scaled
        self.start_ns = scaled
        self.parent: Ints | None = None
        self.think_ns: Ints | None = None
        child = turns.parent >= 0
        if not child.any():
            return
        own = roots_of(turns.parent)[0]
        self.start_ns = scaled[own]
        earliest = np.where(turns.arrival < 0, -1, self.start_ns + turns.arrival - turns.arrival[own])
        self.arrival_ns = np.where(child, earliest, scaled)
        self.parent, self.think_ns = turns.parent, turns.think

    def _columns(self, arrivals: pa.Table, table: pa.Table | None, turns: Turns) -> None:
        self.prompt_tokens = ints(arrivals, "input_tokens")
        self.output_tokens = ints(arrivals, "output_tokens")
        self.max_tokens = known(table, "max_tokens")
        self.predicted_tokens = known(table, "predicted_output_tokens")
        self.priority = known(table, "priority", 0)
        ids = column_of(table, "request_id")
        self.request_id: list[str] | None = None if ids is None else ["" if text is None else text for text in ids.to_pylist()]
        self.tenant, self.tenant_names = codes(table, "tenant")
        self.class_, self.class_names = codes(table, "class")
        self.obs_queue_ns = known(table, "obs_queue_ns")
        self.obs_ttft_ns = known(table, "obs_ttft_ns")
        self.obs_tpot_ns = known(table, "obs_tpot_ns")
        self.obs_e2e_ns = known(table, "obs_e2e_ns")
        self.slo_ttft_ns = known(table, "slo_ttft_ns")
        self.slo_tpot_ns = known(table, "slo_tpot_ns")
        self.deadline_ns = self._after_arrival(known(table, "deadline_ns"), turns.recorded)
        self.cancel_ns = self._after_arrival(known(table, "cancel_ns"), turns.recorded)

    def _after_arrival(self, moment: Ints | None, recorded: Ints) -> Ints | None:
        """A moment on the trace's clock to the engine's: its distance from the arrival stays, whatever the rate. For a request
        with a parent the distance itself, since nobody knows yet when it is released."""
        if moment is None:
            return None
        begin = self.arrival_ns if self.parent is None else np.where(self.parent >= 0, 0, self.arrival_ns)
        return np.where(moment < 0, -1, np.maximum(begin + moment - recorded, 0))

    def _prefix(self, runs: pa.Table | None, table: pa.Table, block_tokens: int | None) -> None:
        self.block_tokens = block_tokens or 0
        self.run_offsets: Ints | None = None
        if runs is None or not block_tokens:
            return
        owner = ints(runs, "req_idx")
        begins = np.searchsorted(owner, self.req_idx, "left")
        counts = np.searchsorted(owner, self.req_idx, "right") - begins
        self.run_offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        take = np.repeat(begins - self.run_offsets[:-1], counts) + np.arange(int(self.run_offsets[-1]))
        self.run_pos = ints(runs, "pos_start")[take]
        self.run_first = ints(runs, "first_id")[take]
        self.run_len = ints(runs, "len")[take]
        shared = known(table, "shared_blocks")
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
            parent=None if self.parent is None else self.parent[part],
            think_ns=None if self.think_ns is None else self.think_ns[part],
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
    said = [f'"{name}"' for name, count in zip(names, counts, strict=True) if count]
    if not said:
        return None
    return con.sql(f"SELECT req_idx, {', '.join(said)} FROM request_extras WHERE {where} ORDER BY req_idx").to_arrow_table()


def _needs_all(con: duckdb.DuckDBPyConnection, trace: int, placement: Placement) -> bool:
    """Whether a window cannot be cut before sessions are put together: the arrival of its root decides about a turn."""
    if placement.kind != "recorded":
        return placement.kind != "as_recorded"
    turns = "SELECT 1 FROM request_extras WHERE trace = ? AND parent_idx IS NOT NULL LIMIT 1"
    return bool(con.execute(turns, [trace]).fetchall())
