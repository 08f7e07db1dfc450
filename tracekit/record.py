"""One run's record: the sink its events go to, then its matrix and its row, committed together."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from replay_engine.sinks import MemorySink
from replay_engine.tables import LONG_ITERATIONS, TABLES, with_replica
from replay_engine.totals import RunTotals
from replay_engine.types import EventSink
from tracekit import __version__
from tracekit.columns import Columns, as_rows
from tracekit.metrics import Labels, MatrixInputs, build_matrix, evaluate_slo, stall_threshold, token_gaps
from tracekit.metrics.fleet import fleet_gaps, fleet_written
from tracekit.metrics.gaps import TokenGaps
from tracekit.metrics.written import written_block_ns
from tracekit.store import EarlyCommit, SpoolSink, Store, commit_run, read_spool, spool_columns

if TYPE_CHECKING:
    from tracekit.replay import Setup

__all__ = ["MemoryRecord", "RunRecord"]

_TOGETHER = (
    ("iteration", "start_ns", "duration_ns", "device_ns", "host_ns", "decode_kv_tokens", "prefill_qk", "prefill_tokens",
     "decode_seqs", "preempted", "head_refused_by"),
    ("waiting", "running", "kv_used", "head_request", "recomputed_tokens", "prefill_seqs"),
)  # fmt: skip
"""Columns of iterations that are looked at together: by every matrix and verdict, and by the verdict of a run that suffers."""


class MemoryRecord:
    """A replay's rows and sums, down to its acceptance matrix; no database sees them.

    Rows go to ``sink``; ``totals`` and ``by_replica`` must be set before the matrix is asked for.
    """

    by_replica: Sequence[RunTotals] = ()

    def __init__(self, setup: Setup, *, name: str | None = None) -> None:
        self._setup = setup
        self._name = name
        self._memory = MemorySink()
        self.sink: EventSink = self._memory
        self.totals = RunTotals()
        self.stall_threshold_ns, self._stall_rule = stall_threshold(setup.slo)

    def matrix(self, state: str) -> dict[str, Any]:
        """The acceptance matrix of a replay that ended as ``state``."""
        return build_matrix(self.inputs(state))

    @property
    def _engine(self) -> str:
        return "sim" if self._setup.torch is None else "torch"

    def rows(self, name: str) -> npt.NDArray[np.void]:
        """A table's rows, in the order they were written."""
        return self._memory.table(name)

    def inputs(self, state: str) -> MatrixInputs:
        """What the matrix of a replay that ended as ``state`` is computed from."""
        setup, source = self._setup, self._setup.source
        wanted = {"ttft_ns": source.slo_ttft_ns, "tpot_ns": source.slo_tpot_ns, "deadline_ns": self._deadlines()}
        request_slo = {part: values for part, values in wanted.items() if values is not None}
        outcomes = self.rows("outcomes")
        facts = {"name": self._name, "trace": setup.trace_name, "seed": setup.seed, "state": state, "events": setup.events}
        return MatrixInputs(
            outcomes=outcomes,
            totals=self.totals,
            scheduler=setup.policy.scheduler,
            rules=setup.policy.rules,
            profile=setup.profile,
            engine=self._engine,
            tracekit_version=__version__,
            run=facts,
            policy_notes=setup.policy.notes,
            counted=self._counted(),
            lead_in_ns=setup.lead_in_ns,
            requests=source.total,
            tenants=_labels(source.tenant, source.tenant_names),
            classes=_labels(source.class_, source.class_names),
            observed=self._observed(),
            slo=setup.slo,
            request_slo=request_slo or None,
            cancel_ns=self._cancels(outcomes),
            degraded=self._degraded(outcomes),
            demand_tokens=source.output_tokens,
            preemptions=self.rows("preemptions") if setup.events == "full" else None,
            written_block_ns=self._written(outcomes),
            accept_degraded=setup.accept_degraded,
            arrival_window_ns=source.window_ns,
            arrivals_depend=source.parent is not None or self._by_slot(),
            gaps=self._gaps(outcomes),
            stall_threshold_ns=self.stall_threshold_ns,
            stall_rule=self._stall_rule,
            **self._pools(),
            by_replica=self.by_replica if setup.policy.rules.several else (),
        )

    def _observed(self) -> dict[str, npt.NDArray[Any]] | None:
        """Latencies of the trace itself, by the name of the outcome they are compared with."""
        columns = {f"{part}_ns": getattr(self._setup.source, f"obs_{part}_ns") for part in ("queue", "ttft", "tpot", "e2e")}
        return {name: values for name, values in columns.items() if values is not None} or None

    def _counted(self) -> npt.NDArray[np.bool_]:
        source, warmup = self._setup.source, self._setup.warmup_ns
        counted: npt.NDArray[np.bool_] = source.counted
        if warmup:
            first = source.start_ns[counted][0]
            counted = counted & (source.start_ns >= first + warmup)
        return counted

    def _deadlines(self) -> npt.NDArray[np.int64] | None:
        source = self._setup.source
        if source.deadline_ns is None:
            return None
        return np.where(source.deadline_ns < 0, -1, source.deadline_ns - self._begin())

    def _begin(self) -> npt.NDArray[np.int64]:
        """What to take off the source's cancels and deadlines: the arrival; a turn's count from its release already."""
        source = self._setup.source
        return source.arrival_ns if source.parent is None else np.where(source.parent < 0, source.arrival_ns, 0)

    def _by_slot(self) -> bool:
        """Whether a request arrives when the client has a slot for it."""
        client = self._setup.policy.rules.client
        return client.max_in_flight is not None and client.arrival == "slot"

    def _cancels(self, outcomes: npt.NDArray[np.void]) -> npt.NDArray[np.int64] | None:
        """When the client gives up, on the engine clock; -1 for never, and for a request that was never released. It stays as
        long after the arrival as in the trace, wherever that moves.
        """
        source = self._setup.source
        if source.cancel_ns is None or (source.parent is None and not self._by_slot()):
            return source.cancel_ns
        released = np.full(source.total, -1, np.int64)
        released[outcomes["request"]] = outcomes["arrival_ns"]
        unknown = (source.cancel_ns < 0) | (released < 0)
        return np.where(unknown, -1, released + source.cancel_ns - self._begin())

    def _degraded(self, outcomes: npt.NDArray[np.void]) -> npt.NDArray[np.bool_] | None:
        """Per request, where the front door can cut answers."""
        door = self._setup.policy.rules.front_door
        if door.degrade_above_kv is None and door.degrade_above_queue is None:
            return None
        cut = np.zeros(self._setup.source.total, np.bool_)
        cut[outcomes["request"]] = outcomes["degraded"]
        return cut

    def _written(self, outcomes: npt.NDArray[np.void]) -> float | None:
        policy = self._setup.policy
        if policy.rules.batching.kv_allocation != "contiguous" or self._setup.events != "full":
            return None
        iterations, entries, spans = (self.rows(name) for name in ("iterations", "prefill_entries", "spans"))
        if policy.rules.several:
            return fleet_written(iterations, entries, spans, outcomes, policy.scheduler.block_size)
        return written_block_ns(iterations, entries, spans, outcomes, policy.scheduler.block_size)

    def _pools(self) -> dict[str, Any]:
        """What the matrix says of separate pools is taken from."""
        if not self._setup.policy.rules.pd.prefill or self._setup.events != "full":
            return {}
        return {"pool_spans": self.rows("spans"), "transfers": self.rows("transfers")}

    def _gaps(self, outcomes: npt.NDArray[np.void]) -> TokenGaps | None:
        if self._setup.events != "full":
            return None
        rules, tables = self._setup.policy.rules, (self.rows("iterations"), self.rows("spans"), outcomes, self._counted())
        handed = bool(rules.pd.prefill) and rules.pd.first_token_from == "prefill"
        return fleet_gaps(*tables, first_elsewhere=handed) if rules.several else token_gaps(*tables)

    def _per_request(self, inputs: MatrixInputs) -> dict[str, Any]:
        columns: dict[str, Any] = {"counted": self._counted()}
        for column, labels in (("tenant", inputs.tenants), ("class", inputs.classes)):
            if labels is not None:
                names = np.array([*labels.names, None], dtype=object)
                columns[column] = names[labels.codes]
        if self._setup.slo is not None:
            result = evaluate_slo(inputs, inputs.outcomes)
            if not isinstance(result, str):
                met = np.zeros(self._setup.source.total, dtype=bool)
                met[inputs.outcomes["request"]] = result.met
                columns["slo_met"] = met
        return columns


class RunRecord(MemoryRecord):
    """Opened before the replay, committed after it: rows go to the spool (unless none are kept), then everything to the store.
    ``row``, once it is committed: its columns of ``runs``, without the number. ``spool``: the name of its folder."""

    row: Mapping[str, Any]

    def __init__(self, store: Store, setup: Setup, *, name: str | None, command: str) -> None:
        super().__init__(setup, name=name)
        self._store = store
        self._iterations: Columns | None = None
        self._early: EarlyCommit | None = None
        self._began = time.monotonic()
        self._row: dict[str, Any] = {
            "name": name,
            "trace": setup.trace,
            "trace_name": setup.trace_name,
            "started_at": datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds"),
            "engine": self._engine,
            "profile": setup.profile.name if setup.torch is None else None,
            "policy": setup.policy.to_dict(),
            "slo": setup.slo.to_dict() if setup.slo is not None else None,
            "events": setup.events,
            "seed": setup.seed,
            "requests": setup.source.total,
            "command": command,
            "slice": _slice(setup),
            "setup": {"profile": setup.profile.to_toml(), "accept_degraded": setup.accept_degraded},
            "tracekit_version": __version__,
        }
        constants = _constants(setup)
        layouts: dict[str, np.dtype[np.void]] = {"iterations": LONG_ITERATIONS} if setup.profile.latency.s_ns else {}
        if setup.policy.rules.several:
            layouts = {table: with_replica(layout) for table, layout in (TABLES | layouts).items()}
        if setup.torch is None:
            constants["iterations"] |= {"mode": "simulated"}
            if not setup.profile.latency.p_ns:  # else it follows from the decodes
                constants["iterations"] |= {"padded_tokens": 0}
        else:
            from replay_engine.torch_engine.engine_rows import WIDE_ITERATIONS

            layouts["iterations"] = with_replica(WIDE_ITERATIONS) if layouts else WIDE_ITERATIONS
        self._spool = SpoolSink(store.spool_folder, self._row, constants=constants, events=setup.events, layouts=layouts)
        self.spool = self._spool.folder.name
        if setup.events != "none":
            self.sink = self._spool

    def rows(self, name: str) -> npt.NDArray[np.void]:
        """A table's rows, in the order they were written; iterations, of which there are many, by column, cut once."""
        if self.sink is self._memory:
            return super().rows(name)
        if name != "iterations":
            return read_spool(self._spool.folder, name)
        if self._iterations is None:
            self._iterations = spool_columns(self._spool.folder, name, _TOGETHER)
        return as_rows(self._iterations)

    def committing(self) -> AbstractContextManager[object]:
        """Around what is made of the run's rows, ``commit`` at its end: iterations and what belongs to them are inserted
        meanwhile, on another core. Outcomes alone are not worth a database that is held as long."""
        self._spool.close()
        if self._setup.events != "full":
            return nullcontext()
        self._early = EarlyCommit(self._store, self._spool)
        return self._early

    def commit(self, state: str) -> tuple[int, dict[str, Any]]:
        """Compute the matrix, and write run, events and matrix in one transaction. Returns the run's number and the matrix."""
        self._spool.close()
        inputs = self.inputs(state)
        matrix = build_matrix(inputs)
        per_request = {"outcomes": self._per_request(inputs)}
        del inputs
        self._iterations = None  # their memory is the database's now
        row = {
            **self._row,
            "state": state,
            "iterations": self.totals.iterations,
            "wall_s": round(time.monotonic() - self._began, 3),
            "matrix": matrix,
        }
        if self._early is not None:
            run = self._early.finish(row, per_request)
        else:
            run = commit_run(self._store, self._spool, row, per_request)
        self.row = row
        return run, matrix


def _slice(setup: Setup) -> dict[str, Any]:
    """What decides which requests come, and when. The seed only where something of it is drawn."""
    part, placement = setup.source.part, setup.source.placement.kind
    drawn = part.thin is not None or part.spread_ticks or placement == "poisson"
    return {**asdict(part), "seed": part.seed if drawn else None, "warmup_ns": setup.warmup_ns, "placement": placement}


def _constants(setup: Setup) -> dict[str, dict[str, Any]]:
    """What is the same for all iterations; where separate pools differ, by engine, in the order in which they are numbered."""
    pd, engines = setup.policy.rules.pd, setup.policy.engines
    configs = [engines["prefill"]] * pd.prefill + [engines["decode"]] * pd.decode if engines else [setup.policy.scheduler]
    budgets, blocks = [config.token_budget for config in configs], [config.usable_blocks for config in configs]
    own = {name: each[0] if len({*each}) == 1 else each for name, each in (("budget", budgets), ("kv_total", blocks))}
    return {"iterations": {**own, "paused": 0, "swapped": 0}}


def _labels(codes: npt.NDArray[np.int32] | None, names: list[str]) -> Labels | None:
    return Labels(codes=codes, names=names) if codes is not None else None
