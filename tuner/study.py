"""The study: which trials there are, who is at which, and what they came to. Optuna's, asked and told.

Trials 0 and 1 are the current policy and the engine's defaults. A trial whose worker has died is taken over as it is, by its
number: what its windows gave is in the file of cells, so nothing is lost and nothing is replayed twice. Asking is done by one
process at a time, which is why no two workers try the same configuration.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.trial import FrozenTrial, TrialState

from replay_engine.config import ConfigError
from replay_engine.policy import Policy
from tuner.claims import Claims, FileClaims
from tuner.fronts import FrontSampler
from tuner.journal import Journal
from tuner.plan import TunePlan
from tuner.postgres import PostgresClaims, check_url, optuna_url
from tuner.proofs import Proofs
from tuner.proposing import FULL, PointSampler
from tuner.space import Point

__all__ = ["Asked", "TuneStudy", "forget_study", "open_study", "study_name"]

ENDED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
REASON = "reason"


@dataclass(frozen=True, slots=True)
class Asked:
    """A trial to be carried out: its point and the policy there."""

    trial: optuna.Trial
    point: Point
    policy: Policy

    @property
    def number(self) -> int:
        return int(self.trial.number)

    @property
    def told(self) -> set[int]:
        """Windows of which the study knows already, from a worker that died."""
        return set(self.trial.storage.get_trial(self.trial._trial_id).intermediate_values)


class TuneStudy:
    """One worker's view of a study."""

    def __init__(self, study: optuna.Study, plan: TunePlan, claims: Claims) -> None:
        self.study = study
        self.plan = plan
        self._claims = claims
        self._exhausted = False

    def first(self) -> None:
        """Queue the current policy and the engine's defaults, unless the study has begun."""
        with self._claims.alone():
            if self._trials():
                return
            plan = self.plan
            points = [("current policy", plan.current), ("engine's defaults", plan.space.defaults(plan.policy, plan.profile))]
            for at, (role, point) in enumerate(points):
                if at == 0 or point != plan.current:
                    self.study.enqueue_trial(point, user_attrs={"role": role})

    def ask(self, limit: int) -> Asked | None:
        """The next trial, an orphaned one first; ``None`` when ``limit`` trials have ended or are under way, or none is left."""
        with self._claims.alone():
            if (orphan := self._orphan()) is not None:
                return orphan
            while len(self._trials(*ENDED, TrialState.RUNNING)) < limit and not self._exhausted:
                try:
                    trial_ = self.study.ask()
                except LookupError:
                    self._exhausted = True
                    self._forget_last()
                    break
                self._claims.take(trial_.number)
                if (asked := self._settled(trial_)) is not None:
                    return asked
        return None

    def orphan(self) -> Asked | None:
        """A trial whose worker has died, now ours."""
        with self._claims.alone():
            return self._orphan()

    def under_way(self) -> int:
        """How many trials have begun and not ended, whoever carries them out."""
        return len(self._trials(TrialState.RUNNING))

    def _orphan(self) -> Asked | None:
        for trial in self._trials(TrialState.RUNNING):
            if not self._claims.take(trial.number):
                continue
            if not self._is_running(trial.number):  # it was told, and let go, since the list was read
                self._claims.give(trial.number)
            elif (taken := self._settled(self._again(trial.number))) is not None:
                return taken
        return None

    def _is_running(self, number: int) -> bool:
        return any(trial.number == number for trial in self._trials(TrialState.RUNNING))

    def _forget_last(self) -> None:
        """A trial that was opened and could not be given a point."""
        for trial in self._trials(TrialState.RUNNING):
            if not trial.params and self._claims.take(trial.number):
                self._fail(trial.number, "every configuration of the space was tried")

    def _again(self, number: int) -> optuna.Trial:
        """A trial under way, in this process."""
        trial_id = self.study._storage.get_trial_id_from_study_id_trial_number(self.study._study_id, number)
        return optuna.Trial(self.study, trial_id)

    def _settled(self, trial: optuna.Trial) -> Asked | None:
        """Give the trial its point; ``None``, and the trial failed with its reason, where that is no configuration."""
        space = self.plan.space
        point: Point = {}
        for knob in space.knobs:
            if knob.when is None or point.get(knob.when[0]) in knob.when[1]:
                point[knob.name] = trial.suggest_categorical(knob.name, knob.levels)
        reason = space.broken(point) if trial.user_attrs.get("role") is None else None
        if reason is None:
            try:
                return Asked(trial, point, self.plan.policy_at(point))
            except ConfigError as error:
                reason = str(error)
        self._fail(trial.number, reason)
        return None

    def _fail(self, number: int, reason: str) -> None:
        trial_id = self.study._storage.get_trial_id_from_study_id_trial_number(self.study._study_id, number)
        self.study._storage.set_trial_user_attr(trial_id, REASON, reason)
        self.study.tell(number, state=TrialState.FAIL)
        self._claims.give(number)

    def tell(self, asked: Asked, values: Sequence[float], constraint: float | None = None, **facts: Any) -> None:
        """What a trial came to. ``constraint``: at most 0 where its answer may be taken. ``facts``: attributes to show."""
        for name, fact in facts.items():
            asked.trial.set_user_attr(name, fact)
        if constraint is not None:
            asked.trial.set_constraint("attainment", constraint)
        self.study.tell(asked.trial, list(values))
        self._claims.give(asked.number)

    def prune(self, asked: Asked, full: float, **facts: Any) -> None:
        """A trial that is hopeless after some windows; ``full``: what it would have come to."""
        for name, fact in {FULL: full, **facts}.items():
            asked.trial.set_user_attr(name, fact)
        self.study.tell(asked.trial, state=TrialState.PRUNED)
        self._claims.give(asked.number)

    def fail(self, asked: Asked, reason: str) -> None:
        """A trial that could not be carried out."""
        self._fail(asked.number, reason)

    def answering(self, waits: Callable[[], None]) -> AbstractContextManager[None]:
        """One process at a time looks for the answer: the next finds everything replayed. ``waits``: called before it waits."""
        found: AbstractContextManager[None] = self._claims.answering(waits)
        return found

    def best(self) -> FrozenTrial | None:
        """The best completed trial by the first objective."""
        sign = 1 if self.plan.objectives[0].direction == "maximize" else -1
        done = [t for t in self._trials(TrialState.COMPLETE) if _feasible(t)] or self._trials(TrialState.COMPLETE)
        return max(done, key=lambda t: (sign * (t.values or [0.0])[0], -t.number), default=None)

    def trials(self) -> list[FrozenTrial]:
        """Those that have ended, by number."""
        return self._trials(*ENDED)

    def _trials(self, *states: TrialState) -> list[FrozenTrial]:
        found: list[FrozenTrial] = self.study.get_trials(deepcopy=False, states=states or None)
        return found

    def counts(self) -> dict[str, Any]:
        """Trials by how they ended, and why some failed."""
        ended = Counter(trial.state.name.lower() for trial in self.trials())
        why = Counter(str(trial.user_attrs.get(REASON, "unknown")) for trial in self._trials(TrialState.FAIL))
        return {"complete": ended["complete"], "pruned": ended["pruned"], "failed": ended["fail"], "reasons": dict(why)}


def _feasible(trial: FrozenTrial) -> bool:
    return all(value <= 0 for value in trial.constraints.values())


def study_name(plan: TunePlan) -> str:
    """What the plan's study is called in a database."""
    return f"tracekit-{plan.key()}"


def open_study(plan: TunePlan, folder: Path | None, storage: str | None) -> TuneStudy:
    """The plan's study: a file in ``folder``, or a database. Errors: ``UsageError`` for one that cannot be reached."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    logging.getLogger("sqlalchemy").setLevel(logging.ERROR)
    directions = [objective.direction for objective in plan.objectives]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        claims = _claims(plan, folder, storage)
        with claims.alone():  # two workers that make the tables at once would stumble over each other
            study = optuna.create_study(storage=_backend(folder, storage), study_name=study_name(plan), directions=directions,
                                        load_if_exists=True, sampler=_sampler(plan))  # fmt: skip
    return TuneStudy(study, plan, claims)


def forget_study(plan: TunePlan, storage: str) -> None:
    """Delete the plan's study from a database, if it is there."""
    claims = PostgresClaims(storage, study_name(plan))
    with claims.alone():
        backend = _backend(None, storage)
        if study_name(plan) in optuna.get_all_study_names(backend):
            optuna.delete_study(study_name=study_name(plan), storage=backend)


def _sampler(plan: TunePlan) -> BaseSampler:
    known = None if any(objective.rates for objective in plan.objectives) else Proofs(plan).known
    if len(plan.objectives) > 1:
        return FrontSampler(plan.space, plan.seed, [objective.direction for objective in plan.objectives], known)
    return PointSampler(plan.space, plan.seed, 1.0 if plan.objectives[0].direction == "maximize" else -1.0, known)


def _claims(plan: TunePlan, folder: Path | None, storage: str | None) -> Claims:
    if storage is not None:
        check_url(storage)
        return PostgresClaims(storage, study_name(plan))
    assert folder is not None
    return FileClaims(folder / "claims")


def _backend(folder: Path | None, storage: str | None) -> BaseStorage:
    if storage is not None:
        return RDBStorage(optuna_url(storage), engine_kwargs={"pool_size": 2, "pool_pre_ping": True})
    assert folder is not None
    folder.mkdir(parents=True, exist_ok=True)
    return JournalStorage(Journal(str(folder / "study.journal")))
