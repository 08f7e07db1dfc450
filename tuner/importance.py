"""Which knobs matter over the whole space, as far as the trials of a study tell, and whether they tell it at all.

A Gaussian process is fitted to the trials (pruned ones at what they would have come to), and asked how much a value varies, on
average over the space, when one knob alone takes its levels: the knob's total effect. Whether that means anything is asked first:
each trial is predicted from all the others, and what share of their differences that explains (R2, at most 1) has to reach
``TOLD``. A few trials, or trials that differ by luck, predict nothing of one another, and then no share is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from optuna.trial import FrozenTrial

from tuner.proposing import estimated_value, point_of_trial
from tuner.space import Point, Space
from tuner.surrogate import Surrogate, encode

__all__ = ["TOLD", "Importance", "importance_of"]

TOLD = 0.6
"""R2 of predicting each trial from the others below which nothing is said."""
EACH = 4
"""So many trials for each knob, or more: fewer predict one another by luck (of 9 for three knobs one study in ten)."""
LOOKED_AT = 128
"""Points of the space at which each knob is turned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Importance:
    """``shares`` by knob, which sum to 1, the largest first; empty where they cannot be told, and ``why``. ``n`` trials, ``r2``
    (``None``: too few to ask, or all alike)."""

    n: int
    r2: float | None = None
    shares: dict[str, float] = field(default_factory=dict)
    why: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """All but the shares."""
        return {"n": self.n, "r2": self.r2, "why": self.why}


def importance_of(space: Space, trials: Sequence[FrozenTrial], seed: int) -> Importance:
    """Of the first objective. Deterministic for a seed and the trials."""
    known = [(t, v) for t in trials if (v := estimated_value(t)) is not None and np.isfinite(v) and t.params]
    n = len(known)
    if n < EACH * len(space.knobs):
        return Importance(n=n, why=f"{n} trials are too few for {len(space.knobs)} knobs")
    y = np.array([value for _, value in known])
    if float(y.std()) <= 1e-9 * max(float(np.abs(y).max()), 1e-300):
        return Importance(n=n, why=f"all {n} trials come to the same")
    rng = np.random.default_rng([seed, n])
    model = Surrogate.fit(encode(space, [point_of_trial(t) for t, _ in known]), y, rng)
    left_out = model.left_out(y)
    r2 = round(1 - float(((left_out - y) ** 2).sum()) / float((((y - y.mean()) * n / (n - 1)) ** 2).sum()), 4)
    if r2 < TOLD:
        return Importance(n=n, r2=r2, why=f"{n} trials do not predict one another")
    points = _some_points(space, rng)
    if not points:
        return Importance(n=n, r2=r2, why="hardly any configuration of the space is possible")
    effects = _effects(space, model, points)
    total = sum(effects.values())
    if total <= 0:
        return Importance(n=n, r2=r2, why="no knob alone changes what is predicted")
    ranked = sorted(effects.items(), key=lambda pair: -pair[1])
    return Importance(n=n, r2=r2, shares={name: round(effect / total, 4) for name, effect in ranked})


def _some_points(space: Space, rng: np.random.Generator) -> list[Point]:
    found: list[Point] = []
    for _ in range(8 * LOOKED_AT):
        point = space.active({knob.name: knob.levels[int(rng.integers(len(knob.levels)))] for knob in space.knobs})
        if space.broken(point) is None:
            found.append(point)
        if len(found) == LOOKED_AT:
            break
    return found


def _effects(space: Space, model: Surrogate, points: Sequence[Point]) -> dict[str, float]:
    """By knob: the variance of what is predicted when it takes its levels, on average over ``points``."""
    turned: list[Point] = []
    groups: list[tuple[str, int]] = []
    for point in points:
        for knob in space.knobs:
            moved = [space.completed({**point, knob.name: level}, point) for level in knob.levels if knob.name in point]
            fitting = [each for each in moved if space.broken(each) is None]
            groups.append((knob.name, len(fitting)))
            turned += fitting
    values, at = model.predict(encode(space, turned))[0], 0
    found = {knob.name: 0.0 for knob in space.knobs}
    for name, size in groups:
        found[name] += float(values[at : at + size].var()) if size else 0.0
        at += size
    return found
