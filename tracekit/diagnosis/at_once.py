"""The verdict that a replay ends with: from the rows that are there anyway, without proof."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from replay_engine.tables import TABLES
from tracekit.diagnosis.diagnose import diagnose
from tracekit.diagnosis.own_costs import with_own_costs
from tracekit.diagnosis.run_data import RunData, tidy
from tracekit.diagnosis.text import three_lines
from tracekit.diagnosis.verdict import build_verdict
from tracekit.errors import shown

if TYPE_CHECKING:
    from tracekit.record import RunRecord
    from tracekit.replay import Setup

__all__ = ["AtOnce", "verdict_at_once"]

_DEFAULT_DB = "tracekit.duckdb"


@dataclass(frozen=True, slots=True, kw_only=True)
class AtOnce:
    """``lines`` makes the three lines of the verdict out of the run's number and its database; ``document`` is ``verdict.json``,
    ``None`` where the diagnosis failed."""

    lines: Callable[[int, str], list[str]]
    document: dict[str, Any] | None = None


def verdict_at_once(setup: Setup, record: RunRecord) -> AtOnce:
    """Diagnose a replay that has finished and is not committed yet."""
    try:
        tables = {name: tidy(name, record.rows(name)) for name in TABLES}
        data = with_own_costs(RunData(setup=replace(setup, torch=None), tables=tables, measured=setup.torch is not None))
        found = diagnose(data)
        document = build_verdict(data, found, budget=None)
    except Exception as error:  # the replay itself is whole: its record must not be lost to a fault of the diagnosis
        said = shown(" ".join(f"{type(error).__name__}: {error}".split()), 200)
        return AtOnce(lines=lambda run, db: [
            f"verdict: none, the diagnosis failed ({said}); tracekit diagnose {run}{_where(db)} --debug shows where"
        ])  # fmt: skip

    def lines(run: int, db: str) -> list[str]:
        return three_lines(found, f"tracekit diagnose {run}{_where(db)} replays it and shows the evidence")

    return AtOnce(lines=lines, document=document)


def _where(db: str) -> str:
    return "" if str(db) == _DEFAULT_DB else f" --db {db}"
