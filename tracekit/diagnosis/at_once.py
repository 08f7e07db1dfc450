"""The verdict that a replay ends with: from the rows that are there anyway, without proof."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from replay_engine.tables import TABLES
from tracekit.diagnosis.diagnose import diagnose
from tracekit.diagnosis.run_data import RunData, tidy
from tracekit.diagnosis.text import three_lines
from tracekit.errors import shown

if TYPE_CHECKING:
    from tracekit.record import RunRecord
    from tracekit.replay import Setup

__all__ = ["verdict_lines"]

_DEFAULT_DB = "tracekit.duckdb"


def verdict_lines(setup: Setup, record: RunRecord) -> Callable[[int, str], list[str]]:
    """Diagnose a replay that has finished and is not committed yet. What comes back makes the three lines of the verdict out of
    the run's number and its database."""
    try:
        tables = {name: tidy(name, record.rows(name)) for name in TABLES}
        found = diagnose(RunData(setup=replace(setup, torch=None), tables=tables))
    except Exception as error:  # the replay itself is whole: its record must not be lost to a fault of the diagnosis
        said = shown(" ".join(f"{type(error).__name__}: {error}".split()), 200)
        return lambda run, db: [
            f"verdict: none, the diagnosis failed ({said}); tracekit diagnose {run}{_where(db)} --debug shows where"
        ]

    return lambda run, db: three_lines(found, f"tracekit diagnose {run}{_where(db)} replays it and shows the evidence")


def _where(db: str) -> str:
    return "" if str(db) == _DEFAULT_DB else f" --db {db}"
