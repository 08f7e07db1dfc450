"""What the loaded trace is, and what became of its rows: from the trace's own tables, cached since a trace never changes."""

from __future__ import annotations

from typing import Any, NamedTuple

from dashboards.queries import RunBook
from tracekit.describe import describe_trace
from tracekit.errors import UsageError
from tracekit.store import load_run
from tracekit.traces.load import LoadReport, report_of

__all__ = ["Arrivals", "Traffic", "describe_run_trace", "load_report"]

BINS = 400


class Arrivals(NamedTuple):
    """Requests, prompt and output tokens per second over bins of ``width_s``, from ``begin_s``."""

    begin_s: float
    width_s: float
    requests: tuple[float, ...]
    prompt: tuple[float, ...]
    output: tuple[float, ...]


class Traffic(NamedTuple):
    """``document``: what ``tracekit describe`` says; ``arrivals`` over time; lengths as (up to tokens, prompts, outputs)."""

    document: dict[str, Any]
    arrivals: Arrivals
    lengths: tuple[tuple[int, int, int], ...]


def describe_run_trace(book: RunBook, ref: str) -> Traffic:
    """Of the trace that a recorded run replayed. Errors: ``UsageError``, ``LockedError``."""
    trace = _trace(book, ref)

    def read() -> Traffic:
        with book.store.read() as con:
            document = describe_trace(con, trace)
            span = max(int(document["trace"]["span_ns"]), 1)
            width = span / BINS + 1
            rows = con.execute(
                "SELECT floor(arrival_ns / $w)::INTEGER AS bin, count(*), sum(input_tokens), sum(output_tokens) FROM arrivals"
                " WHERE trace = $t GROUP BY bin ORDER BY bin",
                {"w": width, "t": trace},
            ).fetchall()
            lengths = con.execute(
                "SELECT n, sum(p)::BIGINT, sum(o)::BIGINT FROM ("
                " SELECT ceil(log2(greatest(input_tokens, 1)) * 2)::INTEGER AS n, 1 AS p, 0 AS o FROM arrivals WHERE trace = $t"
                " UNION ALL SELECT ceil(log2(greatest(output_tokens, 1)) * 2)::INTEGER, 0, 1 FROM arrivals WHERE trace = $t)"
                " GROUP BY n ORDER BY n",
                {"t": trace},
            ).fetchall()
        return Traffic(
            document, _arrivals(rows, width / 1e9), tuple((round(2 ** (n / 2)), int(p), int(o)) for n, p, o in lengths)
        )

    return book.remember(f"traffic {trace}", read)


def _arrivals(rows: list[tuple[Any, ...]], width_s: float) -> Arrivals:
    last = rows[-1][0] if rows else 0
    columns = [[0.0] * (last + 1) for _ in range(3)]
    for at, *values in rows:
        for column, value in zip(columns, values, strict=True):
            column[at] = float(value or 0) / width_s
    return Arrivals(0.0, width_s, *(tuple(column) for column in columns))


def load_report(book: RunBook, ref: str) -> LoadReport:
    """How the trace of a recorded run was read, and every row that was not. Errors: ``UsageError``, ``LockedError``."""
    trace = _trace(book, ref)

    def read() -> LoadReport:
        with book.store.read() as con:
            return report_of(con, trace)

    return book.remember(f"report {trace}", read)


def _trace(book: RunBook, ref: str) -> int:
    row = book.recorded(ref)
    if row is None:
        raise UsageError("this run is under way: its trace is described when it has been committed")
    return int(load_run(book.store, row["run"])["trace"])
