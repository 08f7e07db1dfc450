"""Which point is tried next: an Optuna sampler over a ``Space``.

First the study's queued points (the current policy, the engine's defaults); then the two knobs that share an iteration between
prompts and decodes, the first alone at the lower quartile of its levels, then both: there, or lower still where after the first
it is decodes that miss their SLO; everything else as it is. Or, where there are no such knobs, a few points that lie far from
all others. Then where Gaussian processes expect the most improvement.
A point that was tried, is being tried, is no configuration, or is proved to come to what another came to is never proposed.
Points that are being tried count as what is expected of them, so that workers side by side do not crowd.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from tuner.objective import ATTAINED
from tuner.space import BUDGET, CHUNK, SEQS, Point, Space
from tuner.surrogate import Floats, Product, encode, expected_improvement

__all__ = [
    "BETWEEN", "FULL", "PARTS", "PointSampler", "distributions_of", "estimated_value", "first_moves",
    "point_of_trial",
]  # fmt: skip

MOST = 4096
"""Spaces of up to so many combinations are looked at whole; of larger ones random points and the best ones' neighbours."""
SPREAD_OUT = 3
LOW, LOWER, LOWEST = 0.25, 0.1, 0.0
"""Where the first moves go: this far up a knob's levels; the lower two where decodes still wait most after the first of them."""
BETWEEN, BEFORE = ("itl", "stall", "tpot"), "ttft"
"""Parts of an SLO that long iterations miss, and the one that a queue of prompts misses."""
HOPELESS = 0.15
"""So far below the best all points are alike."""
Known = Callable[[Sequence[FrozenTrial], Point], bool]
FULL = "full_value"
"""Attribute of a pruned trial: what it would have come to, judged by the best trial on the same windows."""
PARTS = "parts"
"""Attribute of a trial whose value is its attainment over time: ``objective.parts_met``."""


def distributions_of(space: Space) -> dict[str, BaseDistribution]:
    """Every knob as Optuna knows it."""
    return {knob.name: CategoricalDistribution(knob.levels) for knob in space.knobs}


def point_of_trial(trial: FrozenTrial) -> Point:
    """The point that a trial tries."""
    return dict(trial.params)


def estimated_value(trial: FrozenTrial) -> float | None:
    """A trial's value; of a pruned one what it would have come to. ``None`` where nothing is known."""
    if trial.state == TrialState.COMPLETE and trial.values:
        return float(trial.values[0])
    value = trial.user_attrs.get(FULL)
    return None if value is None else float(value)


class PointSampler(BaseSampler):
    """Deterministic for a seed and the trials that are there. ``excluded``: points that are no configuration. ``known``: whether
    a point is proved to come to what one of the trials came to (``Proofs.known``)."""

    def __init__(self, space: Space, seed: int, sign: float = 1.0, known: Known | None = None) -> None:
        self._space = space
        self._seed = seed
        self._sign = sign
        self._known = known
        self._all: list[Point] | None = list(space.points()) if space.size <= MOST else None
        self._codes = None if self._all is None else encode(space, self._all)
        self._marks = [_mark(point) for point in self._all or ()]
        self.excluded: list[Point] = []

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return distributions_of(self._space)

    def sample_relative(self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]) -> dict[str, Any]:
        others = [t for t in study.get_trials(deepcopy=False) if t.number != trial.number and t.params]
        return self.propose(others, np.random.default_rng([self._seed, trial.number]))

    def sample_independent(self, study: Study, trial: FrozenTrial, param_name: str,
                           param_distribution: BaseDistribution) -> Any:  # fmt: skip
        """Of a knob that a proposal does not have."""
        return self._space.knob(param_name).levels[0]

    def propose(self, trials: Sequence[FrozenTrial], rng: np.random.Generator) -> Point:
        """The next point. ``LookupError`` when every point was tried."""
        tried = [point_of_trial(trial) for trial in trials]
        left_out = {_mark(p) for p in (*tried, *self.excluded)}
        moves = first_moves(self._space, min(trials, key=lambda t: t.number).params, trials) if tried else []
        for point in moves:
            if _mark(point) not in left_out and not self._proved(trials, point):
                return point
        values = self.heights(trials)
        candidates, codes = self._candidates(values, rng, left_out)
        if len(values) < 2 or len(tried) < self.at_first(moves):
            order = self.anywhere(codes, tried, rng) if candidates else []
        else:
            order = self.by_gain(trials, values, codes, rng) if candidates else []
        for at in order:
            if not self._proved(trials, candidates[at]):
                return candidates[at]
        raise LookupError("every configuration of the space was tried")

    def heights(self, trials: Sequence[FrozenTrial]) -> list[tuple[FrozenTrial, float]]:
        """Trials of which it is known what they come to, and how good that is: more is better."""
        values = [(t, v) for t in trials if (v := estimated_value(t)) is not None and np.isfinite(v)]
        return [(trial, self._sign * value) for trial, value in values]

    def _proved(self, trials: Sequence[FrozenTrial], point: Point) -> bool:
        return self._known is not None and self._known(trials, point)

    def at_first(self, moves: Sequence[Point]) -> int:
        """So many trials, the current policy's among them, are not chosen by what is expected of them."""
        return 1 + len(moves) if moves else 2 + SPREAD_OUT

    def anywhere(self, codes: Floats, tried: Sequence[Point], rng: np.random.Generator) -> list[int]:
        """Candidates as long as hardly anything is known: those first that are far from all that was tried."""
        return _farthest(codes, encode(self._space, tried) if tried else codes[:0], rng)

    def by_gain(self, trials: Sequence[FrozenTrial], values: Sequence[tuple[FrozenTrial, float]], codes: Floats,
                 rng: np.random.Generator) -> list[int]:  # fmt: skip
        """Candidates by the improvement that is expected of them."""
        x = encode(self._space, [point_of_trial(t) for t, _ in values])
        y = np.array([value for _, value in values])
        shares = _shares(values, float(y.max()))
        if shares is None:
            y = np.maximum(y, y.max() - HOPELESS * abs(y.max()))  # how bad the hopeless ones are does not matter
            shares = np.ones((len(y), 0))
        else:
            y = y / y.max() * max(t.user_attrs[PARTS][ATTAINED] for t, _ in values if t.state == TrialState.COMPLETE)
        model = Product(x, shares, y, rng)
        done = {t.number for t, _ in values}
        waiting = [point_of_trial(t) for t in trials if t.number not in done and t.state == TrialState.RUNNING]
        if waiting:
            model.expect(encode(self._space, waiting))
        gain = expected_improvement(*model.predict(codes), float(y.max()))
        found: list[int] = np.argsort(-gain, kind="stable").tolist()
        return found

    def _candidates(self, values: Sequence[tuple[FrozenTrial, float]], rng: np.random.Generator,
                    left_out: set[tuple[Any, ...]]) -> tuple[list[Point], Floats]:  # fmt: skip
        if self._all is not None and self._codes is not None:
            free = [at for at, mark in enumerate(self._marks) if mark not in left_out]
            return [self._all[at] for at in free], self._codes[free]
        space = self._space
        found: dict[tuple[Any, ...], Point] = {}
        for trial, _ in sorted(values, key=lambda pair: -pair[1])[:6]:
            found |= {_mark(moved): moved for _, _, moved in space.neighbours(point_of_trial(trial))}
        for levels in zip(*(rng.integers(0, len(k.levels), MOST // 2) for k in space.knobs), strict=True):
            point = space.active({k.name: k.levels[int(at)] for k, at in zip(space.knobs, levels, strict=True)})
            if space.broken(point) is None:
                found[_mark(point)] = point
        points = [point for mark, point in found.items() if mark not in left_out]
        return points, encode(space, points) if points else np.zeros((0, 1))


def _mark(point: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(sorted((name, str(level)) for name, level in point.items()))


def _shares(values: Sequence[tuple[FrozenTrial, float]], best: float) -> Floats | None:
    """Shares of the requests that met each part of the SLO, ``[trials, parts]``; ``None`` where a trial does not say, or none is
    good."""
    parts: list[dict[str, float] | None] = [t.user_attrs.get(PARTS) for t, _ in values]
    whole = any(t.state == TrialState.COMPLETE for t, _ in values)
    if best <= 0 or not whole or any(part is None or set(part) != set(parts[0] or ()) for part in parts):
        return None
    names = sorted(set(parts[0] or ()) - {ATTAINED})
    return np.array([[part[name] for name in names] for part in parts if part is not None], np.float64)


def _farthest(codes: Floats, tried: Floats, rng: np.random.Generator) -> list[int]:
    """64 random candidates, those first that are farthest from all that was tried; then the others."""
    some = rng.permutation(len(codes))
    if len(tried):
        first = some[:64]
        nearest = ((codes[first][:, None, :] - tried[None, :, :]) ** 2).sum(-1).min(1)
        some = np.concatenate([first[np.argsort(-nearest, kind="stable")], some[64:]])
    found: list[int] = some.tolist()
    return found


def first_moves(space: Space, current: Mapping[str, Any], trials: Sequence[FrozenTrial] = ()) -> list[Point]:
    """The token budget alone at the lower quartile of its levels, then the cap on a chunk too; as many sequences as the
    current policy has, or as fit. Where ``trials`` show that with the first of them it is still decodes that miss their SLO most,
    the budget goes lower, with the lowest cap, and then with that of the quartile. What is no point of the space, or no change,
    is left out."""
    alone = _lowered(space, current, {BUDGET: LOW})
    if alone is not None and _decodes_wait(trials, alone):
        then = [{BUDGET: LOWER, CHUNK: LOWEST}, {BUDGET: LOWER, CHUNK: LOW}]
    else:
        then = [{BUDGET: LOW, CHUNK: LOW}]
    moves: list[Point] = []
    for moved in (alone, *(_lowered(space, current, places) for places in then)):
        if moved is not None and moved != current and moved not in moves:
            moves.append(moved)
    return moves


def _lowered(space: Space, current: Mapping[str, Any], places: Mapping[str, float]) -> Point | None:
    """The current point with the knobs of ``places`` so far up their levels; ``None`` where there is no such point."""
    if not all(name in space.names and name in current for name in places):
        return None
    levels = {name: space.knob(name).levels for name in places}
    point = {**current, **{name: each[round(places[name] * (len(each) - 1))] for name, each in levels.items()}}
    if SEQS in point and point[SEQS] > point[BUDGET]:
        fitting = [level for level in space.knob(SEQS).levels if level <= point[BUDGET]]
        point[SEQS] = max(fitting, default=point[SEQS])
    if point.get(CHUNK, 0) >= point[BUDGET] and CHUNK not in places:
        point[CHUNK] = 0
    moved = space.active(point)
    whole = all(level in space.knob(name).levels for name, level in moved.items())
    return moved if whole and space.broken(moved) is None else None


def _decodes_wait(trials: Sequence[FrozenTrial], point: Point) -> bool:
    """Whether a trial of the point shows that gaps between tokens miss their limits more often than first tokens theirs."""
    for trial in trials:
        if _mark(trial.params) == _mark(point) and (met := trial.user_attrs.get(PARTS)) is not None:
            return bool(min((met[part] for part in BETWEEN if part in met), default=1.0) < met.get(BEFORE, 1.0))
    return False
