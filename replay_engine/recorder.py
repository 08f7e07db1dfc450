"""Logs every iteration, and what it changed, as packed rows into an event sink."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import numpy.typing as npt

from replay_engine.config import SchedulerConfig
from replay_engine.gaps import GapClock
from replay_engine.rows import RowBuffer
from replay_engine.spans import SpanTracker
from replay_engine.tables import Verdict
from replay_engine.totals import RunTotals
from replay_engine.types import BatchPlan, EventSink, IterationResult

__all__ = ["EventMode", "Recorder"]

EventMode = Literal["none", "outcomes", "iterations", "full"]
_STORED = {
    "none": frozenset[str](),
    "outcomes": frozenset({"outcomes"}),
    "iterations": frozenset({"iterations", "outcomes"}),
    "full": frozenset({"iterations", "prefill_entries", "spans", "outcomes", "preemptions", "decisions", "routing"}),
}


class Recorder:
    """Rows out, totals kept. ``sink`` gets the tables of ``mode``; totals are counted in every mode."""

    __slots__ = (
        "_decisions", "_on_chunk", "_sink", "_stored", "_usable", "entry_rows", "gaps", "iteration_rows", "spans", "totals",
    )  # fmt: skip

    def __init__(
        self,
        sink: EventSink,
        config: SchedulerConfig,
        *,
        mode: EventMode = "full",
        stall_threshold_ns: int | None = None,
        on_chunk: Callable[[RunTotals], None] | None = None,
    ) -> None:
        self._sink = sink
        self._stored = _STORED[mode]
        self._usable = config.usable_blocks
        self._on_chunk = on_chunk
        self.totals = RunTotals(
            kv_total=config.usable_blocks,
            token_budget=config.token_budget,
            reserve_blocks=int(config.watermark * config.num_gpu_blocks),
            asynchronous=config.async_scheduling,
        )
        self.iteration_rows = RowBuffer("iterations", self._deliver)
        self.entry_rows = RowBuffer("prefill_entries", self._deliver) if mode == "full" else None
        self._decisions = RowBuffer("decisions", self._deliver) if mode == "full" else None
        self.gaps = GapClock(stall_threshold_ns)
        self.spans = SpanTracker(
            RowBuffer("spans", self._deliver),
            RowBuffer("outcomes", self._deliver),
            RowBuffer("preemptions", self._deliver),
            self.gaps,
            keep_spans=mode == "full",
            keep_outcomes=mode != "none",
        )

    def _deliver(self, table: str, rows: npt.NDArray[np.void]) -> None:
        if table == "iterations":
            self.totals.add(rows)
            if self._on_chunk is not None:
                self._on_chunk(self.totals)
        if table in self._stored:
            self._sink.append(table, rows)

    def record(self, plan: BatchPlan, start: int, result: IterationResult) -> None:
        """``plan`` ran from ``start`` (ns) for ``result.duration_ns``."""
        duration = result.duration_ns
        refused = plan.refused
        finishing = len(plan.finishing)
        entries = plan.prefill
        if entries or finishing or plan.preempted or plan.starved or plan.displaced or plan.admitted:
            self.spans.changes(plan, start, start + duration)
            self.totals.walked += plan.walked
            if self.entry_rows is not None:
                for entry in entries:
                    if entry.decode:
                        continue
                    self.entry_rows.add(plan.iteration, entry.seq.index, entry.query_len, entry.kv_len, entry.recompute)
        elif plan.decode_seqs:
            self.gaps.tick(duration)
        elif refused is None:
            return  # nothing ran and nobody was turned away: the asynchronous look after the last token
        self.iteration_rows.add(
            plan.iteration, start, duration, result.device_ns, result.host_ns, plan.decode_kv, self._usable - plan.kv_free,
            plan.kv_free - plan.kv_blank, plan.evicted, plan.decode_seqs, plan.running, plan.prefill_qk, plan.prefill_tokens,
            plan.recomputed_tokens, plan.prefill_seqs, plan.waiting, len(plan.preempted), len(plan.admitted), finishing,
            plan.refused_by, -1 if refused is None else refused.index, -1 if refused is None else plan.refused_need,
            plan.hit_tokens,
        )  # fmt: skip
        self.spans.note_refusal(plan.refused_by)

    def decision(self, at: int, request: int, verdict: Verdict) -> None:
        """Something was decided about a request at ``at`` (ns), outside the engine."""
        rows = self._decisions
        if rows is not None:
            decision, reason, value, bound = verdict
            rows.pack(rows.buffer, rows.at, at, value, bound, request, decision, reason)
            rows.at += rows.size
            if rows.at >= rows.end:
                rows.flush()

    def flush(self) -> None:
        """Everything logged so far reaches the sink."""
        self.iteration_rows.flush()
        if self.entry_rows is not None:
            self.entry_rows.flush()
        if self._decisions is not None:
            self._decisions.flush()
        self.spans.flush()
