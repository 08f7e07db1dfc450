"""Recorded experiments: what was varied, what every replay gave, and what was concluded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tracekit.errors import UsageError, shown
from tracekit.store.database import Store

__all__ = ["find_experiment", "list_experiments", "load_experiment", "record_experiment"]

_JSON = ("levels", "traces", "spec", "results", "verdicts")
_LISTED = "experiment, name, started_at, wall_s, factor, levels, traces, tracekit_version"


def find_experiment(store: Store, key: str) -> int | None:
    """The number of the recorded experiment with this key; of several (made afresh) the latest."""
    if not store.exists():
        return None
    with store.read() as con:
        rows = con.execute("SELECT max(experiment) FROM experiments WHERE key = ?", [key]).fetchall()
    return None if rows[0][0] is None else int(rows[0][0])


def record_experiment(store: Store, row: Mapping[str, Any], *, fresh: bool = False) -> int:
    """Write one experiment in one transaction and return its number.

    One with the same key that somebody else recorded in the meantime is returned instead, unless ``fresh``.
    """
    with store.write("record an experiment") as con:
        there = con.execute("SELECT max(experiment) FROM experiments WHERE key = ?", [row["key"]]).fetchall()[0][0]
        if there is not None and not fresh:
            return int(there)
        number = int(con.execute("SELECT coalesce(max(experiment), 0) + 1 FROM experiments").fetchall()[0][0])
        values = {name: json.dumps(value) if name in _JSON else value for name, value in row.items()}
        names = ", ".join(f'"{name}"' for name in values)
        marks = ", ".join("?" * (len(values) + 1))
        con.execute(f"INSERT INTO experiments (experiment, {names}) VALUES ({marks})", [number, *values.values()])
    return number


def load_experiment(store: Store, number: int) -> dict[str, Any]:
    """The whole row, its JSON columns as values. ``UsageError`` where there is none."""
    with store.read() as con:
        result = con.execute("SELECT * FROM experiments WHERE experiment = ?", [number])
        names = [column[0] for column in result.description]
        rows = result.fetchall()
    if not rows:
        raise UsageError(f"experiment {shown(number)}: no such experiment in {store.path}")
    return _read(dict(zip(names, rows[0], strict=True)))


def list_experiments(store: Store) -> list[dict[str, Any]]:
    """The experiments, oldest first, without what they gave."""
    with store.read() as con:
        result = con.execute(f"SELECT {_LISTED} FROM experiments ORDER BY experiment")
        names = [column[0] for column in result.description]
        return [_read(dict(zip(names, row, strict=True))) for row in result.fetchall()]


def _read(row: dict[str, Any]) -> dict[str, Any]:
    return {name: json.loads(value) if name in _JSON and value is not None else value for name, value in row.items()}
