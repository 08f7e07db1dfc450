"""Several objectives: no point twice, only configurations, and a front found sooner than at random."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import TrialState

from tuner.fronts import FrontSampler
from tuner.space import BUDGET, CHUNK, SEQS, Knob, Point, Space

optuna.logging.set_verbosity(optuna.logging.WARNING)
DIRECTIONS = ["maximize", "minimize"]
SMALL = Space(knobs=(Knob(name=BUDGET, levels=(64, 256, 1024)), Knob(name=SEQS, levels=(16, 128, 512)),
                     Knob(name=CHUNK, levels=(128, 512, 0))))  # fmt: skip
WIDE = Space(knobs=(Knob(name=BUDGET, levels=tuple(2**at for at in range(8, 15))),
                    Knob(name=SEQS, levels=tuple(2**at for at in range(3, 11))),
                    Knob(name=CHUNK, levels=(*(2**at for at in range(6, 13)), 0))))  # fmt: skip


def asked(study: optuna.Study, space: Space) -> tuple[optuna.Trial, Point]:
    trial = study.ask()
    return trial, {knob.name: trial.suggest_categorical(knob.name, knob.levels) for knob in space.knobs}


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 99), st.sets(st.integers(0, 40), max_size=6), st.sets(st.integers(0, 40), max_size=3), st.booleans())
def test_every_configuration_is_proposed_once_before_the_end(seed: int, open_: set[int], failed: set[int], endless: bool) -> None:
    """Whatever becomes of the trials: some are still under way, some failed, some cost without end, many come to the same."""
    study = optuna.create_study(directions=DIRECTIONS, sampler=FrontSampler(SMALL, seed, DIRECTIONS))
    seen: list[tuple[Any, ...]] = []
    with pytest.raises(LookupError, match="was tried"):
        for number in range(100):
            trial, point = asked(study, SMALL)
            assert SMALL.broken(point) is None
            seen.append(tuple(point.values()))
            if number in failed:
                study.tell(trial, state=TrialState.FAIL)
            elif number not in open_:
                study.tell(trial, [point[BUDGET] // 512, math.inf if endless and point[SEQS] == 16 else point[SEQS] // 200])
    assert len(seen) == len(set(seen)) == len(list(SMALL.points()))


def test_what_is_proved_to_come_to_the_same_is_not_proposed() -> None:
    sampler = FrontSampler(SMALL, 1, DIRECTIONS, known=lambda trials, point: point[CHUNK] != 0)
    study = optuna.create_study(directions=DIRECTIONS, sampler=sampler)
    found = []
    with pytest.raises(LookupError):
        for _ in range(30):
            trial, point = asked(study, SMALL)
            found.append(point)
            study.tell(trial, [point[BUDGET], point[SEQS]])
    assert {tuple(point.values()) for point in found} == {tuple(p.values()) for p in SMALL.points() if p[CHUNK] == 0}


def both(point: Point) -> tuple[float, float]:
    """What grows with one knob costs by another; the middle of the third is best for both."""
    budget, seqs = math.log2(point[BUDGET]), math.log2(point[SEQS])
    cap = math.log2(point[CHUNK] or point[BUDGET])
    good = 10 * math.exp(-(((budget - 11) / 3) ** 2) - ((cap - 9) / 4) ** 2) * (1 - math.exp(-point[SEQS] / 60))
    return good, 1 + (seqs / 4) ** 2 + 0.3 * abs(budget - 9) + 0.2 * abs(cap - 7)


def dominated(values: list[tuple[float, float]]) -> float:
    """The area that is worse than one of ``values``, down to nothing and to a cost of 10."""
    area, last = 0.0, 10.0
    for good, cost in sorted(values, key=lambda pair: -pair[0]):
        if cost < last:
            area, last = area + good * (last - cost), cost
    return area


def area_after(n: int, sampler: BaseSampler, least: float = 0.0) -> float:
    study, found = optuna.create_study(directions=DIRECTIONS, sampler=sampler), list[tuple[float, float]]()
    while len(found) < n:
        trial, point = asked(study, WIDE)
        if WIDE.broken(point) is None:
            found.append(both(point))
            trial.set_constraint("attainment", least - found[-1][0])
            study.tell(trial, list(found[-1]))
        else:
            study.tell(trial, state=TrialState.FAIL)
    return dominated([each for each in found if each[0] >= least])


def test_a_front_is_found_in_half_of_what_random_search_takes() -> None:
    ours = statistics.median(area_after(25, FrontSampler(WIDE, seed, DIRECTIONS)) for seed in range(7))
    random = statistics.median(area_after(50, RandomSampler(seed=seed)) for seed in range(7))
    assert ours >= random, (ours, random)


def test_a_front_is_looked_for_where_the_constraint_is_kept() -> None:
    """Half of what is attained at best is asked for; what has less is no part of the answer, however cheap."""
    ours = statistics.median(area_after(25, FrontSampler(WIDE, seed, DIRECTIONS), least=5.0) for seed in range(7))
    random = statistics.median(area_after(50, RandomSampler(seed=seed), least=5.0) for seed in range(7))
    assert ours >= random, (ours, random)


def test_a_proposal_depends_on_the_trials_alone() -> None:
    study = optuna.create_study(directions=DIRECTIONS, sampler=FrontSampler(WIDE, 5, DIRECTIONS))
    sampler = FrontSampler(WIDE, 5, DIRECTIONS)
    for number in range(16):
        trials = study.get_trials(deepcopy=False)
        trial, point = asked(study, WIDE)
        assert sampler.propose(trials, np.random.default_rng([5, number])) == point
        study.tell(trial, list(both(point)))
