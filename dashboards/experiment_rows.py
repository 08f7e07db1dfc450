"""Recorded experiments as the page shows them: one factor, every measure with its interval, and where each conclusion holds."""

from __future__ import annotations

from typing import Any, NamedTuple

from dashboards.queries import RunBook
from dashboards.run_words import ago
from tracekit.errors import UsageError
from tracekit.experiments.conclusion import interval_text
from tracekit.experiments.intervals import Interval
from tracekit.experiments.measures import MEASURES
from tracekit.experiments.run import recorded_experiment
from tracekit.store import list_experiments

__all__ = [
    "ExperimentRow",
    "Held",
    "Move",
    "Series",
    "holds_of",
    "moves_of",
    "read_experiment",
    "read_experiments",
    "series_of",
]


class ExperimentRow(NamedTuple):
    """One experiment in the list."""

    number: int
    name: str | None
    factor: str
    levels: tuple[str, ...]
    traces: tuple[str, ...]
    began: str


class Move(NamedTuple):
    """One measure of one level against the baseline, in one trace. ``change``: in words with its interval; ``ratio``: whether
    ``estimate``, ``low`` and ``high`` are shares of the baseline (else differences)."""

    level: int
    trace: int
    measure: str
    label: str
    base: str
    value: str
    change: str
    verdict: str
    n: int
    ratio: bool
    estimate: float | None
    low: float | None
    high: float | None


class Held(NamedTuple):
    """In which traces a measure's change has which verdict. ``holds``: all, some, none, unknown."""

    level: int
    measure: str
    label: str
    holds: str
    where: tuple[tuple[str, tuple[str, ...]], ...]


class Series(NamedTuple):
    """The measure that decides in every window of a trace, a line a level (``None``: it has no value there)."""

    trace: str
    label: str
    windows: int
    levels: tuple[tuple[str, tuple[float | None, ...]], ...]


def read_experiments(book: RunBook) -> tuple[ExperimentRow, ...]:
    """Latest first; empty where there is none. Errors: ``LockedError``."""
    if not book.store.exists():
        return ()
    rows = list_experiments(book.store)
    return tuple(
        ExperimentRow(
            row["experiment"], row["name"], row["factor"], tuple(row["levels"]), tuple(row["traces"]), ago(row["started_at"])
        )
        for row in reversed(rows)
    )


def read_experiment(book: RunBook, number: int | None) -> dict[str, Any]:
    """The document (``tracekit.experiment/1``) of one, of the latest for ``None``. Errors: ``UsageError``, ``LockedError``."""
    if number is None:
        rows = read_experiments(book)
        if not rows:
            raise UsageError(
                f"{book.store.path} has no experiment yet; tracekit experiment TRACE --vary max_num_seqs=256,64 makes one"
            )
        number = rows[0].number
    key = f"experiment {number} of {book.store.path.stat().st_ino}"  # another database may take this one's place
    found: dict[str, Any] = book.remember(key, lambda: recorded_experiment(book.store, number).document)
    return found


def moves_of(document: dict[str, Any]) -> tuple[Move, ...]:
    """All changes, in the document's order."""
    found = []
    for row in document["changes"]:
        measure, interval = MEASURES[row["measure"]], Interval(**row["interval"])
        base, value = measure.text(interval.base), measure.text(interval.level)
        change = interval_text(interval, row["measure"])
        ends = (interval.estimate, interval.low, interval.high)
        ratio = interval.scale == "ratio"
        found.append(
            Move(
                row["level"],
                row["trace"],
                row["measure"],
                measure.label,
                base,
                value,
                change,
                row["verdict"],
                interval.n,
                ratio,
                *ends,
            )
        )
    return tuple(found)


def holds_of(document: dict[str, Any]) -> tuple[Held, ...]:
    """Where each conclusion holds, by level and measure."""
    names = [trace["name"] for trace in document["traces"]]
    return tuple(
        Held(
            row["level"],
            row["measure"],
            MEASURES[row["measure"]].label,
            row["holds"],
            tuple((verdict, tuple(names[at] for at in where)) for verdict, where in row["where"].items()),
        )
        for row in document["across"]
    )


def series_of(document: dict[str, Any]) -> tuple[Series, ...]:
    """The leading measure window by window, a series a trace."""
    leading = document["leading"]
    figures = {
        (row["trace"], row["level"], row["window"]): row["figures"].get(leading, {}).get("value") for row in document["replays"]
    }
    factor = 1e-9 if MEASURES[leading].kind == "ns" else 1.0
    found = []
    for at, trace in enumerate(document["traces"]):
        n = len(trace["windows"])
        levels = []
        for level, text in enumerate(document["levels"]):
            values = (figures.get((at, level, window)) for window in range(n))
            levels.append((text, tuple(None if value is None else value * factor for value in values)))
        unit = ", s" if MEASURES[leading].kind == "ns" else ""
        found.append(Series(trace["name"], MEASURES[leading].label + unit, n, tuple(levels)))
    return tuple(found)
