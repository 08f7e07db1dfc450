"""What a diagnosis reads: one replay's rows as arrays, and everything that decided the replay, so that it can be changed and run
again. The same from a replay in memory and from a stored run; nothing after it knows which.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from replay_engine.tables import LONG_ITERATIONS, LONGEST, TABLES, with_replica
from tracekit.columns import Columns, as_rows
from tracekit.diagnosis.engines import engine_settings
from tracekit.metrics import Labels, MatrixInputs, SloTable, evaluate_slo
from tracekit.metrics.attainment import SloResult, asked_parts, request_limits
from tracekit.record import MemoryRecord
from tracekit.simulate import simulate_into

if TYPE_CHECKING:
    from replay_engine.config import SchedulerConfig
    from replay_engine.policy import Policy
    from replay_engine.profile import Profile
    from tracekit.metrics.gaps import TokenGaps
    from tracekit.replay import Setup
    from tracekit.traces.source import TraceSource

__all__ = ["LAYOUTS", "LONG_LAYOUT", "RunData"]

Rows = npt.NDArray[np.void]

LAYOUTS = {table: with_replica(layout) for table, layout in TABLES.items()}
"""The rows of every table as a diagnosis sees them: those of ``replay_engine.tables`` with the replica they come from."""

LONG_LAYOUT = with_replica(LONG_ITERATIONS)
"""Of iterations where the longest context costs."""

_ORDER = {
    "iterations": ("iteration", "replica"),
    "prefill_entries": ("iteration", "replica"),
    "spans": ("end_ns", "start_ns", "request"),
    "outcomes": ("request",),
    "preemptions": ("preempted_ns", "request"),
    "decisions": ("at_ns", "request"),
    "transfers": ("asked_ns", "request"),
    "routing": ("at_ns", "attempt", "request"),
}
"""Last key first, as ``np.lexsort`` takes them."""


@dataclass(kw_only=True)
class RunData:
    """One replay. ``setup.source`` has the requests, by index; ``tables`` the rows (dtypes ``LAYOUTS``; ns on the engine clock,
    tokens, blocks), sorted: iterations (``Columns``) and prefill entries by replica and iteration, spans by request and time,
    outcomes by request. ``run``: its number where it is stored. A run that kept fewer events has empty tables
    (``has_iterations``). ``measured``: a real engine took the times, which replays of a change do not.
    """

    setup: Setup
    tables: Mapping[str, Rows]
    state: str = "finished"
    run: int | None = None
    name: str | None = None
    measured: bool = False

    @classmethod
    def replayed(cls, setup: Setup) -> RunData:
        """Replay ``setup`` in memory. An interrupt is raised."""
        own = replace(setup, source=copy.copy(setup.source))  # a replay may turn the priorities of its source round
        record = MemoryRecord(own)
        state, record.totals, record.by_replica = simulate_into(own, record.sink, stall_threshold_ns=record.stall_threshold_ns)
        if state == "interrupted":
            raise KeyboardInterrupt
        return cls(setup=setup, tables={name: tidy(name, record.rows(name)) for name in TABLES}, state=state.partition(":")[0])

    @property
    def policy(self) -> Policy:
        return self.setup.policy

    @property
    def profile(self) -> Profile:
        return self.setup.profile

    @property
    def source(self) -> TraceSource:
        """The requests: prompt and output tokens, tenants, classes, priorities, by request index."""
        return self.setup.source

    @property
    def iterations(self) -> Rows:
        return self.tables["iterations"]

    @property
    def entries(self) -> Rows:
        """Prefill entries."""
        return self.tables["prefill_entries"]

    @property
    def spans(self) -> Rows:
        return self.tables["spans"]

    @property
    def outcomes(self) -> Rows:
        return self.tables["outcomes"]

    @property
    def has_iterations(self) -> bool:
        return bool(len(self.iterations))

    @cached_property
    def counted(self) -> npt.NDArray[np.bool_]:
        """Per request index: whether it counts, lead-in and warm-up left out."""
        counted = self._inputs.counted
        assert counted is not None
        return counted

    @cached_property
    def _inputs(self) -> MatrixInputs:
        return _Kept(self.setup, self.tables).inputs(self.state)

    @cached_property
    def slo_parts(self) -> tuple[str, ...]:
        """The parts of the SLO anybody is held to; empty without one."""
        return asked_parts(self._inputs)

    @cached_property
    def slo_result(self) -> SloResult | None:
        """Who met the SLO, by outcome row (all rows, counted or not); ``None`` where there is none or it cannot be told."""
        result = evaluate_slo(self._inputs, self.outcomes)
        return None if isinstance(result, str) else result

    def limits_ns(self, part: str, requests: npt.NDArray[Any] | None = None) -> npt.NDArray[np.int64]:
        """The limit of a part of the SLO per outcome row, or of each of ``requests`` (indices);
        ``tracekit.metrics.slo.UNLIMITED`` where there is none."""
        return request_limits(self._inputs, part, self.outcomes["request"] if requests is None else requests)

    @cached_property
    def token_gaps(self) -> TokenGaps | None:
        """All gaps between the tokens of counted requests; ``None`` where the run keeps no iterations."""
        return _Kept(self.setup, self.tables).token_gaps()

    def engine_of(self, replica: int) -> SchedulerConfig:
        """The scheduler's settings of a replica: with separate pools the prefill engines come first."""
        return engine_settings(self.policy, replica)

    @cached_property
    def replicas(self) -> tuple[int, ...]:
        """The replicas that ran anything."""
        return tuple(int(each) for each in np.unique(self.iterations["replica"]))

    def labels(self, what: str) -> Labels | None:
        """``tenant`` or ``class`` of every request index."""
        return self._inputs.tenants if what == "tenant" else self._inputs.classes

    @property
    def slo(self) -> SloTable | None:
        return self.setup.slo


def tidy(table: str, rows: Rows) -> Rows:
    """``rows`` in the dtype and the order that ``RunData`` keeps; columns beyond them are dropped. Iterations, of which there are
    many, come by column."""
    layout = LAYOUTS[table]
    if table == "iterations":
        return as_rows(_tidy_columns(table, rows if isinstance(rows, Columns) else Columns.of(rows)))
    if rows.dtype == TABLES[table] != layout:  # one engine's: the same bytes behind a replica of 0
        packed = np.zeros((len(rows), layout.itemsize), np.uint8)
        plain = np.ascontiguousarray(rows).view(np.uint8)
        packed[:, layout.itemsize - rows.dtype.itemsize :] = plain.reshape(len(rows), rows.dtype.itemsize)
        rows = packed.reshape(-1).view(layout)
    elif rows.dtype != layout:
        wanted = np.zeros(len(rows), layout)
        for column in layout.names or ():
            if column in (rows.dtype.names or ()):
                wanted[column] = rows[column]
        rows = wanted
    keys = [np.ascontiguousarray(rows[column]) for column in _ORDER[table]]
    return rows if _in_order(keys) else rows[np.lexsort(keys)]


def _tidy_columns(table: str, found: Columns) -> Columns:
    """The same for a table by column. A replica that is not there is 0, whatever else is not there too."""
    names = found.dtype.names or ()
    layout = LAYOUTS[table] if LONGEST[0] not in names else LONG_LAYOUT

    def plain(name: str) -> npt.NDArray[Any]:
        if name not in names:
            return np.broadcast_to(np.zeros(1, layout[name]), len(found))
        return found[name].astype(layout[name], copy=False)

    keys = [plain(column) for column in _ORDER[table]]
    if _in_order(keys):
        return Columns(layout, len(found), lambda name: {name: plain(name)})
    order = np.lexsort(keys)
    return Columns(layout, len(found), lambda name: {name: plain(name)[order]})


def _in_order(keys: Sequence[npt.NDArray[Any]]) -> bool:
    """Whether rows stand in the order of ``keys`` (last key first) already, as those of one engine mostly do."""
    same = np.ones(max(len(keys[0]) - 1, 0), np.bool_)
    for key in reversed(keys):
        if (same & (key[1:] < key[:-1])).any():
            return False
        same &= key[1:] == key[:-1]
    return True


class _Kept(MemoryRecord):
    """A record whose rows are there already."""

    def __init__(self, setup: Setup, tables: Mapping[str, Rows]) -> None:
        super().__init__(setup)
        self._tables = tables

    def rows(self, name: str) -> Rows:
        return self._tables[name]

    def token_gaps(self) -> TokenGaps | None:
        return super()._gaps(self.rows("outcomes"))

    def _gaps(self, outcomes: Rows) -> TokenGaps | None:
        """Only where somebody is held to them: they take longer than all the rest."""
        slo = self._setup.slo
        return super()._gaps(outcomes) if slo is not None and "itl" in slo.given() else None

    def _pools(self) -> dict[str, Any]:
        return {}
