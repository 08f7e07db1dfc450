"""Which of the best configurations is taken: one on a plateau, nearest to the current policy, rather than the highest peak.

The neighbours of the best few, one step of one knob away, are replayed on the windows of the search. A neighbour that loses more
than a tenth is a cliff, and is named. Configurations within a hundredth of the best whose paired difference from it is within the
noise cannot be told apart: of them those without a cliff come first, then the one that changes least. Where each of them has a
cliff beside it, and no step back leads away from it, the one that changes least is taken: a cliff that is less steep by a little
is no reason to change more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from tracekit.experiments.intervals import paired_interval
from tracekit.experiments.knobs import knob_text
from tuner.cells import Result
from tuner.lookup import Lookup
from tuner.proposing import point_of_trial
from tuner.space import Point

__all__ = ["CLIFF", "Candidate", "Neighbour", "choose", "neighbours_of"]

CLIFF = 0.10
ALIKE = 0.01
BACK = 0.02
"""What a step back from a cliff may cost."""
LOOKED_AT = 4
"""Candidates whose neighbours are replayed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """One step of one knob from a candidate. ``ratio``: its value over the candidate's, above 1 is better."""

    knob: str
    step: int
    level: Any
    ratio: float

    @property
    def cliff(self) -> bool:
        return self.ratio < 1 - CLIFF

    def text(self) -> str:
        return f"{self.knob} = {knob_text(self.level)}: {100 * (self.ratio - 1):+.1f} %"

    def to_dict(self) -> dict[str, Any]:
        return {"knob": self.knob, "step": self.step, "level": self.level, "ratio": self.ratio, "cliff": self.cliff}


@dataclass(slots=True, kw_only=True)
class Candidate:
    """A configuration with its value on the search windows and its neighbours. ``trial``: ``None`` for a neighbour of one.
    ``why``: of the one that is taken, what it has before those that come to the same."""

    point: Point
    value: float
    trial: int | None
    why: str = ""
    neighbours: list[Neighbour] = field(default_factory=list)

    @property
    def cliffs(self) -> list[Neighbour]:
        return [each for each in self.neighbours if each.cliff]


def choose(lookup: Lookup, trials: Sequence[FrozenTrial]) -> tuple[Candidate, list[Candidate]]:
    """The configuration to take, and those that cannot be told from it, in the order of preference. At least one trial must
    have completed."""
    plan = lookup.plan
    sign = 1 if plan.objectives[0].direction == "maximize" else -1
    done = [t for t in trials if t.state == TrialState.COMPLETE and t.values and all(v <= 0 for v in t.constraints.values())]
    done.sort(key=lambda t: (-sign * t.values[0], t.number))
    best = done[0]
    near = [t for t in done if abs(t.values[0] - best.values[0]) <= ALIKE * abs(best.values[0])]
    lookup.need(lookup.wants([point_of_trial(t) for t in near], "search"))
    alike = [t for t in near if _within_noise(lookup, best, t)]
    found = [Candidate(point=point_of_trial(t), value=t.values[0], trial=t.number) for t in alike]
    if not plan.objectives[0].rates:
        found += [c for c in _simplified(lookup, found[0]) if c.point not in [f.point for f in found]]
    found.sort(key=lambda c: (plan.space.distance(plan.current, c.point), -sign * c.value))
    looked = found[:LOOKED_AT]
    lookup.need(lookup.wants([point for each in looked for _, _, point in _moves(lookup, each)], "search"))
    for candidate in looked:
        candidate.neighbours = neighbours_of(lookup, candidate)
    taken = _preferred(lookup, looked)
    return taken, [taken, *(c for c in found if c is not taken)]


def _preferred(lookup: Lookup, looked: Sequence[Candidate]) -> Candidate:
    """Of candidates in the order of their distance; ``why`` is set."""
    taken = next((c for c in looked if not c.cliffs), None)
    if taken is None and (back := _a_step_back(lookup, looked)):
        back[0].why = "is one step back from a cliff"
        return back[0]
    taken = taken or looked[0]
    taken.why = "is nearest to the current policy" + ("" if taken is looked[0] else " of those without a cliff beside them")
    return taken


def _simplified(lookup: Lookup, best: Candidate) -> list[Candidate]:
    """The best without changes that bring nothing: each is taken back in turn, and stays so if hardly anything is lost."""
    plan, point, found = lookup.plan, best.point, []
    own = lookup.value(lookup.results(point, "search"))
    for name in best.point:
        if name not in plan.current or name not in point or point[name] == plan.current[name]:
            continue
        without = plan.space.completed({**point, name: plan.current[name]}, plan.current)
        if plan.space.broken(without) is not None or not lookup.derivable(without):
            continue
        lookup.need(lookup.wants([without], "search"))
        value = lookup.value(lookup.results(without, "search"))
        if abs(value - own) <= ALIKE * abs(own) or plan.objectives[0].better(value, own):
            point = without
            found.append(Candidate(point=point, value=value, trial=None))
    return found


def _a_step_back(lookup: Lookup, looked: Sequence[Candidate]) -> list[Candidate]:
    """Where every candidate stands beside a cliff: neighbours of the first that lose little and have none, the best first. Steps
    of a knob that has the cliff: what another knob does leaves the cliff where it is."""
    first, found = looked[0], []
    steep = {cliff.knob for cliff in first.cliffs}
    near = {(n.knob, n.step, n.level) for n in first.neighbours if n.ratio >= 1 - BACK and n.knob in steep}
    for knob, step, point in lookup.plan.space.neighbours(first.point):
        if (knob, step, point[knob]) not in near:
            continue
        candidate = Candidate(point=point, value=lookup.value(lookup.results(point, "search")), trial=None)
        candidate.neighbours = neighbours_of(lookup, candidate)
        if not candidate.cliffs:
            found.append(candidate)
    sign = 1 if lookup.plan.objectives[0].direction == "maximize" else -1
    return sorted(found, key=lambda c: -sign * c.value)


def _within_noise(lookup: Lookup, best: FrozenTrial, other: FrozenTrial) -> bool:
    if other.number == best.number:
        return True
    one, two = (_rates(lookup.results(point_of_trial(t), "search")) for t in (best, other))
    interval = paired_interval(one, two, "difference")
    return interval.low is None or interval.high is None or interval.low <= 0 <= interval.high


def _rates(results: Sequence[Result]) -> Any:
    return np.array([result["met"] / result["window_s"] for result in results])


def neighbours_of(lookup: Lookup, candidate: Candidate) -> list[Neighbour]:
    """One step of each knob, replayed on the search windows; steps that are no configuration are left out."""
    plan, moves = lookup.plan, _moves(lookup, candidate)
    lookup.need(lookup.wants([candidate.point, *(point for _, _, point in moves)], "search"))
    own = lookup.value(lookup.results(candidate.point, "search"))
    maximised = plan.objectives[0].rates or plan.objectives[0].direction == "maximize"
    found = []
    for knob, step, point in moves:
        value = lookup.value(lookup.results(point, "search"))
        ratio = (value / own if maximised else own / value) if own and value else float(value == own)
        found.append(Neighbour(knob=knob, step=step, level=point[knob], ratio=ratio))
    return found


def _moves(lookup: Lookup, candidate: Candidate) -> list[tuple[str, int, Point]]:
    """One step of each knob: knob, step, point."""
    return [move for move in lookup.plan.space.neighbours(candidate.point) if lookup.derivable(move[2])]
