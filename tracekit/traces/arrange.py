"""From staged rows to a trace: time from the first arrival, stable order by (arrival, file, line), what looks odd in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tracekit.traces.arrival_process import place_arrivals
from tracekit.traces.columns import EXTRA, Column
from tracekit.traces.linking import Links, link_sessions
from tracekit.traces.oddities import odd_blocks, odd_clock, odd_latencies, odd_times
from tracekit.traces.prefix_runs import Runs, arrange_runs
from tracekit.traces.remarks import STATUS, observed, remark, unmodelled
from tracekit.traces.repeats import look_for_repeats
from tracekit.traces.stage import Stage
from tracekit.traces.ticks import coarse_tick
from tracekit.traces.tolerance import Tolerance, check_dropped

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Arranged", "arrange"]

DEFAULT = Tolerance()
SECOND = 1_000_000_000
TICK_INSTANTS = 100_000


@dataclass(slots=True, kw_only=True)
class Arranged:
    """A finished trace inside the stage's database; ``arrivals()`` streams its rows in order."""

    stage: Stage
    rows: int
    t0_ns: int
    span_ns: int
    resolution_ns: int
    runs: Runs | None
    links: Links | None = None

    def arrivals(self, trace: int) -> pa.RecordBatchReader:
        """Rows of ``arrivals`` for trace number ``trace``, in the order of ``req_idx``."""
        own = (
            f"SELECT {trace}::UINTEGER AS trace, req_idx::UINTEGER AS req_idx, file AS source_file, line AS source_line,"
            f" arrival_ns - {self.t0_ns} AS arrival_ns, input_tokens, output_tokens"
        )
        if self.runs is None:
            return self.stage.con.sql(f"{own} FROM arranged").to_arrow_reader()
        import pyarrow as pa

        shared = pa.table({"shared_blocks": self.runs.shared.astype(np.uint32)})
        self.stage.con.register("shared", shared)
        return self.stage.con.sql(f"{own}, shared_blocks FROM arranged POSITIONAL JOIN shared").to_arrow_reader()

    def extras(self, trace: int) -> pa.RecordBatchReader | None:
        """Rows of ``request_extras``, or ``None`` when the source has none of its columns."""
        linked = self.links.names if self.links is not None else set()
        columns = [column for column in EXTRA if column in self.stage.columns or column.name in linked]
        if not columns:
            return None
        relation = "arranged"
        if self.links is not None:
            table = self.links.table()
            self.stage.con.register("links", table)
            read = ["req_idx", *(column.stored for column in self.stage.columns if column.stored not in table.column_names)]
            own = ", ".join(f'"{name}"' for name in read)
            relation = f"(SELECT {own} FROM arranged) POSITIONAL JOIN links"
        picked = ", ".join(self._extra(column) for column in columns)
        known = " OR ".join(f'"{column.stored}" IS NOT NULL' for column in columns)
        query = f"SELECT {trace}::UINTEGER AS trace, req_idx::UINTEGER AS req_idx, {picked} FROM {relation} WHERE {known}"
        return self.stage.con.sql(f"{query} ORDER BY req_idx").to_arrow_reader()

    def _extra(self, column: Column) -> str:
        if column.name == "status":
            return f"{STATUS} AS status"
        if column.name == "unmodelled":
            return f"{unmodelled(self.stage)} AS unmodelled"
        if column.kind == "duration" and column.name.startswith("obs_"):
            return f'{observed(self.stage, column)} AS "{column.stored}"'
        shift = f" - {self.t0_ns}" if column.kind == "time" else ""
        return f'"{column.stored}"{shift} AS "{column.stored}"'


def arrange(stage: Stage, name: str, tolerance: Tolerance = DEFAULT, arrival: str | None = None) -> Arranged:
    """Sort, shift to the first arrival, number the rows. Errors: ``InputError`` without rows or with too many dropped."""
    stage.flush()
    check_dropped(stage, name, tolerance)
    place_arrivals(stage, arrival, name)
    look_for_repeats(stage, dedupe=tolerance.dedupe)
    if unmodelled(stage) is not None:
        stage.open(["unmodelled"])
    remark(stage)
    row = stage.one("SELECT min(arrival_ns), max(arrival_ns) FROM stage")
    t0, span = int(row[0]), int(row[1] - row[0])
    order = _order(stage)
    resolution = _resolution(stage, t0)
    runs = stage.runs()
    arranged_runs = None if runs is None else arrange_runs(runs, order, stage.kept)
    _look(stage, t0, span, arranged_runs)
    return Arranged(stage=stage, rows=stage.kept, t0_ns=t0, span_ns=span, resolution_ns=resolution, runs=arranged_runs,
                    links=link_sessions(stage))  # fmt: skip


def _look(stage: Stage, t0: int, span: int, runs: Runs | None) -> None:
    """What looks odd, as warnings."""
    odd_latencies(stage)
    if stage.facts.arrival_kind is None:
        odd_times(stage, t0, span)
    if runs is not None and stage.facts.block_tokens:
        tokens = stage.con.sql("SELECT input_tokens FROM arranged ORDER BY req_idx").to_arrow_table()["input_tokens"]
        odd_blocks(stage, runs, np.asarray(tokens.to_numpy(), np.int64), stage.facts.block_tokens)


def _order(stage: Stage) -> npt.NDArray[np.int64] | None:
    """Make ``arranged``. Returns the staged row of each request, ``None`` when the order is the one that was read."""
    (inversions,) = stage.one(
        "SELECT count(*) FILTER (arrival_ns < before)"
        " FROM (SELECT arrival_ns, lag(arrival_ns) OVER () AS before FROM stage)",
    )
    if not inversions:
        stage.con.execute("CREATE VIEW arranged AS SELECT rowid AS req_idx, * FROM stage")
        return None
    if stage.facts.arrival_kind != "session_relative":
        stage.facts.warn(f"{inversions} rows arrive before the row above them; sorted by arrival")
        odd_clock(stage)
    stage.con.execute(
        "CREATE TABLE arranged AS SELECT row_number() OVER (ORDER BY arrival_ns, r) - 1 AS req_idx, * FROM"
        " (SELECT rowid AS r, * FROM stage) ORDER BY req_idx"
    )
    rows = stage.con.sql("SELECT r FROM arranged ORDER BY req_idx").to_arrow_table()
    return np.asarray(rows["r"].to_numpy(), np.int64)


def _resolution(stage: Stage, t0: int) -> int:
    """The largest power of ten that divides every arrival; warns of ticks that put many requests on one instant."""
    steps = [10**k for k in range(9, 0, -1)]
    tests = ", ".join(f"bool_and((arrival_ns - {t0}) % {step} = 0)" for step in steps)
    # the first rows rule most steps out; of those that are left, the largest that holds for every row counts
    quick = stage.one(f"SELECT {tests} FROM (SELECT arrival_ns FROM stage LIMIT 2048)")
    left = [step for step, holds in zip(steps, quick, strict=True) if holds]
    every = "SELECT count(*) = 0 FROM stage WHERE (arrival_ns - {}) % {} <> 0"
    resolution = next((step for step in left if stage.one(every.format(t0, step))[0]), 1)
    if stage.facts.arrival_kind == "session_relative":
        return resolution
    groups, largest = _ticks(stage)
    if largest > 1 and stage.kept > 2 * groups:
        stage.facts.warn(f"arrivals come in groups at one instant (up to {largest}, {groups} instants for {stage.kept} requests)")
        rows = stage.con.execute(f"SELECT DISTINCT arrival_ns FROM arranged ORDER BY 1 LIMIT {TICK_INSTANTS}").fetchnumpy()
        resolution = coarse_tick(np.asarray(rows["arrival_ns"], np.int64), resolution)
    if resolution >= SECOND and stage.kept > 1:
        stage.facts.warn(f"times are whole ticks of {resolution / SECOND:g} s: bursts and gaps within a tick are artefacts"
                         " (--spread-ticks spreads them)")  # fmt: skip
    return resolution


def _ticks(stage: Stage) -> tuple[int, int]:
    equal = stage.one("SELECT count(*) FILTER (arrival_ns = before) FROM"
                        " (SELECT arrival_ns, lag(arrival_ns) OVER () AS before FROM arranged)")[0]  # fmt: skip
    if equal * 2 <= stage.kept:
        return stage.kept, 1
    row = stage.one("SELECT count(*), max(n) FROM (SELECT count(*) AS n FROM arranged GROUP BY arrival_ns)")
    return int(row[0]), int(row[1])
