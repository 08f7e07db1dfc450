"""A run's iterations as they are kept: read from the database once, or from a spool as it grows."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dashboards.columns import READ, SKEWED, Columns, by_replica
from tracekit.diagnosis.engines import RunEngines, run_engines
from tracekit.errors import TracekitError
from tracekit.store import SpoolInfo, SpoolTail, Store, load_run

__all__ = ["Followed", "Kept", "arrivals_ns", "follow", "read_run"]

PIECE = 1 << 18
"""Rows read from a spool at a time."""


@dataclass(slots=True, kw_only=True)
class Kept:
    """A run's columns and the constants of its replicas. ``engines``: what is expected of them, where the run kept that."""

    columns: dict[int, Columns]
    budget: dict[int, int]
    kv_total: dict[int, int]
    engines: RunEngines | None

    @property
    def bytes(self) -> int:
        return sum(columns.bytes for columns in self.columns.values())

    @property
    def reserved(self) -> dict[int, int]:
        """Blocks that admission leaves free, by replica, where it leaves any."""
        if self.engines is None:
            return {}
        blocks = {replica: self.engines.reserved_blocks(replica) for replica in self.columns}
        return {replica: count for replica, count in blocks.items() if count}

    @property
    def expected(self) -> bool:
        """Whether the profile says how long iterations take."""
        return self.engines is not None and any(self.engines.cost(replica) is not None for replica in self.columns)


class Followed:
    """A run under way: its spool's iterations, each read once."""

    def __init__(self, info: SpoolInfo, constants: dict[str, Any]) -> None:
        self.info = info
        self.constants = constants
        self.columns: dict[int, Columns] = {}
        self.tail = SpoolTail(info.folder, "iterations")
        self.lock = threading.Lock()
        self._engines = _engines(info.run)

    def read_on(self) -> Kept:
        with self.lock:
            while len(rows := self.tail.new_rows(PIECE)):
                by_replica(rows, self.columns, self._engines)
            return self.kept()

    def kept(self) -> Kept:
        per_replica = {name: _by_replica(self.constants.get(name), self.columns) for name in ("budget", "kv_total")}
        known = {name: _known(values) for name, values in per_replica.items()}
        return Kept(columns=self.columns, engines=self._engines, **known)


def follow(info: SpoolInfo) -> Followed:
    """Begin to follow a spool. Errors: ``FileNotFoundError`` and ``TracekitError`` where it has gone."""
    from tracekit.store.spool import read_header

    return Followed(info, read_header(info.folder)["tables"].get("iterations", {}).get("constants", {}))


def read_run(store: Store, run: int) -> Kept:
    """All iterations of a recorded run."""
    engines, columns = _engines(load_run(store, run)), dict[int, Columns]()
    skewed = engines is not None and engines.latency.s_ns > 0
    picks = ", ".join("enum_code(head_refused_by) AS head_refused_by" if name == "head_refused_by" else name for name in READ)
    picks += f", coalesce({SKEWED}, 0) AS {SKEWED}" * skewed
    with store.read() as con:
        rows = con.sql(f"SELECT replica, {picks} FROM iterations WHERE run = {int(run)}").fetchnumpy()
        constants = con.execute(
            "SELECT replica, max(budget), max(kv_total) FROM iterations WHERE run = ? GROUP BY replica", [run]
        ).fetchall()
    by_replica(rows, columns, engines)
    return Kept(
        columns=columns,
        budget=_known({replica: budget for replica, budget, _ in constants}),
        kv_total=_known({replica: total for replica, _, total in constants}),
        engines=engines,
    )


def arrivals_ns(store: Store, run: Mapping[str, Any]) -> int:
    """How long the requests of a run under way arrive, ns on the engine clock: its window or the whole trace, at its rate.
    ``KeyError`` where its spool does not say, ``TracekitError`` where the trace cannot be looked up."""
    part = run["slice"]
    if part["limit"] is not None:
        return 0
    if part["window_ns"] is not None:
        begin, end = part["window_ns"]
        return int((end - begin + part["lead_in_ns"]) / part["rate_scale"])
    with store.read() as con:
        found = con.execute("SELECT span_ns FROM traces WHERE trace = ?", [run["trace"]]).fetchall()
    return int(found[0][0] / part["rate_scale"]) if found else 0


def _engines(row: dict[str, Any]) -> RunEngines | None:
    """A policy or a profile that this version cannot read hides what is expected, not the run."""
    try:
        return run_engines(row)
    except (TracekitError, ValueError, KeyError, TypeError):
        return None


def _by_replica(value: Any, replicas: Iterable[int]) -> dict[int, Any]:
    """A constant of a spool: a list has one for each replica."""
    return {replica: value[replica] if isinstance(value, list) else value for replica in replicas}


def _known(values: dict[int, Any]) -> dict[int, int]:
    return {replica: int(value) for replica, value in values.items() if value is not None}
