"""Up to twelve runs side by side: what decides between policies, a row a figure, a column a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dashboards.queries import RunBook
from dashboards.spoken import spoken
from tracekit.comparison.pairing import why_not_comparable
from tracekit.errors import TracekitError, shown
from tracekit.sidebyside import render_rows, run_labels, side_by_side
from tracekit.store import load_run

__all__ = ["MOST_RUNS", "ManyRuns", "Measured", "many_runs"]

MOST_RUNS = 12


class Measured(NamedTuple):
    """One figure of every run as text. ``shares``: of the largest, 0 to 1 (``None``: no number); ``best``: the columns that
    nobody betters, none where all are the same or neither direction is better."""

    label: str
    texts: tuple[str, ...]
    shares: tuple[float | None, ...]
    best: tuple[int, ...]


class ManyRuns(NamedTuple):
    """``heads``: number and name of the runs; ``rows``: their figures; ``left_out``: runs that cannot stand beside the first,
    each with the reason."""

    runs: tuple[int, ...]
    heads: tuple[str, ...]
    rows: tuple[Measured, ...]
    left_out: tuple[str, ...]


def many_runs(book: RunBook, refs: Sequence[str]) -> ManyRuns:
    """Of the first run that ``refs`` name and of those that replayed the same requests, each once. Errors: ``UsageError`` where
    the first is none, ``LockedError``."""
    numbers, left_out = list[int](), list[str]()
    for ref in refs:
        try:
            row = book.recorded(ref)
        except TracekitError as error:
            if not numbers:
                raise
            left_out.append(spoken(error))
            continue
        if row is None:
            left_out.append(f"{ref}: it is under way")
        elif int(row["run"]) not in numbers:
            why = why_not_comparable(book.store, numbers[0], int(row["run"])) if numbers else None
            if why is None:
                numbers.append(int(row["run"]))
            else:
                left_out.append(f"run {row['run']}: {shown(why, 160)}")
    rows = [load_run(book.store, number) for number in numbers[:MOST_RUNS]]
    with_matrix = [row for row in rows if row["matrix"] is not None]
    found = [row for row in side_by_side([row["matrix"] for row in with_matrix]) if any(row.values)]  # nothing everywhere
    measured = tuple(_measured(row.better, row.values, cells)
                     for row, cells in zip(found, render_rows(found), strict=True))  # fmt: skip
    return ManyRuns(tuple(row["run"] for row in with_matrix), tuple(run_labels(with_matrix)), measured, tuple(left_out))


def _measured(better: str, values: Sequence[Any], cells: Sequence[str]) -> Measured:
    numbers = [float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None for value in values]
    known = [value for value in numbers if value is not None]
    largest = max((abs(value) for value in known), default=0.0)
    shares = tuple(None if value is None else abs(value) / largest if largest else 0.0 for value in numbers)
    best: tuple[int, ...] = ()
    if better and len({text for text, value in zip(cells[1:], numbers, strict=True) if value is not None}) > 1:
        wanted = cells[1 + numbers.index(min(known) if better == "low" else max(known))]
        best = tuple(at for at, text in enumerate(cells[1:]) if text == wanted)  # what reads the same is the same
    return Measured(cells[0], tuple(cells[1:]), shares, best)
