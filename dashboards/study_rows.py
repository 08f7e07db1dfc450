"""What the Tuner page says of a study: the search so far, what its trials trade, and why its answer may be believed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.experiments.knobs import knob_text
from tracekit.metrics.slo import SloTable
from tracekit.studies import Objective, Study, Trial

__all__ = [
    "Effect",
    "Front",
    "History",
    "KnobLevels",
    "Step",
    "best_of",
    "effects_of",
    "front_of",
    "gains_of",
    "history_of",
    "level_mark",
    "levels_of",
    "steps_of",
    "trial_numbers",
    "winner_of",
]

CLIFF = 0.9
"""A neighbour that keeps less than this of the recommendation's value is a cliff (``docs/tuner.md``)."""
_TAILS = {"ttft": ("ttft_p99", "TTFT P99"), "tpot": ("tpot_p99", "TPOT P99"), "stall": ("longest_gap_p99", "longest gap P99"),
          "e2e": ("e2e_p99", "E2E P99")}  # fmt: skip
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class History(NamedTuple):
    """Trials in the order of their numbers. ``value``: by the first objective, of a pruned trial what it would have come to,
    NaN of a failed one. ``best``: best completed so far, NaN before the first. ``current``: of the current policy (trial 0)."""

    trial: Ints
    value: Floats
    state: tuple[str, ...]
    best: Floats
    current: float | None
    objective: Objective


class Front(NamedTuple):
    """What trials trade: two figures each (seconds, or an objective's unit). ``limits``: the SLO's on either, where it has one.
    ``inside``: within the limits there are, and the constraints. ``front``: no other trial is as good in both and better in
    one."""

    names: tuple[str, str]
    units: tuple[str, str]
    limits: tuple[float | None, float | None]
    upwards: tuple[bool, bool]
    trial: Ints
    x: Floats
    y: Floats
    inside: npt.NDArray[np.bool_]
    front: npt.NDArray[np.bool_]
    left_out: int


class KnobLevels(NamedTuple):
    """A knob's levels with the best and the median value of the trials there, and how many they are. ``chosen``, ``current``:
    which level the recommendation and the current policy have."""

    knob: str
    levels: tuple[str, ...]
    best: tuple[float | None, ...]
    median: tuple[float | None, ...]
    n: tuple[int, ...]
    chosen: int | None
    current: int | None


class Step(NamedTuple):
    """One knob one step from the recommendation. ``ratio``: its value over the recommendation's; above 1 is better."""

    knob: str
    level: str
    step: int
    ratio: float
    cliff: bool


class Effect(NamedTuple):
    """A gain in SLO-goodput, as a share (0.1: 10 %), with its interval; ``n`` windows. ``reason``: why there is none."""

    group: str
    label: str
    estimate: float | None
    low: float | None
    high: float | None
    n: int
    requests: int
    reason: str | None = None


def history_of(study: Study) -> History:
    """Never empty of fields; arrays are, where no trial has ended."""
    first, trials = study.objectives[0], study.trials
    value = np.array([np.nan if t.estimate is None else t.estimate for t in trials], float)
    best, so_far = np.full(len(trials), np.nan), None
    for at, trial in enumerate(trials):
        if _counts(trial) and (so_far is None or first.better(trial.values[0], so_far)):
            so_far = trial.values[0]
        best[at] = np.nan if so_far is None else so_far
    current = next((t.values[0] for t in trials if t.number == 0 and t.values), None)
    return History(trial_numbers(trials), value, tuple(t.state for t in trials), best, current, first)


def best_of(study: Study) -> Trial | None:
    """The best completed trial within the constraints, by the first objective; the earliest of equals."""
    found = None
    for trial in study.trials:
        if _counts(trial) and (found is None or study.objectives[0].better(trial.values[0], found.values[0])):
            found = trial
    return found


def front_of(study: Study) -> Front | None:
    """Several objectives against each other, else the two tails that the SLO limits, else the one and the objective. ``None``
    where no trial has both."""
    sides = _sides(study)
    rows = [(t.number, *(side.of(t) for side in sides), t.feasible) for t in study.trials if t.state == "complete"]
    kept = [row for row in rows if row[1] is not None and row[2] is not None]
    if not kept:
        return None
    x, y = (np.array([row[at] for row in kept], float) for at in (1, 2))
    inside = np.array([row[3] for row in kept], bool)
    for side, values in zip(sides, (x, y), strict=True):
        if side.limit is not None:
            inside &= values <= side.limit
    better = [values * (-1.0 if side.upwards else 1.0) for side, values in zip(sides, (x, y), strict=True)]
    return Front(
        names=(sides[0].name, sides[1].name),
        units=(sides[0].unit, sides[1].unit),
        limits=(sides[0].limit, sides[1].limit),
        upwards=(sides[0].upwards, sides[1].upwards),
        trial=np.array([row[0] for row in kept], np.int64),
        x=x,
        y=y,
        inside=inside,
        front=_not_dominated(*better),
        left_out=len(rows) - len(kept),
    )


def levels_of(study: Study) -> tuple[KnobLevels, ...]:
    """Every knob of the space; values are those of completed trials, pruned ones by what they would have come to."""
    chosen = winner_of(study)
    maximised = study.objectives[0].direction == "maximize"
    found = []
    for knob in study.knobs:
        values: list[list[float]] = [[] for _ in knob.levels]
        places = {level_mark(level): at for at, level in enumerate(knob.levels)}
        for trial in study.trials:
            at = places.get(level_mark(trial.point.get(knob.name)))
            if at is not None and trial.estimate is not None and trial.feasible:
                values[at].append(trial.estimate)
        best = tuple((max(own) if maximised else min(own)) if own else None for own in values)
        median = tuple(float(np.median(own)) if own else None for own in values)
        marks = (places.get(level_mark(point.get(knob.name))) for point in (chosen, study.current))
        labels = tuple(knob_text(level) for level in knob.levels)
        found.append(KnobLevels(knob.name, labels, best, median, tuple(map(len, values)), *marks))
    return tuple(found)


def steps_of(study: Study) -> tuple[Step, ...]:
    """The recommendation's neighbours as the answer has them; empty without an answer."""
    rows = (study.answer or {}).get("neighbours", ())
    return tuple(Step(r["knob"], knob_text(r["level"]), r["step"], r["ratio"], r["cliff"]) for r in rows)


def gains_of(study: Study) -> tuple[Effect, ...]:
    """The gain on windows held out, then under other conditions and on other traces."""
    answer = study.answer or {}
    pairs: list[tuple[str, str, Mapping[str, Any] | None]] = []
    if answer.get("gain") is not None:
        pairs.append(("held out", "over the current policy", answer["gain"]))
        pairs.append(("held out", "over the engine's defaults", answer.get("gain_over_defaults")))
    pairs += [("other conditions", row["case"], row["gain"]) for row in answer.get("robustness", ())]
    pairs += [("other traces", row["trace"], row["gain"]) for row in answer.get("also", ())]
    return tuple(_effect(group, label, gain, None) for group, label, gain in pairs)


def effects_of(study: Study) -> tuple[Effect, ...]:
    """The ablation: the current policy with one change, the winner without one."""
    ablation = (study.answer or {}).get("ablation", {})
    titles = {"plus": "the current policy with it", "minus": "the winner without it"}
    return tuple(
        _effect(titles[kind], f"{row['knob']}={knob_text(row['level'])}", row["gain"], row["reason"])
        for kind in titles
        for row in ablation.get(kind, ())
    )


class _Side(NamedTuple):
    """One figure of a trial that the front is drawn over."""

    name: str
    unit: str
    limit: float | None
    upwards: bool
    tail: str | None
    objective: int

    def of(self, trial: Trial) -> float | None:
        if self.tail is None:
            return trial.values[self.objective] if self.objective < len(trial.values) else None
        value = trial.tails_ns.get(self.tail)
        return None if value is None else value / 1e9


def _sides(study: Study) -> tuple[_Side, _Side]:
    own = [_Side(o.name, o.unit, None, o.direction == "maximize", None, at) for at, o in enumerate(study.objectives)]
    if len(own) > 1:
        return own[0], own[1]
    table = SloTable.from_dict(dict(study.slo))
    limits = {part: None if table.default is None else table.default.limit(part) for part in table.given() if part in _TAILS}
    tails = [
        _Side(f"{_TAILS[part][1]}, worst window", "s", None if limit is None else limit / 1e9, False, _TAILS[part][0], 0)
        for part, limit in limits.items()
    ]
    tails += [_Side("TTFT P99, worst window", "s", None, False, "ttft_p99", 0)] if not tails else []
    return (tails[0], tails[1]) if len(tails) > 1 else (tails[0], own[0])


def _not_dominated(x: Floats, y: Floats) -> npt.NDArray[np.bool_]:
    """Where less is better in both: nobody is as good in both and better in one."""
    order = np.lexsort((y, x))
    found = np.zeros(len(x), bool)
    lowest, at_x = np.inf, np.nan
    for i in order:
        if y[i] < lowest or (y[i] == lowest and x[i] == at_x):
            found[i] = True
            lowest, at_x = y[i], x[i]
    return found


def _effect(group: str, label: str, gain: Mapping[str, Any] | None, reason: str | None) -> Effect:
    if gain is None:
        return Effect(group, label, None, None, None, 0, 0, reason or "not known")
    why = reason or ("the current policy met nothing" if gain["estimate"] is None else None)
    return Effect(group, label, gain["estimate"], gain["low"], gain["high"], gain["n"], gain["requests"], why)


def winner_of(study: Study) -> dict[str, Any]:
    """The point that the answer takes, else that of the best trial so far."""
    answer = study.answer or {}
    if "winner" in answer:
        return dict(answer["winner"]["point"])
    best = best_of(study)
    return {} if best is None else dict(best.point)


def _counts(trial: Trial) -> bool:
    return trial.state == "complete" and trial.feasible and bool(trial.values)


def trial_numbers(trials: Any) -> Ints:
    """Their numbers, in their order."""
    return np.array([trial.number for trial in trials], np.int64)


def level_mark(level: Any) -> str:
    """A level as a key: 1 and true are two."""
    return f"{type(level).__name__}:{level}"
