"""How many iterations each replay of a proof may take, and what has been replayed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from replay_engine.config import ConfigError
from tracekit.diagnosis.changes import changed_setup
from tracekit.diagnosis.run_data import RunData
from tracekit.diagnosis.trial import Trial
from tracekit.errors import UsageError

__all__ = ["LONGER", "Bench"]

LONGER = 3
"""How many times as many iterations as the run itself a change may take, per engine, where the budget allows it."""
SHORTEST_NS = 100_000
"""No engine's iterations are shorter, whatever a profile says."""
Sets = tuple[str, ...]


@dataclass
class Bench:
    """What has been replayed of ``data`` with which settings, and the iterations of all engines that are ``left`` for more."""

    data: RunData
    left: int
    trials: dict[Sets, Trial] = field(default_factory=dict)

    def affordable(self, wanted: Sequence[Sets]) -> dict[Sets, int]:
        """As many of ``wanted`` as the budget holds, in order, with the iterations that each may take."""
        fresh = [sets for sets in dict.fromkeys(wanted) if sets not in self.trials]
        most = {sets: self.most(sets) for sets in fresh[: self.left // max(len(self.data.iterations), 1)]}
        shares, left = {}, self.left
        for k, sets in enumerate(sorted(most, key=lambda each: most[each])):  # who needs little leaves more to the others
            shares[sets] = min(most[sets], left // (len(most) - k))
            left -= shares[sets]
        return {sets: shares[sets] for sets in most}

    def take(self, shares: Mapping[Sets, int], trials: Sequence[Trial]) -> None:
        """The trial of each of ``shares``; the budget pays for what they took."""
        for sets, trial in zip(shares, trials, strict=True):
            self.trials[sets] = trial
            self.left -= min(trial.iterations, shares[sets])

    def most(self, sets: Sets) -> int:
        """Iterations that a replay with ``sets`` may take: three times those of the run, per engine. An engine that has too much
        to do takes few and long ones, so it is also given as many of the shortest that there are as fit the run's time."""
        own, engines = max(len(self.data.iterations), 1), self._engines(sets)
        return max(math.ceil(LONGER * own * engines / self.data.policy.rules.engine_count), engines * self._shortest)

    @cached_property
    def _shortest(self) -> int:
        rows, latency = self.data.iterations, self.data.profile.latency
        if not len(rows):
            return 0
        span = int((rows["start_ns"] + rows["duration_ns"]).max() - rows["start_ns"].min())
        return int(span / max(latency.floor_ns, latency.a_ns, SHORTEST_NS))

    def _engines(self, sets: Sets) -> int:
        try:
            return changed_setup(self.data.setup, sets).setup.policy.rules.engine_count
        except (ConfigError, UsageError):
            return self.data.policy.rules.engine_count  # the trial will say that there is no such configuration
