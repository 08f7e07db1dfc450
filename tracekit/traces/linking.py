"""Which request releases which: the turns of a session put in order, parents found, think times computed, oddities counted.

A parent is named by the log (``parent_id``), or is the turn before in the same session; the first turn of a sub-agent follows its
agent's last answer, and the agent goes on after the last answer of its sub-agents.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tracekit.traces.arrow_columns import ints
from tracekit.traces.columns import COLUMNS
from tracekit.traces.nesting import nested_parents
from tracekit.traces.session_tree import break_cycles, roots_of

if TYPE_CHECKING:
    import pyarrow as pa

    from tracekit.traces.stage import Stage

__all__ = ["Links", "link_sessions"]

Ints = npt.NDArray[np.int64]
UNKNOWN = -(1 << 62)
"""Stands for NULL among durations, which may be negative."""
DAY = 86_400_000_000_000
_FETCHED = ("session_id", "parent_id", "request_id", "agent_path", "turn", "obs_e2e", "think_time")


@dataclass(slots=True, kw_only=True)
class Links:
    """One entry per request, in the order of ``req_idx``: ``parent`` (-1: none) and ``think`` (ns after the parent's completion,
    ``UNKNOWN``) int64; ``session`` and ``turn`` where the source did not name them."""

    parent: Ints
    think: Ints
    session: pa.Array | None = None
    turn: Ints | None = None

    @property
    def names(self) -> set[str]:
        """The canonical columns that are found here, not read."""
        found = {"parent", "think_time"}
        return found | ({"session_id"} if self.session is not None else set()) | ({"turn"} if self.turn is not None else set())

    def table(self) -> pa.Table:
        """As stored columns."""
        import pyarrow as pa

        child = self.parent >= 0
        columns: dict[str, Any] = {
            "parent_idx": pa.array(np.maximum(self.parent, 0).astype(np.uint32), mask=~child),
            "think_ns": pa.array(self.think, mask=~child | (self.think == UNKNOWN)),
        }
        if self.session is not None:
            columns["session_id"] = self.session
        if self.turn is not None:
            columns["turn"] = pa.array(self.turn.astype(np.uint32))
        return pa.table(columns)


@dataclass(slots=True)
class _Rows:
    """What is known of the requests that has to do with sessions."""

    table: pa.Table
    arrival: Ints
    tokens: Ints
    e2e: Ints
    said: Ints

    def column(self, name: str) -> pa.ChunkedArray | None:
        return self.table[name] if name in self.table.column_names and self.table[name].null_count < len(self.table) else None


def link_sessions(stage: Stage) -> Links | None:
    """Links between the rows of ``arranged``, ``None`` where the source tells of no sessions or of no time between turns."""
    if not any(COLUMNS[name] in stage.columns for name in ("session_id", "parent_id")):
        return None
    rows = _fetch(stage)
    if rows.column("parent_id") is not None:
        links = _named(stage, rows)
    elif rows.column("session_id") is None:
        return None
    elif (rows.e2e == UNKNOWN).all() and (rows.said == UNKNOWN).all():
        stage.facts.warn("sessions without think times or durations: every turn arrives at its recorded time")
        return None
    else:
        links = _chained(stage, rows)
    _remark(stage, rows, links)
    return links


def _fetch(stage: Stage) -> _Rows:
    there = [COLUMNS[name] for name in _FETCHED if COLUMNS[name] in stage.columns]
    picked = ", ".join(["arrival_ns", "input_tokens", *(f'"{column.stored}" AS "{column.name}"' for column in there)])
    table = stage.con.sql(f"SELECT {picked} FROM arranged ORDER BY req_idx").to_arrow_table()
    unknown = np.full(table.num_rows, UNKNOWN, np.int64)
    e2e, said = (ints(table, name, UNKNOWN) if name in table.column_names else unknown for name in ("obs_e2e", "think_time"))
    return _Rows(table, ints(table, "arrival_ns"), ints(table, "input_tokens"), e2e, said)


def _named(stage: Stage, rows: _Rows) -> Links:
    """Parents as the log names them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = pc.if_else(pc.equal(rows.table["parent_id"], "-1"), pa.scalar(None, pa.string()), rows.table["parent_id"])
    ids = rows.column("request_id")
    if ids is None:
        found = pa.chunked_array([pa.nulls(len(rows.table), pa.int32())])
    else:
        found = pc.index_in(wanted, value_set=ids.combine_chunks(), skip_nulls=True)
    parent = np.array(pc.fill_null(found.cast(pa.int64()), -1).to_numpy(), np.int64)
    lost = int(pc.count(wanted).as_py()) - int(np.count_nonzero(parent >= 0))
    if lost:
        stage.facts.warn(f"{lost} requests name a parent that is not in the trace (a cut window): they start sessions")
    cut = break_cycles(parent)
    if cut:
        stage.facts.warn(f"{cut} circles of parents: each was cut at its first request")
    session = turn = None
    root, depth = roots_of(parent)
    if rows.column("session_id") is None and ids is not None:
        session = ids.combine_chunks().take(pa.array(root))
    if rows.column("turn") is None:
        turn = depth
    return Links(parent=parent, think=_think(rows, parent, rows.said), session=session, turn=turn)


def _think(rows: _Rows, parent: Ints, said: Ints) -> Ints:
    """As said, else the gap from the parent's recorded completion to the arrival."""
    above = np.maximum(parent, 0)
    e2e = rows.e2e[above]
    gap = np.where(e2e == UNKNOWN, UNKNOWN, rows.arrival - rows.arrival[above] - np.where(e2e == UNKNOWN, 0, e2e))
    return np.where(parent < 0, UNKNOWN, np.where(said == UNKNOWN, gap, said))


def _chained(stage: Stage, rows: _Rows) -> Links:
    """Each turn after the one before it in its session."""
    import pyarrow.compute as pc

    coded = rows.table["session_id"].combine_chunks().dictionary_encode()
    session = np.asarray(pc.fill_null(coded.indices, -1).to_numpy(zero_copy_only=False), np.int64)
    turn = ints(rows.table, "turn") if rows.column("turn") is not None else np.zeros(len(session), np.int64)
    member = session >= 0
    if (turn[member] < 0).any():
        turn = np.zeros(len(session), np.int64)
    order = np.lexsort((rows.arrival, turn, session))
    order = order[member[order]]
    parent = np.full(len(session), -1, np.int64)
    follows = session[order[1:]] == session[order[:-1]]
    parent[order[1:][follows]] = order[:-1][follows]
    said = rows.said
    paths = rows.column("agent_path")
    if paths is not None and len(paths.unique()) > 1:
        parent, own = nested_parents(session, paths.to_pylist(), rows.arrival, np.where(rows.e2e == UNKNOWN, 0, rows.e2e))
        # what the log calls think time counts from the answer before it in the same conversation
        said = np.where(parent == own, said, UNKNOWN)
    place = None
    if rows.column("turn") is None:
        begins = np.flatnonzero(np.append(True, ~follows))[: len(order)]
        place = np.zeros(len(session), np.int64)
        place[order] = np.arange(len(order)) - np.repeat(begins, np.diff(np.append(begins, len(order))))
    else:
        _check_turns(stage, session[order], turn[order])
    return Links(parent=parent, think=_think(rows, parent, said), turn=place)


def _check_turns(stage: Stage, session: Ints, turn: Ints) -> None:
    same = session[1:] == session[:-1]
    step = turn[1:] - turn[:-1]
    for count, words in ((int(np.count_nonzero(same & (step == 0))), "turns have the number of the one before them"),
                         (int(np.count_nonzero(same & (step > 1))), "gaps in the numbers of turns")):  # fmt: skip
        if count:
            stage.facts.warn(f"sessions: {count} {words}")


def _remark(stage: Stage, rows: _Rows, links: Links) -> None:
    """What is odd in the sessions: counted, kept."""
    child = np.flatnonzero(links.parent >= 0)
    above, think = links.parent[child], links.think[child]
    known = think != UNKNOWN
    for odd, words in (
        (~known, "turns after an answer whose end is unknown: released at their recorded time, not before that answer"),
        (rows.arrival[child] < rows.arrival[above], "turns arrive before the one that they follow"),
        (known & (think < 0), "turns arrive before the answer to the one before them was complete: their think time is negative"
                              " here, and 0 in a replay"),
        (known & (think > DAY), "think times are longer than a day"),
        (rows.tokens[child] < rows.tokens[above], "prompts are shorter than the one before them (context was cut)"),
    ):  # fmt: skip
        count = int(np.count_nonzero(odd))
        if count:
            stage.facts.warn(f"sessions: {count} {words}")
