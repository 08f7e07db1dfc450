"""Limits and switches tried by replay, one at a time, with the coefficients that were found so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from replay_engine.config import ConfigError
from replay_engine.policy import apply_set
from replay_engine.profile import Profile
from tracekit.calibration.observed.limits import Limit
from tracekit.calibration.observed.observations import COUNTING
from tracekit.calibration.observed.search import LONG, Problem, Trial, descend, promised

__all__ = ["ALONE", "Scan", "needed", "scan_near", "scan_plans", "scan_values"]

ALIKE = 0.02
"""Losses this close, as a share, tell nothing."""
HOPE, HOPELESS = 0.05, 3.0
"""How much worse, as a share, another way of counting may promise to be and is looked at; how many times as bad other settings
have to promise to be not to be looked at: there the schedule moves too."""
NEARBY = {"num_gpu_blocks": ((0.8, 0.88, 0.94, 1.06, 1.12, 1.25), (0.88, 0.94, 0.97, 1.03, 1.06), (0.97, 0.985, 1.015, 1.03),
                             (0.9925, 0.995, 1.005, 1.0075)),
          "max_num_seqs": ((0.94, 0.97, 0.985, 1.015, 1.03, 1.06),)}  # fmt: skip
"""Shares of the first guess that are tried, then of the best of those."""
PEAK = ((0.92, 0.94, 0.955, 0.97, 0.98, 0.985, 0.99, 0.995, 1.005, 1.01, 1.02), (0.9925, 0.995, 0.9975, 1.0025, 1.005, 1.0075))
"""The same around what was in use at its peak: a little more room, and the few who lost their place would have kept it."""
MOVES = 3
"""How often the last of them are tried again from where they led."""

ALONE: Mapping[str, object] = {}


@dataclass(slots=True, kw_only=True)
class Scan:
    """A problem and the best trial of it so far; ``limits`` what was decided on the way."""

    problem: Problem
    best: Trial
    profile: Profile
    limits: list[Limit]

    def under(self, knobs: Mapping[str, object], rounds: int) -> tuple[Problem, Trial] | None:
        """The same with other values of ``knobs``; with ``rounds`` the coefficients may follow. ``None``: it does not go."""
        try:
            sets = [f"{knob}={str(value).lower()}" for knob, value in knobs.items()]
            policy = apply_set(self.problem.replayer.policy, sets, self.profile)
            problem = replace(self.problem, replayer=self.problem.replayer.under(policy), scales=dict(self.problem.scales))
            trial = problem.trial(self.best.vector)
            if rounds:
                trial = min(trial, follow(problem, trial, rounds), key=lambda each: each.loss)
        except ConfigError:
            return None
        self.problem.replayer.count = max(self.problem.replayer.count, problem.replayer.count)
        return problem, trial


def follow(problem: Problem, trial: Trial, rounds: int, near: int = 0) -> Trial:
    """A few steps under new settings, judged by the old scales, so that losses can be compared."""
    scales, counting = dict(problem.scales), problem.counting
    found = descend(problem, trial.vector, rounds=rounds, near=near)
    problem.scales, problem.counting = scales, counting
    return problem.judged(found.vector, found.run)


def scan_near(
    scan: Scan, knob: str, start: int, note: str, told: Callable[[str], None] | None = None, *, peak: bool = False
) -> bool:
    """A count, from about ``start`` (``peak``: at most a little above what it is), where it explains more than the present
    settings do; whether it does."""
    before, centre = scan.best.loss if getattr(scan.problem.replayer.policy.scheduler, knob) != start else np.inf, start
    problem, best = scan.problem, scan.best
    rounds, moved = list(PEAK if peak else NEARBY[knob]), 0
    while rounds:
        factors, was = rounds.pop(0), centre
        tried: dict[int, tuple[Problem, Trial]] = {}
        for value in _counts(knob, centre, factors):
            found = scan.under({knob: value}, 0)
            if found is not None:
                tried[value] = found
        if not tried:
            break
        centre = min(tried, key=lambda value: tried[value][1].loss)
        problem, best = tried[centre]
        steps, near = (3, 0) if len(best.run.start) > LONG else (8, 4)  # most of what there is to gain comes first
        best = min(best, follow(problem, best, steps, near=near), key=lambda each: each.loss)
        if best.loss > before * (1 - ALIKE):
            return False
        problem, best = _recounted(problem, best)
        best = problem.rescaled(best)  # nearer than before: finer differences count
        scan.problem, scan.best, before = problem, best, np.inf
        if told is not None:
            told(f"{knob} = {centre}")
        if not rounds and centre != was and moved < MOVES:  # downhill: it goes on as long as it goes down
            rounds, moved = [factors], moved + 1
    scan.limits.append(Limit(knob=knob, value=centre, known="by replay", note=note))
    return True


def scan_plans(scan: Scan) -> None:
    """Whether plans are made an iteration ahead. No default to stand by, since it changed from release to release; and who waited
    how long follows from it and from the way of counting together, so that each is tried by each way."""
    scan.problem, scan.best = _recounted(scan.problem, scan.best)
    scan_values(scan, "async_scheduling", (True, False), rounds=6, margin=0.0, then=_recounted)


def _recounted(problem: Problem, best: Trial) -> tuple[Problem, Trial]:
    """The way of counting was chosen under other settings: whether another one explains more now. One that promises nothing on
    the schedule as it is gets no replays."""
    found = [(problem, best)]
    for way in COUNTING:
        if way != best.misfit.counting:
            own = replace(problem, counting=way, scales=dict(problem.scales))
            begun = own.judged(best.vector, best.run)
            if promised(own, begun) <= best.loss * (1 + HOPE):
                found.append((own, follow(own, begun, 8, near=4)))
    return min(found, key=lambda each: each[1].loss)


def needed(scan: Scan, knob: str, roomy: int) -> bool:
    """Whether the value found for ``knob`` explains more than ``roomy``, which binds nobody; coefficients may follow."""
    found = scan.under({knob: roomy}, 0)
    if found is not None and promised(*found) <= scan.best.loss * HOPELESS:
        found = scan.under({knob: roomy}, 8)
    if found is None or found[1].loss > scan.best.loss * (1 + ALIKE):
        return True
    scan.problem, scan.best = found
    scan.limits = [limit for limit in scan.limits if limit.knob != knob]
    return False


def _counts(knob: str, centre: int, factors: Sequence[float]) -> list[int]:
    """Values around ``centre``; of seats also the nearest powers of two and multiples of 8, which people prefer."""
    values = {max(round(centre * factor), 2) for factor in (1.0, *factors)}
    if knob == "max_num_seqs":
        values |= {max(8 * round(centre / 8), 2), *(n for n in (1 << k for k in range(1, 15)) if 0.9 < n / centre < 1.1)}
    return sorted(values)


def scan_values(
    scan: Scan, knob: str, values: Sequence[object], rounds: int = 0, margin: float = ALIKE, beside: Mapping[str, object] = ALONE,
    then: Callable[[Problem, Trial], tuple[Problem, Trial]] | None = None,
) -> None:  # fmt: skip
    """Each of ``values`` (the present one among them or not); kept unless another leaves less by ``margin``, a share. Each is
    also tried with the values of ``beside``, where those bear on what ``knob`` has to explain."""
    present = getattr(scan.problem.replayer.policy.scheduler, knob)
    losses, chosen = {present: scan.best.loss}, (scan.problem, scan.best)
    for value in values:
        for besides in (ALONE, beside) if beside else (ALONE,):
            found = None if value == present and not besides else scan.under({knob: value, **besides}, rounds)
            if found is not None:
                found = found if then is None else then(*found)
                losses[value] = min(found[1].loss, losses.get(value, np.inf))
                if found[1].loss < chosen[1].loss:
                    chosen = found
    best = min(losses, key=lambda value: losses[value])
    if (best != present or chosen[1] is not scan.best) and chosen[1].loss < scan.best.loss * (1 - margin):
        scan.problem, scan.best = chosen
    else:
        best = present
    alike = [value for value, loss in losses.items() if value != best and loss <= losses[best] * (1 + ALIKE)]
    others = ", ".join(str(value) for value in alike)
    words = f"{others} would fit as well: nothing here tells them apart" if alike else "the others leave more error"
    scan.limits = [limit for limit in scan.limits if limit.knob != knob]
    scan.limits.append(Limit(knob=knob, value=best, known="alike" if alike else "by replay", note=words))
