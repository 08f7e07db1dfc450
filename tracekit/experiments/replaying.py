"""One replay of an experiment: a level on a window, in memory, down to its figures.

What a worker process does, and what an experiment without workers does itself: the same code on the same plan.
"""

from __future__ import annotations

import copy
import time
from typing import Any

from tracekit.door_facts import door_facts
from tracekit.experiments.measures import figures_of
from tracekit.experiments.plan import Cell, Plan
from tracekit.record import MemoryRecord
from tracekit.replay import Setup
from tracekit.simulate import simulate_into
from tracekit.store import Store
from tracekit.traces.source import TraceSource

__all__ = ["CellReplays", "replay_figures"]


def replay_figures(setup: Setup) -> dict[str, Any]:
    """``{"state": how it ended, "wall_s": ..., "requests": counted ones, "figures": by measure}``. An interrupt is raised."""
    began = time.monotonic()
    record = MemoryRecord(setup)
    state, record.totals, record.by_replica = simulate_into(setup, record.sink, stall_threshold_ns=record.stall_threshold_ns)
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
