"""One replay of an experiment: a level on a window, in memory, down to its figures.

What a worker process does, and what an experiment without workers does itself: the same code on the same plan.
"""

from __future__ import annotations

import copy
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from replay_engine.sinks import MemorySink
from replay_engine.totals import RunTotals
from tracekit.door_facts import door_facts
from tracekit.experiments.measures import figures_of
from tracekit.experiments.plan import Cell, Plan
from tracekit.metrics import build_matrix, stall_threshold
from tracekit.record import RunRecord
from tracekit.replay import Setup
from tracekit.simulate import simulate
from tracekit.store import Store
from tracekit.traces.source import TraceSource

__all__ = ["CellReplays", "replay_figures"]


class _NoJob:
    """A single replay has no folder: the experiment's job says how far the whole is."""

    def progress(self, *_: object, **__: object) -> None:
        pass

    def cancelled(self) -> bool:
        return False


class _MemoryRecord(RunRecord):
    """A run's record that no database will see."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._row = {"name": None}
        self.sink = self._rows = MemorySink()
        self.totals = RunTotals()
        self.stall_threshold_ns, self._stall_rule = stall_threshold(setup.slo)

    def _table(self, name: str) -> npt.NDArray[np.void]:
        return self._rows.table(name)

    def matrix(self, state: str) -> dict[str, Any]:
        return build_matrix(self._inputs(state))


def replay_figures(setup: Setup) -> dict[str, Any]:
    """``{"state": how it ended, "wall_s": ..., "requests": counted ones, "figures": by measure}``. An interrupt is raised."""
    began = time.monotonic()
    record = _MemoryRecord(setup)
    state = simulate(setup, record, _NoJob(), None)
    if state == "interrupted":
        raise KeyboardInterrupt
    matrix = record.matrix(state)
    return {"state": state, "wall_s": round(time.monotonic() - began, 3), "requests": matrix["counted"]["requests"],
            "iterations": record.totals.iterations, "figures": figures_of(matrix)}  # fmt: skip


class CellReplays:
    """Replays cells of one plan. The requests of a window are read once and kept for all levels that follow each other."""

    def __init__(self, store: Store, plan: Plan) -> None:
        self._store = store
        self._plan = plan
        self._levels = [level.restored() for level in plan.levels]
        self._spot: tuple[int, int] | None = None
        self._source: TraceSource | None = None

    def run(self, cell: Cell) -> dict[str, Any]:
        """The figures of one cell, as ``replay_figures`` gives them."""
        policy, profile, slo = self._levels[cell.level]
        trace = self._plan.traces[cell.trace]
        source = self._window(cell)
        return replay_figures(Setup(
            profile=profile, policy=policy, slo=slo, source=source, trace=trace.trace, trace_name=trace.name,
            lead_in_ns=trace.lead_in_ns, seed=self._plan.seed, events=self._plan.events(),
            accept_degraded=self._plan.accept_degraded, warmup_ns=0, facts=door_facts(policy, profile, slo, source),
        ))  # fmt: skip

    def _window(self, cell: Cell) -> TraceSource:
        spot = (cell.trace, cell.window)
        if self._source is None or self._spot != spot:
            with self._store.read() as con:
                self._source = TraceSource.from_database(con, self._plan.traces[cell.trace].trace, self._plan.slice_of(cell))
            self._spot = spot
        return copy.copy(self._source)  # a replay may turn the priorities of its own round
