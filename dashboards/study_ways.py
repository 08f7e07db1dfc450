"""Trials of a study one by one: as lines over all knobs at once, and as rows of a grid."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dashboards.study_rows import level_mark, trial_numbers, winner_of
from dashboards.words import short
from tracekit.experiments.knobs import knob_text
from tracekit.studies import Study

__all__ = ["Axis", "Ways", "trial_rows", "ways_of"]

MOST_WAYS = 2000
"""Trials drawn as lines; of more the best."""
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Axis(NamedTuple):
    """An axis of the parallel coordinates: a knob, or the value. ``at``: where its ``ticks`` stand, 0 to 1."""

    name: str
    ticks: tuple[str, ...]
    at: tuple[float, ...]


class Ways(NamedTuple):
    """Trials as lines over axes. ``place``: of shape (trials, axes), 0 to 1, NaN where a knob means nothing in a trial.
    ``best``: the best tenth. ``chosen``: the row of the recommendation's trial."""

    axes: tuple[Axis, ...]
    trial: Ints
    place: Floats
    best: npt.NDArray[np.bool_]
    chosen: int | None
    left_out: int


def ways_of(study: Study) -> Ways | None:
    """``None`` where fewer than two trials have a value."""
    first = study.objectives[0]
    sign = 1.0 if first.direction == "maximize" else -1.0
    trials = sorted((t for t in study.trials if t.estimate is not None), key=lambda t: -sign * (t.estimate or 0.0))
    if len(trials) < 2:
        return None
    kept = trials[:MOST_WAYS]
    axes, places = [], []
    for knob in study.knobs:
        at = {
            level_mark(level): place
            for level, place in zip(knob.levels, np.linspace(0, 1, max(len(knob.levels), 2)), strict=False)
        }
        axes.append(Axis(knob.name, tuple(map(knob_text, knob.levels)), tuple(map(float, at.values()))))
        places.append([at.get(level_mark(t.point.get(knob.name)), np.nan) for t in kept])
    value = np.array([t.estimate for t in kept], float)
    low, high = float(value.min()), float(value.max())
    spread = (high - low) or 1.0
    ticks = tuple(short(low + share * spread, 4) for share in (0, 0.25, 0.5, 0.75, 1))
    axes.append(Axis(f"{first.name}, {first.unit}", ticks, (0.0, 0.25, 0.5, 0.75, 1.0)))
    places.append(list((value - low) / spread))
    winner = winner_of(study)
    chosen = next((at for at, t in enumerate(kept) if winner and dict(t.point) == winner), None)
    best = np.arange(len(kept)) < max(len(kept) // 10, 1)
    return Ways(tuple(axes), trial_numbers(kept), np.array(places, float).T, best, chosen, len(trials) - len(kept))


def trial_rows(study: Study) -> list[dict[str, Any]]:
    """One row a trial, plain values, for the grid; times in seconds."""
    rows = []
    for t in study.trials:
        tails = {name: None if value is None else value / 1e9 for name, value in t.tails_ns.items()}
        knobs = {
            f"k{at}": None if knob.name not in t.point else knob_text(t.point[knob.name]) for at, knob in enumerate(study.knobs)
        }
        row = {
            "id": str(t.number),
            "trial": t.number,
            "state": t.state,
            "role": t.role or "",
            "value": t.estimate,
            "attainment": t.attainment,
        }
        rows.append({**row, **tails, "windows": t.windows, **knobs, "reason": t.reason or ""})
    return rows
