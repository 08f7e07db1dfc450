"""What the acceptance matrix is computed from: arrays and facts of one run, no database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from replay_engine.config import SchedulerConfig
from replay_engine.profile import Profile
from replay_engine.rules import Rules
from tracekit.metrics.gaps import TokenGaps
from tracekit.metrics.slo import SloTable

__all__ = ["Labels", "MatrixInputs", "Totals", "counted_rows"]


class Totals(Protocol):
    """Sums over every iteration of the replay, lead-in included. Times in ns, KV in blocks.

    ``*_ns`` of a level (``kv_used_ns``, ``running_ns``, ``waiting_ns``) is the level times the iteration's duration, summed.
    """

    iterations: int
    busy_ns: int
    device_ns: int
    host_ns: int
    first_start_ns: int
    last_end_ns: int
    prefill_tokens: int
    recomputed_tokens: int
    decode_tokens: int
    prefix_hit_tokens: int
    evicted: int
    preemptions: int
    kv_total: int
    kv_used_max: int
    kv_used_ns: int
    kv_cached_max: int
    running_max: int
    running_ns: int
    waiting_max: int
    waiting_ns: int
    refused_ns: dict[str, int]
    refused_iterations: dict[str, int]
    queue_ns: int
    queue_tokens: int
    queue_budget_tokens: int
    above_watermark_ns: int
    async_blocked_ns: int
    walked: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """A name per request: ``codes[i]`` indexes ``names``; -1: the trace gives none."""

    codes: npt.NDArray[np.integer[Any]]
    names: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixInputs:
    """Arrays called "per request" are indexed by ``outcomes["request"]`` and as long as the slice, lead-in included.

    ``arrival_window_ns``: the length of ``--window``, else first to last recorded arrival; ``None``: first to last counted.
    ``arrivals_depend``: arrivals follow completions (sessions, slots), so that rates are per second of the run.
    ``observed``: per request int64 ns (-1 unknown; NaN in float arrays) under ``queue_ns``, ``ttft_ns``, ``tpot_ns``, ``e2e_ns``.
    ``request_slo``: per request ns (-1: nothing said) under a part's ``..._ns`` or ``deadline_ns``, both from arrival.
    ``cancel_ns``: per request engine clock of the client's cancel, -1 never. ``degraded``: per request, answer was cut.
    ``demand_tokens``: per request, output tokens asked for. ``preemptions``: rows of that table, ``None`` where not kept.
    ``written_block_ns``: blocks written x time, needed where whole sequences are reserved.
    ``run``: facts of the run's row (``name``, ``trace``, ``command``, ``seed``, ``state``, ``started_at``, ``events``, ...).
    """

    outcomes: npt.NDArray[np.void]
    totals: Totals
    scheduler: SchedulerConfig
    rules: Rules = field(default_factory=Rules)
    profile: Profile | None = None
    engine: str = "sim"
    tracekit_version: str | None = None
    run: Mapping[str, Any] = field(default_factory=dict)
    policy_notes: Sequence[str] = ()
    counted: npt.NDArray[np.bool_] | None = None
    lead_in_ns: int = 0
    requests: int | None = None
    """Requests of the slice; more than ``outcomes`` rows where a run was interrupted. ``None``: the rows."""
    tenants: Labels | None = None
    classes: Labels | None = None
    observed: Mapping[str, npt.NDArray[Any]] | None = None
    slo: SloTable | None = None
    request_slo: Mapping[str, npt.NDArray[np.int64]] | None = None
    cancel_ns: npt.NDArray[np.int64] | None = None
    degraded: npt.NDArray[np.bool_] | None = None
    demand_tokens: npt.NDArray[np.int64] | None = None
    preemptions: npt.NDArray[np.void] | None = None
    written_block_ns: float | None = None
    accept_degraded: bool = False
    arrival_window_ns: int | None = None
    arrivals_depend: bool = False
    gaps: TokenGaps | None = None
    gaps_reason: str = "token gaps need --events full"
    stall_threshold_ns: int | None = None
    stall_rule: str = "no tpot SLO and no baseline"
    by_replica: Sequence[Totals] = ()
    """The sums of each replica of a fleet, or engine of separate pools; then ``outcomes`` have a ``replica``."""
    pool_spans: npt.NDArray[np.void] | None = None
    transfers: npt.NDArray[np.void] | None = None
    """Of separate pools, where all events are kept: rows of dtype ``SPANS`` with a ``replica``, and ``TRANSFERS``."""


def counted_rows(inputs: MatrixInputs) -> npt.NDArray[np.void]:
    """The outcome rows that count: those outside the lead-in."""
    if inputs.counted is None:
        return inputs.outcomes
    rows: npt.NDArray[np.void] = inputs.outcomes[inputs.counted[inputs.outcomes["request"]]]
    return rows
