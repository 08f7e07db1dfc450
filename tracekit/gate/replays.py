"""The replays that a gate rests on: the traffic as it is, the same with noise, and traffic drawn again from it with noise.

Draw ``k`` of the traffic is the same for the baseline and for whatever is held against it, so that a difference is not one of
traffic. The noise of iterations is not the same: what differs by no more than the profile's error has not changed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from replay_engine.noise import IterationNoise, stated_error
from replay_engine.tables import TABLES
from replay_engine.types import RequestState
from tracekit.diagnosis.diagnose import diagnose
from tracekit.diagnosis.finding import Diagnosis
from tracekit.diagnosis.run_data import RunData, tidy
from tracekit.door_facts import door_facts
from tracekit.gate.metrics import Figures, figures_of
from tracekit.gate.resampling import redrawn
from tracekit.record import MemoryRecord
from tracekit.replay import Setup
from tracekit.simulate import simulate_into

__all__ = ["Replayed", "Replays", "Side"]

Side = Literal["baseline", "gate"]
_SIDES = {"baseline": 0, "gate": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One replay: its figures, the findings that its diagnosis names (``None``: it was not diagnosed), and how it ended."""

    figures: Figures
    findings: tuple[str, ...] | None
    state: str
    iterations: int
    diagnosis: Diagnosis | None = None


class Replays:
    """Replays ``setup``, each replay once. ``full``: keep every event, for gaps between tokens. ``diagnosed``: drawn traffic is
    diagnosed as well. ``told`` is called after each."""

    def __init__(
        self, setup: Setup, side: Side, *, full: bool, diagnosed: bool = False, told: Callable[[], None] | None = None
    ) -> None:
        self.setup = setup
        self._side, self._full, self._diagnosed, self._told = _SIDES[side], full, diagnosed, told
        self.sigma_prefill, self.sigma_decode, self.noise_from = stated_error(setup.profile)
        self._known: dict[tuple[str, int], Replayed] = {}

    def plain(self) -> Replayed:
        """The traffic as it is, by the profile as it is; diagnosed."""
        return self._once(("plain", 0), lambda: self._replay(replace(self.setup, events="full"), diagnosed=True))

    def noisy(self, seed: int) -> Replayed:
        """The traffic as it is, its iterations with noise."""
        return self._once(("noisy", seed), lambda: self._replay(self._with(self.setup, seed), diagnosed=False))

    def drawn(self, seed: int) -> Replayed:
        """Traffic like it, drawn by ``seed``, its iterations with noise."""
        return self._once(("drawn", seed), lambda: self._drawn(seed))

    def _once(self, key: tuple[str, int], replay: Callable[[], Replayed]) -> Replayed:
        if key not in self._known:
            self._known[key] = replay()
            if self._told is not None:
                self._told()
        return self._known[key]

    def _drawn(self, seed: int) -> Replayed:
        setup = self.setup
        source = redrawn(setup.source, seed)
        facts = door_facts(setup.policy, setup.profile, setup.slo, source)
        return self._replay(self._with(replace(setup, source=source, facts=facts), seed), diagnosed=self._diagnosed)

    def _with(self, setup: Setup, seed: int) -> Setup:
        """Noise of its own for each side of a comparison."""
        noise = IterationNoise(prefill=self.sigma_prefill, decode=self.sigma_decode, seed=2 * seed + self._side)
        return replace(setup, noise=noise)

    def _replay(self, setup: Setup, *, diagnosed: bool) -> Replayed:
        own = replace(setup, source=copy.copy(setup.source), events="full" if diagnosed or self._full else "outcomes")
        record = MemoryRecord(own)
        state, record.totals, record.by_replica = simulate_into(own, record.sink, stall_threshold_ns=record.stall_threshold_ns)
        if state == "interrupted":
            raise KeyboardInterrupt
        state = state.partition(":")[0]
        figures = figures_of(record.matrix(state), _tokens(record))
        found = None
        if diagnosed:
            tables = {name: tidy(name, record.rows(name)) for name in TABLES}
            # by the profile, not by the noise: what differs from it is what is to be explained
            found = diagnose(RunData(setup=replace(own, source=setup.source, noise=None), tables=tables, state=state))
        names = None if found is None else tuple(each.id for each in found.findings)
        return Replayed(figures=figures, findings=names, state=state, iterations=record.totals.iterations, diagnosis=found)


def _tokens(record: MemoryRecord) -> int:
    """Output tokens of the counted requests that finished."""
    inputs = record.inputs("finished")
    rows = inputs.outcomes if inputs.counted is None else inputs.outcomes[inputs.counted[inputs.outcomes["request"]]]
    return int(np.sum(rows["output_tokens"][rows["state"] == RequestState.finished]))
