"""What looks wrong in a trace as a whole, said with the lines where it can be seen: clocks, holes, units, repeats, block ids.

Nothing is changed by it. All of it is a few passes over columns, whatever the number of rows.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tracekit.traces.columns import COLUMNS
from tracekit.traces.repeats import exact_repeats

if TYPE_CHECKING:
    from tracekit.traces.prefix_runs import Runs
    from tracekit.traces.stage import Stage

__all__ = ["odd_blocks", "odd_clock", "odd_latencies", "odd_times", "place"]

SECOND = 1_000_000_000
HOUR = 3600 * SECOND
DST = (3300 * SECOND, HOUR)
"""Clocks go back an hour in autumn: seen in a log, an hour less the gap between two requests."""

YEAR_2000 = 946_684_800 * SECOND
GAPS_SAMPLED = 100_000
STRETCH = 64
HOLE = 10
"""A gap this many times the 99th percentile of gaps is a hole."""

SLOW = 600 * SECOND


def place(stage: Stage, file: int, line: int) -> str:
    """A row as messages call it: its line, and its file where there are several."""
    return f"line {line}" if len(stage.names) < 2 else f"{stage.names.get(file, '')} line {line}"


def odd_clock(stage: Stage) -> None:
    """Where the order of reading goes back in time: between files, and within one. Call before rows are sorted."""
    above = ", ".join(f"lag({column}) OVER () AS {name}" for column, name in (("file", "f"), ("line", "l"), ("arrival_ns", "t")))
    rows = f"SELECT file, line, arrival_ns, {above} FROM stage"
    worst = "SELECT {} FROM (" + rows + ") WHERE arrival_ns < t AND file {} f ORDER BY t - arrival_ns DESC, line LIMIT 1"
    between = stage.con.execute(worst.format("file, f, t - arrival_ns", "<>")).fetchall()
    for file, before, back in between:
        stage.facts.warn(f"{stage.names.get(file)} begins {back / SECOND:,.0f} s before {stage.names.get(before)} ends:"
                         " files overlap or stand in another order; sorted by arrival")  # fmt: skip
    for file, line, before, back in stage.con.execute(worst.format("file, line, l, t - arrival_ns", "=")).fetchall():
        where = f"from {place(stage, file, before)} to line {line}"
        if back > HOUR:
            stage.facts.warn(f"time jumps back by {back / SECOND:,.0f} s {where}: a clock change?")
        elif stage.facts.zone_assumed and DST[0] <= back <= DST[1]:
            stage.facts.warn(f"time jumps back by {back / SECOND:,.0f} s {where}, as local clocks do in autumn: dates without an"
                             " offset are ambiguous there")  # fmt: skip


def odd_times(stage: Stage, t0: int, span: int) -> None:
    """Dates that cannot be, holes, and rows that repeat another. Call after rows are sorted."""
    if stage.facts.absolute and t0 < YEAR_2000:
        stage.facts.warn("the first request is dated before the year 2000: a missing time written as 1970?")
    if stage.facts.absolute and t0 + span > time.time_ns() + 24 * HOUR:
        stage.facts.warn("the last request is dated in the future: is the unit of time right?")
    gaps = "SELECT file, line, lag(line) OVER () AS l, arrival_ns - lag(arrival_ns) OVER () AS gap FROM arranged"
    longest, ties = stage.one("SELECT max(gap), count(*) FILTER (gap = 0) FROM"
                              " (SELECT arrival_ns - lag(arrival_ns) OVER () AS gap FROM arranged)")  # fmt: skip
    exact_repeats(stage, 2 * int(ties or 0))
    least = max(HOLE * _gap_p99(stage), SECOND)
    if stage.kept < 100 or longest <= least:
        return
    holes = stage.con.execute(f"SELECT file, line, l FROM ({gaps}) WHERE gap > {least} ORDER BY gap DESC").fetchall()
    file, line, before = holes[0]
    more = f"; {len(holes)} holes of more than {least / SECOND:,.1f} s in all" if len(holes) > 1 else ""
    where = f"from line {before} to {place(stage, file, line)}"
    stage.facts.warn(f"the trace has a hole of {longest / SECOND:,.1f} s ({where}){more}")


def _gap_p99(stage: Stage) -> int:
    """The 99th percentile of the gaps between arrivals, of long traces from stretches all over them; ties left out."""
    every = max(stage.kept // GAPS_SAMPLED, 1)
    picked = f"SELECT req_idx, arrival_ns FROM arranged WHERE (req_idx // {STRETCH}) % {every} = 0 ORDER BY req_idx"
    table = stage.con.sql(picked).to_arrow_table()
    row, arrival = (np.asarray(table[name].to_numpy(), np.int64) for name in ("req_idx", "arrival_ns"))
    gaps = np.diff(arrival)[(np.diff(row) == 1) & (np.diff(arrival) > 0)]
    return int(np.quantile(gaps, 0.99, method="inverted_cdf")) if len(gaps) else 0


def odd_latencies(stage: Stage) -> None:
    """Latencies that contradict each other or their unit, answers longer than their limit."""
    have = {column.name for column in stage.columns}
    tests = {
        ("obs_ttft", "obs_e2e"): ("obs_ttft_ns > obs_e2e_ns", "a first token after the end"),
        ("obs_queue", "obs_e2e"): ("obs_queue_ns > obs_e2e_ns", "a queue time longer than the whole request"),
        ("obs_tpot", "obs_e2e"): (
            "obs_tpot_ns::DOUBLE * (output_tokens::DOUBLE - 1) > 1.5 * obs_e2e_ns",
            "a time per token that does not fit the whole",
        ),
        ("max_tokens",): ("output_tokens > max_tokens", "an answer longer than its limit"),
    }  # fmt: skip
    for needed, (test, words) in tests.items():
        if have.issuperset(needed):
            count = int(stage.one(f"SELECT count(*) FROM stage WHERE {test}")[0])
            if count:
                stage.facts.warn(f"{count} rows have {words}: are units and clocks the same?" if needed != ("max_tokens",)
                                 else f"{count} rows have {words}")  # fmt: skip
    for name in ("obs_ttft", "obs_e2e"):
        if name in have and stage.facts.arrival_kind is None:
            median = stage.one(f"SELECT median({COLUMNS[name].stored}) FROM stage")[0]
            if median is not None and median > SLOW:
                stage.facts.warn(f"{name} is {median / SECOND:,.0f} s at the median: milliseconds under a name of seconds?")


def odd_blocks(stage: Stage, runs: Runs, tokens: npt.NDArray[np.int64], size: int) -> None:
    """Block ids that are not what prefix caches need: not chained, twice in a prompt, or far too few for the prompts."""
    held = np.zeros(len(tokens), np.int64)
    np.add.at(held, runs.req_idx, runs.length)
    known = held > 0
    full = tokens[known] // size
    if known.any() and int(full.sum()) > 4 * int(held[known].sum()):
        stage.facts.warn(f"prompts have {full.sum() / held[known].sum():.0f} times the tokens of their blocks: is the block size"
                         f" of {size} tokens right?")  # fmt: skip
    loose = _unchained(runs)
    if loose:
        stage.facts.warn(f"{loose} block ids follow different blocks in different requests: ids are not chained, so an equal id"
                         " does not mean an equal prefix")  # fmt: skip
    twice = _repeated(runs)
    if twice:
        stage.facts.warn(f"{twice} requests hold a block id more than once")


def _unchained(runs: Runs) -> int:
    """Ids at which a run begins, but which come after another block elsewhere."""
    if not len(runs.first):
        return 0
    previous = np.concatenate([[-1], runs.first[:-1] + runs.length[:-1] - 1])
    previous[runs.pos == 0] = -1
    order = np.argsort(runs.first)
    first, previous, reach = runs.first[order], previous[order], np.maximum.accumulate((runs.first + runs.length)[order])
    fresh = previous != first - 1
    first_fresh, previous = first[fresh], previous[fresh]
    same = first_fresh[1:] == first_fresh[:-1]
    clash = np.unique(first_fresh[1:][same & (previous[1:] != previous[:-1])])
    # a run that begins before this id and goes beyond it has it inside, after its neighbour
    begins = first_fresh[np.concatenate([[True], ~same])] if len(first_fresh) else first_fresh
    below = np.searchsorted(first, begins, "left") - 1
    inside = begins[(below >= 0) & (reach[np.maximum(below, 0)] > begins)]
    return len(np.union1d(clash, inside))


def _repeated(runs: Runs) -> int:
    """Requests with two runs that overlap."""
    owner, first, end = runs.req_idx, runs.first, runs.first + runs.length
    falls = (owner[1:] == owner[:-1]) & (first[1:] < end[:-1])
    some = np.isin(owner, owner[1:][falls])  # the runs of all others rise, so that none meets another
    owner, first, end = owner[some], first[some], end[some]
    order = np.lexsort((first, owner))
    owner, first, end = owner[order], first[order], end[order]
    overlap = (owner[1:] == owner[:-1]) & (first[1:] < end[:-1])
    return len(np.unique(owner[1:][overlap]))
