"""A recipe replayed in memory and held against an SLO: what the drawing of planted faults is decided by."""

from __future__ import annotations

import copy
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from replay_engine.policy import load_policy
from replay_engine.profile import load_profile
from tracekit.door_facts import door_facts
from tracekit.generators.recipe import build_case
from tracekit.metrics import SloTable, evaluate_slo
from tracekit.metrics.attainment import request_limits
from tracekit.metrics.slo import UNLIMITED
from tracekit.record import MemoryRecord
from tracekit.replay import Setup
from tracekit.simulate import simulate_into
from tracekit.traces.load import read_trace
from tracekit.traces.source import TraceSource

__all__ = ["Replayed", "Recipe", "replayed", "setup_of"]

Recipe = dict[str, Any]


@dataclass(kw_only=True)
class Replayed:
    """One replay: its rows in ``record``, who has an SLO and who missed it (masks per outcome row)."""

    setup: Setup
    record: MemoryRecord
    state: str
    outcomes: npt.NDArray[np.void]
    held: npt.NDArray[np.bool_]
    missed: npt.NDArray[np.bool_]

    @property
    def misses(self) -> float:
        """Share of those who have an SLO that missed it."""
        return float(self.missed[self.held].mean()) if self.held.any() else 0.0


def setup_of(recipe: Recipe, slo: SloTable | None) -> Setup:
    """The setup of a recipe. Errors: ``UsageError``, ``ConfigError`` where there is no such thing."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "planted.yaml"
        path.write_text(yaml.safe_dump(recipe), "utf-8")
        built = build_case(path, Path(folder) / "built")
        profile = load_profile(str(built.profile))
        policy = load_policy(str(built.policy), profile)
        source = TraceSource.from_loaded(read_trace(str(built.trace)))
    return Setup(
        profile=profile, policy=policy, slo=slo, source=source, trace=0, trace_name="planted", lead_in_ns=0, seed=0,
        events="full", accept_degraded=False, warmup_ns=0, facts=door_facts(policy, profile, slo, source),
    )  # fmt: skip


def replayed(recipe: Recipe, slo: SloTable | None) -> Replayed:
    """Replay it with every row kept."""
    setup = setup_of(recipe, slo)
    own = replace(setup, source=copy.copy(setup.source))
    record = MemoryRecord(own)
    state, record.totals, record.by_replica = simulate_into(own, record.sink, stall_threshold_ns=record.stall_threshold_ns)
    outcomes = record.rows("outcomes")
    inputs = record.inputs(state)
    result = evaluate_slo(inputs, outcomes)
    missed = np.zeros(len(outcomes), np.bool_) if isinstance(result, str) else ~result.met
    held = np.zeros(len(outcomes), np.bool_)
    for part in () if slo is None else slo.given():
        held |= request_limits(inputs, part, outcomes["request"]) != UNLIMITED
    return Replayed(setup=setup, record=record, state=state, outcomes=outcomes, held=held, missed=missed & held)
