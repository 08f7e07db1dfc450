"""Which points need no trial of their own: replays of ended trials prove that they would come to the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from optuna.trial import FrozenTrial

from replay_engine.config import ConfigError
from tuner.alike import KNOBS, Limits, alike, limits_of, rest_of
from tuner.cells import Result
from tuner.plan import TunePlan
from tuner.space import Point

__all__ = ["PROOF", "Proofs", "proof_of"]

Mark = tuple[tuple[str, Any], ...]
PROOF = "proof"
"""Attribute of a trial that has ended: what ``proof_of`` says."""


def proof_of(results: Sequence[Result], rest: str | None) -> dict[str, Any] | None:
    """From a trial's windows: ``rest`` (``alike.rest_of``) of its policy and, by window, limits and marks of the replay; ``None``
    where nothing can be proved."""
    if rest is None or any(result.get("rest") is None for result in results):
        return None
    return {"rest": rest, "windows": [[list(result["limits"]), result["marks"]] for result in results]}


class Proofs:
    """What the ended trials of a study prove."""

    def __init__(self, plan: TunePlan) -> None:
        self._plan = plan
        self._policies: dict[Mark, tuple[str | None, Limits, float] | None] = {}
        self._looked_at: dict[Mark, set[int]] = {}
        self._proved: set[Mark] = set()
        self._rest = rest_of(plan.policy)

    def known(self, trials: Sequence[FrozenTrial], point: Point) -> bool:
        """Whether ``point`` comes to what one of ``trials`` came to, on all windows that this one replayed."""
        mark = tuple(point.items())
        if mark in self._proved:  # trials are never taken back
            return True
        found = self._derived(mark, point)
        if found is None or found[0] is None:
            return False
        rest, limits, watermark = found
        before = self._looked_at.setdefault(mark, set())  # a trial that proves nothing of a point never will
        for trial in trials:
            proof = None if trial.number in before else trial.user_attrs.get(PROOF)
            if proof is None:
                continue
            if proof["rest"] == rest and all(alike(marks, tuple(one), limits, watermark) for one, marks in proof["windows"]):
                self._proved.add(mark)
                return True
            before.add(trial.number)
        return False

    def _derived(self, mark: Mark, point: Mapping[str, Any]) -> tuple[str | None, Limits, float] | None:
        if mark not in self._policies:
            try:
                policy = self._plan.policy_at(dict(point))
            except ConfigError:
                self._policies[mark] = None
            else:
                scheduler = policy.scheduler
                same = scheduler.max_model_len == self._plan.policy.scheduler.max_model_len and not set(point) - set(KNOBS)
                self._policies[mark] = self._rest if same else rest_of(policy), limits_of(scheduler), scheduler.watermark
        return self._policies[mark]
