"""Sessions in a replay: where they start, which turns wait for which completion, which of them a slice takes.

A window takes sessions whole, by the arrival of their root. A turn whose parent failed in the trace follows the nearest turn
above that did not, later by what lay between; one whose parent is not in the slice at all starts at its recorded time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from tracekit.errors import UsageError, shown
from tracekit.traces.arrival_process import ArrivalProcess
from tracekit.traces.arrow_columns import column_of, ints, known
from tracekit.traces.linking import UNKNOWN
from tracekit.traces.session_tree import roots_of
from tracekit.traces.slicing import Chosen, Slice, in_tick, place_rows

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RELATIVE_DEFAULT", "Placement", "Turns", "choose_turns", "parse_sessions", "placement_of"]

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
RELATIVE_DEFAULT = "poisson:rate=0.1,seed=1"
"""Where sessions without a common clock start when nobody said: one every ten seconds on average."""
EXPECTED = "poisson:rate=0.1[,seed=1] (session starts a second), start_together, or as_recorded"


@dataclass(frozen=True, slots=True)
class Placement:
    """``recorded``: sessions start as recorded, turns follow completions. ``start_together`` and ``poisson``: so do turns, and
    sessions start at one instant or by ``process``. ``as_recorded``: every turn arrives at its recorded time, whoever is late."""

    kind: Literal["recorded", "start_together", "poisson", "as_recorded"]
    process: ArrivalProcess | None = None


def parse_sessions(text: str) -> Placement:
    """What ``--sessions`` says. Errors: ``UsageError``."""
    if text in ("start_together", "as_recorded"):
        return Placement(text)  # type: ignore[arg-type]
    if not text.startswith("poisson:"):
        raise UsageError(f"--sessions {shown(text)}: expected {EXPECTED}")
    try:
        return Placement("poisson", ArrivalProcess.parse(text))
    except UsageError as error:
        raise UsageError(str(error).replace("--arrival", "--sessions", 1)) from error


def placement_of(part: Slice, arrival_kind: str | None) -> Placement:
    """As said, else sessions where they were recorded, or by ``RELATIVE_DEFAULT`` where they have no common clock."""
    if part.sessions is not None:
        return parse_sessions(part.sessions)
    return parse_sessions(RELATIVE_DEFAULT) if arrival_kind == "session_relative" else Placement("recorded")


@dataclass(slots=True, kw_only=True)
class Turns:
    """What is replayed, roots in the order of arrival and each followed by all that depends on it.

    One entry per request, int64: ``rows`` into the arrivals table; ``parent`` the entry that it follows (-1: none), which stands
    before it; ``think`` ns after the parent's completion; ``arrival`` ns from trace start, of a turn the earliest moment for it
    (-1: any); ``recorded`` its own recorded arrival; ``root`` the arrival of its root, which decides about windows;
    ``left_out`` requests of the slice cannot be replayed.
    """

    rows: Ints
    parent: Ints
    think: Ints
    arrival: Ints
    recorded: Ints
    root: Ints
    left_out: int

    def first(self, count: int) -> Turns:
        """Only the first ``count`` of them."""
        columns = ("rows", "parent", "think", "arrival", "recorded", "root")
        return replace(self, **{name: getattr(self, name)[:count] for name in columns})


def choose_turns(arrivals: pa.Table, extras: pa.Table | None, part: Slice, tick_ns: int, chosen: Chosen | None,
                 placement: Placement) -> Turns:  # fmt: skip
    """The requests of ``part``. ``extras`` is aligned with ``arrivals``; both have the whole trace where sessions are placed or
    turns depend on others."""
    keep = _replayable(arrivals, extras)
    req_idx, recorded = ints(arrivals, "req_idx"), ints(arrivals, "arrival_ns")
    above = known(extras, "parent_idx")
    if above is None and placement.kind in ("recorded", "as_recorded"):
        return _independent(req_idx, recorded, keep, part, tick_ns, chosen)
    parent = _positions(req_idx, above)
    at = recorded + _offsets(recorded, extras, parent, placement)
    if placement.kind == "as_recorded":
        parent = np.full(len(parent), -1, np.int64)
    if chosen is not None:
        taken = np.isin(req_idx, chosen.rows)
        parent = np.where((parent >= 0) & taken[np.maximum(parent, 0)], parent, -1)
    root, _ = roots_of(parent)
    if part.spread_ticks:
        at = at + in_tick(req_idx[root], tick_ns, part.seed)
    inside, moment = _inside(part, req_idx, at, root, chosen)
    think = _thinking(extras, len(parent))
    e2e = known(extras, "obs_e2e_ns", UNKNOWN)
    followed, think = _bridged(parent, think, keep, e2e, at)
    return _ordered(inside & keep, followed, think, at, moment, recorded, int(np.count_nonzero(inside & ~keep)))


def _independent(req_idx: Ints, recorded: Ints, keep: Bools, part: Slice, tick_ns: int, chosen: Chosen | None) -> Turns:
    """Every request at its recorded time."""
    rows, moment = place_rows(part, req_idx, recorded, tick_ns, chosen)
    good = keep[rows]
    rows, moment = rows[good], moment[good]
    none = np.full(len(rows), -1, np.int64)
    return Turns(rows=rows, parent=none, think=np.zeros(len(rows), np.int64), arrival=moment, recorded=recorded[rows],
                 root=moment, left_out=int(np.count_nonzero(~good)))  # fmt: skip


def _positions(req_idx: Ints, above: Ints | None) -> Ints:
    """Parents as rows of the table; -1 where they are not in it."""
    if above is None:
        return np.full(len(req_idx), -1, np.int64)
    at = np.minimum(np.searchsorted(req_idx, above), len(req_idx) - 1)
    return np.where((above >= 0) & (req_idx[at] == above), at, -1)


def _thinking(extras: pa.Table | None, rows: int) -> Ints:
    think = known(extras, "think_ns", UNKNOWN)
    return np.full(rows, UNKNOWN, np.int64) if think is None else think


def _offsets(recorded: Ints, extras: pa.Table | None, parent: Ints, placement: Placement) -> Ints | int:
    """What placing its session adds to each recorded arrival."""
    if placement.kind in ("recorded", "as_recorded"):
        return 0
    group, first = _sessions(extras, parent, recorded)
    starts = placement.process.times(len(first)) if placement.process is not None else np.zeros(len(first), np.int64)
    return (starts - first)[group]


def _sessions(extras: pa.Table | None, parent: Ints, recorded: Ints) -> tuple[Ints, Ints]:
    """The session of each request, numbered in the order of their first rows, and each one's first arrival."""
    root = roots_of(parent)[0]
    named = column_of(extras, "session_id")
    if named is not None:
        import pyarrow.compute as pc

        coded = pc.fill_null(named.combine_chunks().dictionary_encode().indices, -1).to_numpy(zero_copy_only=False)
        # a request without a session is one of its own
        root = np.where(coded >= 0, coded.astype(np.int64) - len(root), root)
    _, first_row, group = np.unique(root, return_index=True, return_inverse=True)
    rank = np.empty(len(first_row), np.int64)
    rank[np.argsort(first_row)] = np.arange(len(first_row))
    group = rank[group]
    first = np.full(len(first_row), np.iinfo(np.int64).max)
    np.minimum.at(first, group, recorded)
    return group, first


def _inside(part: Slice, req_idx: Ints, at: Ints, root: Ints, chosen: Chosen | None) -> tuple[Bools, Ints]:
    """Which rows the slice takes (but for its limit), and when the root of each arrives."""
    moment = at[root]
    order = np.argsort(moment, kind="stable")
    rows, _ = place_rows(replace(part, spread_ticks=False), req_idx[order], moment[order], 1, chosen)
    inside = np.zeros(len(req_idx), bool)
    inside[order[rows]] = True
    return inside, moment


def _bridged(parent: Ints, think: Ints, keep: Bools, e2e: Ints | None, at: Ints) -> tuple[Ints, Ints]:
    """Parents that can be replayed: over failed ones, whose time is part of the think time then.

    That is the recorded gap from the answer of the one above them; where its end is unknown, the sum of the think times.
    """
    parent, think = parent.copy(), think.copy()
    over = np.zeros(len(parent), bool)
    while len(gone := np.flatnonzero((parent >= 0) & ~keep[np.maximum(parent, 0)])):
        failed = parent[gone]
        unknown = (think[gone] == UNKNOWN) | (think[failed] == UNKNOWN)
        think[gone] = np.where(unknown, UNKNOWN, think[gone] + think[failed])
        parent[gone] = parent[failed]
        over[gone] = True
    over &= parent >= 0
    if e2e is not None and over.any():
        lasted = e2e[np.maximum(parent, 0)]
        known_end = over & (lasted != UNKNOWN)
        think[known_end] = (at - at[np.maximum(parent, 0)] - lasted)[known_end]
    return parent, think


def _ordered(taken: Bools, parent: Ints, think: Ints, at: Ints, moment: Ints, recorded: Ints, left_out: int) -> Turns:
    parent = np.where((parent >= 0) & taken[np.maximum(parent, 0)], parent, -1)
    root, depth = roots_of(parent)
    rows = np.flatnonzero(taken)
    rows = rows[np.lexsort((at[rows], depth[rows], root[rows], at[root[rows]]))]
    place = np.full(len(parent), -1, np.int64)
    place[rows] = np.arange(len(rows))
    child = parent[rows] >= 0
    known_gap = think[rows] != UNKNOWN
    return Turns(
        rows=rows,
        parent=np.where(child, place[np.maximum(parent[rows], 0)], -1),
        think=np.where(child & known_gap, np.maximum(think[rows], 0), 0),
        arrival=np.where(child & known_gap, -1, at[rows]),
        recorded=recorded[rows],
        root=moment[rows],
        left_out=left_out,
    )


def _replayable(arrivals: pa.Table, extras: pa.Table | None) -> Bools:
    keep: Bools = (ints(arrivals, "input_tokens") > 0) & (ints(arrivals, "output_tokens") > 0)
    status = column_of(extras, "status")
    if status is not None:
        import pyarrow.compute as pc

        good = pc.or_(pc.is_null(status), pc.is_in(status, value_set=_good_statuses()))
        keep &= np.asarray(good.to_numpy(), bool)
    return keep


def _good_statuses() -> pa.Array:
    import pyarrow as pa

    return pa.array(["ok", "unknown"])
