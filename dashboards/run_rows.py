"""The list of runs as the start page shows it: what each replayed, how it ended, and its tail, from the ``runs`` table alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dashboards.queries import RunBook
from dashboards.run_words import ago
from dashboards.spoken import spoken
from tracekit.errors import LockedError
from tracekit.store import SpoolInfo

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

__all__ = ["MOST_RUNS", "RunRow", "RunTable", "read_runs"]

MOST_RUNS = 200
_MATRIX = {
    "attainment": "$.slo.attainment.share",
    "goodput": "$.slo.goodput_requests_per_s",
    "ttft_p50": "$.latency.ttft_ns.p50",
    "ttft_p99": "$.latency.ttft_ns.p99",
    "tpot_p99": "$.latency.tpot_ns.p99",
    "gap_max": "$.latency.longest_gap_ns.max",
    "preemptions": "$.preemption.preemptions",
}


class RunRow(NamedTuple):
    """One run. Times in seconds, shares of 1, goodput in requests/s; ``None`` where the run has no such number. ``ref`` is what
    an address calls it; ``live``: it is under way."""

    ref: str
    name: str | None
    trace: str | None
    state: str
    live: bool
    began: str
    engine: str | None
    profile: str | None
    requests: int | None
    attainment: float | None = None
    goodput: float | None = None
    ttft_p50_s: float | None = None
    ttft_p99_s: float | None = None
    tpot_p99_s: float | None = None
    gap_max_s: float | None = None
    preemptions: int | None = None


class RunTable(NamedTuple):
    """The latest runs, what is under way first; how many more there are; and why the list may be old."""

    rows: tuple[RunRow, ...]
    more: int
    note: str | None


def read_runs(book: RunBook) -> RunTable:
    """At most ``MOST_RUNS`` recorded runs, latest first, after those under way. ``note``: a writer is at work."""
    listed = book.catalogue()
    under_way = [_spooled(info) for info in book.spools()]
    if not book.store.exists():
        return RunTable(tuple(under_way), 0, listed.note)
    try:
        with book.store.read() as con:
            rows, total = _recorded(con)
    except LockedError as error:
        return RunTable(tuple(under_way), 0, spoken(error))
    return RunTable((*under_way, *rows), max(0, total - len(rows)), listed.note)


def _recorded(con: DuckDBPyConnection) -> tuple[list[RunRow], int]:
    picks = ", ".join(f"TRY_CAST(json_extract(matrix, '{path}') AS DOUBLE) AS {name}" for name, path in _MATRIX.items())
    found = con.execute(
        f"SELECT run, name, trace_name, state, started_at, engine, profile, requests, {picks} FROM runs"
        f" ORDER BY run DESC LIMIT {MOST_RUNS}"
    ).fetchall()
    (total,) = con.execute("SELECT count(*) FROM runs").fetchall()[0]
    return [_row(*row) for row in found], int(total)


def _row(
    run: int,
    name: str | None,
    trace: str | None,
    state: str,
    began: Any,
    engine: str | None,
    profile: str | None,
    requests: int | None,
    attainment: float | None,
    goodput: float | None,
    *rest: float | None,
) -> RunRow:
    ttft50, ttft99, tpot99, gap, preemptions = rest
    return RunRow(
        ref=str(run),
        name=name,
        trace=trace,
        state=state.replace("_", " "),
        live=False,
        began=ago(began),
        engine=engine,
        profile=profile,
        requests=requests,
        attainment=attainment,
        goodput=goodput,
        ttft_p50_s=_s(ttft50),
        ttft_p99_s=_s(ttft99),
        tpot_p99_s=_s(tpot99),
        gap_max_s=_s(gap),
        preemptions=None if preemptions is None else int(preemptions),
    )


def _s(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e9


def _spooled(info: SpoolInfo) -> RunRow:
    about = info.run
    return RunRow(
        ref=info.folder.name,
        name=about.get("name"),
        trace=about.get("trace_name"),
        state="running" if info.alive else "not committed",
        live=info.alive,
        began=ago(about.get("started_at")),
        engine=about.get("engine"),
        profile=about.get("profile"),
        requests=about.get("requests"),
    )
