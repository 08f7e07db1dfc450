"""A part of a trace: a window, a predicate, whole sessions or prefix groups of it, its ticks spread, its rate scaled."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.errors import UsageError
from tracekit.traces.atoms import cut_atoms
from tracekit.traces.predicate import check_predicate, explain_error

if TYPE_CHECKING:
    import duckdb

    from tracekit.traces.load import LoadedTrace

__all__ = ["WHOLE", "By", "Chosen", "Slice", "choose_rows", "in_tick", "place_rows", "tables_of"]

Ints = npt.NDArray[np.int64]
By = Literal["session", "prefix", "request"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Which part of a trace, in this order: rows for which ``where`` holds, ``thin`` of their groups, arrivals spread inside
    the trace's tick, the window with a lead-in before it, the first ``limit`` counted requests, all ``rate_scale`` times as fast.

    ``window_ns``: ns from trace start, end excluded. ``lead_in_ns`` before it is replayed and not counted. ``where``: an SQL
    predicate over the view ``requests``. ``thin``: (numerator, denominator); groups are kept or left whole, chosen by ``seed``.
    ``by``: ``session``, ``prefix`` (requests that share the first block that only few hold) or ``request``; ``None``: the first
    of these that the trace has. ``spread_ticks``: uniform inside the tick by ``seed``. ``sessions``: where sessions start
    (``poisson:rate=0.1``, ``start_together``), or ``as_recorded``: every turn at its recorded time. ``isl_scale``, ``osl_scale``:
    prompts and outputs so many times as long. ``burst_scale``: gaps between arrivals to this power, over the same stretch.
    Errors: ``UsageError``.
    """

    window_ns: tuple[int, int] | None = None
    lead_in_ns: int = 0
    limit: int | None = None
    rate_scale: float = 1.0
    where: str | None = None
    thin: tuple[int, int] | None = None
    by: By | None = None
    spread_ticks: bool = False
    seed: int = 0
    sessions: str | None = None
    isl_scale: float = 1.0
    osl_scale: float = 1.0
    burst_scale: float = 1.0

    def __post_init__(self) -> None:
        if not (self.rate_scale > 0 and np.isfinite(self.rate_scale)):
            raise UsageError(f"--rate-scale {self.rate_scale}: expected a number above 0")
        for name, factor in (("isl", self.isl_scale), ("osl", self.osl_scale)):
            if not (factor > 0 and np.isfinite(factor)):
                raise UsageError(f"--{name}-scale {factor}: expected a number above 0")
        if not (self.burst_scale >= 0 and np.isfinite(self.burst_scale)):
            raise UsageError(f"--burst-scale {self.burst_scale}: expected 0 (even arrivals) or a number above it")
        if self.window_ns is not None and self.window_ns[1] <= self.window_ns[0]:
            raise UsageError(f"--window {self.window_ns[0]}:{self.window_ns[1]} ns: expected an end after its begin")
        if self.by is not None and self.thin is None:
            raise UsageError(f"--by {self.by}: says how to thin; expected --thin 1/64 with it")
        if self.where is not None:
            check_predicate(self.where)

    def moved(self, rate_scale: float, burst_scale: float) -> Slice:
        """The same with arrivals so many times as fast as it has them, and its gaps to this power. Errors: ``UsageError``."""
        Slice(rate_scale=rate_scale, burst_scale=burst_scale)  # each must be possible, not only their products
        return replace(self, rate_scale=self.rate_scale * rate_scale, burst_scale=self.burst_scale * burst_scale)

    @property
    def begin_ns(self) -> int:
        """Where the lead-in begins, ns from trace start; 0 without a window."""
        return 0 if self.window_ns is None else max(self.window_ns[0] - self.lead_in_ns, 0)

    @property
    def picks(self) -> bool:
        """Whether it takes some rows of the window rather than all."""
        return self.where is not None or self.thin is not None

    @property
    def scales_lengths(self) -> bool:
        """Whether requests are of other lengths than in the trace."""
        return (self.isl_scale, self.osl_scale) != (1.0, 1.0)

    @property
    def is_whole(self) -> bool:
        """Whether it is the trace as it is."""
        return self == WHOLE or (
            self.window_ns is None and self.limit is None and self.rate_scale == self.burst_scale == 1.0
            and not self.scales_lengths and not self.picks and not self.spread_ticks and self.sessions is None
        )  # fmt: skip


WHOLE = Slice()


class Chosen(NamedTuple):
    """Ascending ``req_idx`` of the rows taken, what thinned rows stand for (requests of the trace each), and how it was done."""

    rows: Ints
    weight: float
    by: By | None


def choose_rows(con: duckdb.DuckDBPyConnection, trace: int, part: Slice) -> Chosen | None:
    """The rows that ``where`` and ``thin`` leave, ``None`` for all. Errors: ``UsageError`` for a predicate that does not bind."""
    if not part.picks:
        return None
    rows = _where(con, trace, part.where)
    if part.thin is None or not len(rows):
        return Chosen(rows, 1.0, None)
    by = part.by or _thinnable(con, trace)
    groups = _groups(con, trace, rows, by, part.thin)
    names, which = np.unique(groups, return_inverse=True)
    kept = max(round(len(names) * part.thin[0] / part.thin[1]), 1)
    lucky = np.zeros(len(names), bool)
    lucky[np.argsort(_mixed(names, part.seed), kind="stable")[:kept]] = True
    return Chosen(rows[lucky[which]], len(names) / kept, by)


@contextmanager
def tables_of(loaded: LoadedTrace) -> Iterator[duckdb.DuckDBPyConnection]:
    """A trace in memory as trace 0 of a database of its own, for the length of the block."""
    import duckdb

    from tracekit.traces.ddl import create_tables

    with duckdb.connect() as con:
        create_tables(con)
        for table, rows in (("arrivals", loaded.arrivals), ("request_extras", loaded.extras), ("blocks", loaded.runs)):
            if rows is not None:
                con.register("rows_of_table", rows)
                con.execute(f"INSERT INTO {table} BY NAME SELECT * FROM rows_of_table")
                con.unregister("rows_of_table")
        yield con


def _where(con: duckdb.DuckDBPyConnection, trace: int, where: str | None) -> Ints:
    import duckdb

    query = f"SELECT req_idx FROM requests WHERE trace = {int(trace)}"
    if where is not None:
        query += f" AND ({where}\n)"
    try:
        found = con.execute(f"{query} ORDER BY req_idx").fetchnumpy()["req_idx"]
    except duckdb.Error as error:
        if where is None:
            raise
        raise explain_error(con, where, error) from None
    return np.asarray(found, np.int64)


def _thinnable(con: duckdb.DuckDBPyConnection, trace: int) -> By:
    for by, query in (("session", "SELECT 1 FROM request_extras WHERE trace = ? AND session_id IS NOT NULL LIMIT 1"),
                      ("prefix", "SELECT 1 FROM blocks WHERE trace = ? LIMIT 1")):  # fmt: skip
        if con.execute(query, [trace]).fetchall():
            return by  # type: ignore[return-value]
    return "request"


def _groups(con: duckdb.DuckDBPyConnection, trace: int, rows: Ints, by: By, thin: tuple[int, int]) -> npt.NDArray[np.uint64]:
    """One number per row that all rows of its group share."""
    own = _mixed(rows.astype(np.uint64), 1)
    if by == "session":
        return _session_groups(con, trace, rows, own)
    if by == "prefix":
        return _prefix_groups(con, trace, rows, own, thin)
    return own


def _session_groups(con: duckdb.DuckDBPyConnection, trace: int, rows: Ints,
                    own: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:  # fmt: skip
    found = con.sql(
        f"SELECT req_idx, session_id FROM request_extras WHERE trace = {int(trace)} AND session_id IS NOT NULL ORDER BY req_idx"
    ).to_arrow_table()
    if not found.num_rows:
        raise UsageError("--by session: the trace has no sessions; expected --by prefix or --by request")
    coded = found["session_id"].combine_chunks().dictionary_encode()
    names = [hashlib.blake2b(name.encode(), digest_size=8).digest() for name in coded.dictionary.to_pylist()]
    hashes = np.frombuffer(b"".join(names), "<u8").astype(np.uint64)[coded.indices.to_numpy()]
    owner = found["req_idx"].to_numpy().astype(np.int64)
    at = np.minimum(np.searchsorted(owner, rows), len(owner) - 1)
    return np.where(owner[at] == rows, hashes[at], own)


def _prefix_groups(con: duckdb.DuckDBPyConnection, trace: int, rows: Ints, own: npt.NDArray[np.uint64],
                   thin: tuple[int, int]) -> npt.NDArray[np.uint64]:  # fmt: skip
    """By the first block that at most the wanted share of all requests hold: a system prompt that everybody has is no group."""
    runs = con.execute(
        "SELECT req_idx, pos_start, first_id, len FROM blocks WHERE trace = ? ORDER BY req_idx, pos_start", [trace]
    ).fetchnumpy()
    if not len(runs["len"]):
        raise UsageError("--by prefix: the trace has no prefix blocks; expected --by session or --by request")
    atoms = cut_atoms(*(np.asarray(runs[name]).astype(np.int64) for name in ("req_idx", "pos_start", "first_id", "len")))
    holders = np.bincount(atoms.atom)
    begins = np.flatnonzero(np.diff(atoms.row, prepend=-1))
    few = holders[atoms.atom] <= max(1, len(rows) * thin[0] // thin[1])
    # the first rare atom of each request, else its last one
    order = np.arange(len(atoms.row))
    last = np.append(begins[1:], len(order)) - 1
    first_few = np.minimum.reduceat(np.where(few, order, len(order)), begins)
    group = atoms.first[atoms.atom[np.minimum(first_few, last)]]
    owner = atoms.row[begins]
    at = np.minimum(np.searchsorted(owner, rows), len(owner) - 1)
    return np.where(owner[at] == rows, _mixed(group.astype(np.uint64), 2)[at], own)


def _mixed(values: npt.NDArray[np.uint64], seed: int) -> npt.NDArray[np.uint64]:
    """A well-mixed 64-bit number for each value (splitmix64); equal on every machine."""
    start = np.uint64((seed * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03) % 2**64)
    with np.errstate(over="ignore"):
        z = values.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + start
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def place_rows(part: Slice, req_idx: Ints, arrival: Ints, tick_ns: int, chosen: Chosen | None) -> tuple[Ints, Ints]:
    """Which of the given rows (in arrival order) ``part`` takes, lead-in included, and when they arrive, both in arrival order.

    ``arrival`` is ns from trace start, and so is what is returned; rate scale and limit are not applied.
    """
    rows = np.arange(len(req_idx), dtype=np.int64)
    if chosen is not None:
        at = np.minimum(np.searchsorted(chosen.rows, req_idx), max(len(chosen.rows) - 1, 0))
        rows = rows[chosen.rows[at] == req_idx] if len(chosen.rows) else rows[:0]
    moment = arrival[rows]
    if part.spread_ticks:
        moment = moment + in_tick(req_idx[rows], tick_ns, part.seed)
        order = np.argsort(moment, kind="stable")
        rows, moment = rows[order], moment[order]
    if part.window_ns is None:
        return rows, moment
    low, high = np.searchsorted(moment, [part.begin_ns, part.window_ns[1]], "left")
    return rows[low:high], moment[low:high]


def in_tick(req_idx: Ints, tick_ns: int, seed: int) -> Ints:
    """ns in [0, ``tick_ns``) to add to each arrival: uniform, and the same for a request whatever slice it is in."""
    share = (_mixed(req_idx.astype(np.uint64), seed) >> np.uint64(11)).astype(np.float64) / 2**53
    return np.minimum((share * tick_ns).astype(np.int64), max(tick_ns - 1, 0))
