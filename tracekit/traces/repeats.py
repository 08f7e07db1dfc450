"""Rows that say the same twice: request ids used again (retries), and rows equal in all that was read. Kept unless asked."""

from __future__ import annotations

import numpy as np

from tracekit.errors import shown
from tracekit.traces.stage import EXAMPLES, Reject, Stage

__all__ = ["exact_repeats", "look_for_repeats"]

SEARCHED = 2_000_000
"""Rows at shared instants beyond which equal rows are not looked for: their number would say nothing about copies."""

DUPLICATE = "duplicate request id"


def look_for_repeats(stage: Stage, *, dedupe: bool) -> None:
    """Report request ids that occur more than once; with ``dedupe`` only the first row of each is kept."""
    if not any(column.name == "request_id" for column in stage.columns):
        return
    ids, more = stage.one(
        "SELECT count(*), coalesce(sum(n - 1), 0)::BIGINT FROM"
        " (SELECT count(*) AS n FROM stage WHERE request_id IS NOT NULL GROUP BY request_id HAVING count(*) > 1)"
    )
    if not ids:
        return
    nth = "row_number() OVER (PARTITION BY request_id ORDER BY rowid) AS nth"
    numbered = f"SELECT rowid AS r, file, line, request_id, {nth} FROM stage"
    if not dedupe:
        first = stage.one(f"SELECT file, line, request_id FROM ({numbered}) WHERE nth = 2 ORDER BY r LIMIT 1")
        stage.facts.warn(f"{ids} request ids occur more than once ({more} rows more, the first in {_place(stage, *first[:2])});"
                         " all rows are kept (--dedupe keeps the first of each id)")  # fmt: skip
        return
    gone = stage.con.execute(f"SELECT file, line, request_id FROM ({numbered}) WHERE nth > 1 AND request_id IS NOT NULL"
                             f" ORDER BY r LIMIT {EXAMPLES}").fetchall()  # fmt: skip
    kept = stage.con.sql(f"SELECT r FROM ({numbered}) WHERE nth = 1 OR request_id IS NULL ORDER BY r").to_arrow_table()
    room = max(EXAMPLES - len(stage.rejects), 0)
    stage.rejects += [Reject(stage.names.get(file, ""), line, "request_id", shown(value), DUPLICATE)
                      for file, line, value in gone[:room]]  # fmt: skip
    stage.keep_only(np.asarray(kept["r"].to_numpy(), np.int64), DUPLICATE)


def exact_repeats(stage: Stage, ties: int) -> None:
    """Report rows equal in every column that was read, block ids left aside; ``ties`` rows share their arrival with another."""
    names = ", ".join(f'"{column.stored}"' for column in stage.columns)
    if not 0 < ties <= SEARCHED or not names:
        return
    groups = (
        f"SELECT count(*) AS n, min(req_idx) AS first, max(req_idx) AS second FROM arranged GROUP BY {names} HAVING count(*) > 1"
    )
    found = stage.one(f"SELECT count(*), coalesce(sum(n - 1), 0)::BIGINT, min(first), arg_min(second, first) FROM ({groups})")
    if not found[0]:
        return
    places = stage.con.execute(
        "SELECT file, line FROM arranged WHERE req_idx IN (?, ?) ORDER BY req_idx", [found[2], found[3]]
    ).fetchall()
    where = " and ".join(_place(stage, *place) for place in places)
    stage.facts.warn(f"{found[1]} rows equal another in all that is read (first {where}); kept: requests can be alike")


def _place(stage: Stage, file: int, line: int) -> str:
    name = stage.names.get(file, "")
    return f"line {line}" if len(stage.names) < 2 else f"{name} line {line}"
