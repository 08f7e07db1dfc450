"""The answer of a study: what to set, what it brings on windows that were not searched, and why it may be believed.

Everything here is replayed, none of it is a guess of a model: the neighbours of the winner, each change alone and the winner
without each, other rates, a profile that is off, other traces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from replay_engine.config import ConfigError
from replay_engine.policy import Policy, as_vllm_flags
from tracekit.errors import TracekitError
from tracekit.experiments.knobs import differing, flat_policy, knob_text
from tuner.cells import Result
from tuner.gains import Gain, gain_of
from tuner.importance import Importance, importance_of
from tuner.lookup import SIDES, Lookup, Want
from tuner.plateau import Candidate, choose
from tuner.questions import findings_at, losers_by
from tuner.search import evaluate
from tuner.space import Point
from tuner.study import TuneStudy

__all__ = ["Answer", "Change", "find_answer"]

WORTH = 0.01
"""A gain below this is no reason to change a running service."""
PROFILE_ERROR = 0.10
"""How far a profile is off that does not say how far it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A knob's change from the current policy; ``derived``: it follows from the others."""

    knob: str
    old: Any
    new: Any
    derived: bool = False

    def text(self) -> str:
        return f"{self.knob}: {knob_text(self.old)} -> {knob_text(self.new)}"

    def to_dict(self) -> dict[str, Any]:
        return {"knob": self.knob, "old": self.old, "new": self.new, "derived": self.derived}


@dataclass(slots=True, kw_only=True)
class Answer:
    """``recommended``: whether to change anything; ``why`` in a sentence. The rest as the report shows it."""

    recommended: bool
    why: str
    winner: Candidate
    alike: list[Candidate]
    policy: Policy
    changes: list[Change]
    flags: str
    sets: list[str]
    gain: Gain | None
    against_defaults: Gain | None
    ablation: dict[str, list[dict[str, Any]]]
    importance: Importance
    robustness: list[dict[str, Any]]
    also: list[dict[str, Any]]
    losers: dict[str, Any] | None
    findings_after: list[dict[str, Any]]
    front: list[dict[str, Any]]
    reached: list[float | None]
    verification: dict[str, Any] | None = None


def find_answer(study: TuneStudy, lookup: Lookup) -> Answer | None:
    """From the study's trials; ``None`` where none of them completed within the constraints."""
    plan, trials = study.plan, study.trials()
    if not any(t.state == TrialState.COMPLETE and all(v <= 0 for v in t.constraints.values()) for t in trials):
        return None
    lookup.stage("the neighbours of the best configurations")
    winner, alike = choose(lookup, trials)
    policy = plan.policy_at(winner.point)
    changes = _changes(plan.policy, policy, winner.point)
    changed = [change for change in changes if not change.derived]
    answer = Answer(
        recommended=False, why="the current policy is the best that was found, or cannot be told from it", winner=winner,
        alike=alike, policy=policy, changes=changes, flags=as_vllm_flags(policy, plan.policy), sets=_sets(lookup, winner.point),
        gain=None, against_defaults=None, ablation={"plus": [], "minus": []},
        importance=importance_of(plan.space, trials, plan.seed), robustness=[], also=[], losers=None, findings_after=[],
        front=_front(study), reached=_reached(study, lookup, winner, policy),
    )  # fmt: skip
    if not changed:
        return answer
    lookup.stage("the winner and each change alone on the windows held out")
    questions = [findings_at(winner.point), *([losers_by(winner.point)] if plan.trace.held else [])]
    answer.findings_after, *losers = lookup.need(_needed(lookup, winner.point, changed), questions)
    answer.losers = losers[0] if losers else None
    _prove(answer, lookup)
    if answer.gain is not None:
        answer.recommended, answer.why = _judged(answer.gain)
    answer.ablation = _ablation(lookup, winner.point, changed)
    answer.robustness = _robustness(lookup, winner.point)
    answer.also = _also(lookup, winner.point)
    return answer


def _needed(lookup: Lookup, point: Point, changed: Sequence[Change]) -> list[Want]:
    """All replays that the rest of the answer rests on: asked for together, no worker waits for another."""
    plan = lookup.plan
    wants: list[Want] = []
    for at in range(1, 1 + len(plan.also)):
        wants += [want for side in SIDES for want in lookup.wants([None, point], side, trace=at)]
    if not plan.trace.held:
        return wants
    points = [plan.space.defaults(plan.policy, plan.profile), *(each for _, _, each in _alone(lookup, point, changed))]
    for side in SIDES if plan.trace.turns else ("held",):
        wants += lookup.wants([None, point, *(each for each in points if _reason(lookup, each) is None)], side)
    for _, where in _cases(lookup):
        wants += lookup.wants([None, point], "held", **where)
    return wants


def _changes(old: Policy, new: Policy, point: Point) -> list[Change]:
    before, after = flat_policy(old.to_dict()), flat_policy(new.to_dict())
    moved = differing(before, after)
    own = {*point, *(name for name in moved if name.startswith(("pd.", "fleet.replicas")))}
    found = [Change(knob=name, old=before.get(name), new=after.get(name), derived=name not in own) for name in moved]
    return sorted(found, key=lambda change: change.derived)


def _sets(lookup: Lookup, point: Point) -> list[str]:
    plan = lookup.plan
    return plan.space.sets({name: level for name, level in point.items() if plan.current.get(name) != level})


def _prove(answer: Answer, lookup: Lookup) -> None:
    plan = lookup.plan
    if not plan.trace.held:
        answer.why = "there is no window to prove a gain on: too few requests for windows beside those searched"
        return
    defaults = plan.space.defaults(plan.policy, plan.profile)
    answer.gain = _gain_over(lookup, None, answer.winner.point)
    try:
        answer.against_defaults = _gain_over(lookup, defaults, answer.winner.point)
    except ConfigError:
        answer.against_defaults = None


def _gain_over(lookup: Lookup, base: Point | None, level: Point) -> Gain:
    """On the windows held out; where those searched lie among them, they tell of the spread too."""
    held = [lookup.results(point, "held") for point in (base, level)]
    if not lookup.plan.trace.turns:
        return gain_of(held[0], held[1])
    return gain_of(held[0], held[1], searched=(lookup.results(base, "search"), lookup.results(level, "search")))


def _judged(gain: Gain) -> tuple[bool, str]:
    if gain.estimate is None:
        none = "the current policy met no SLO on the windows held out"
        return gain.level > 0, none if gain.level > 0 else f"{none}, and neither did the winner"
    if gain.verdict == "better" and gain.estimate >= WORTH:
        return True, f"on {gain.n} windows that were not searched the change is better beyond the noise"
    if gain.verdict == "better":
        return False, f"the gain is real and below {100 * WORTH:.0f} %: no reason to change a running service"
    if gain.verdict == "worse":
        return False, "what was best on the windows searched is worse on those held out"
    if gain.verdict == "cannot tell":
        return False, f"{gain.n} window held out is too few to tell a gain from noise; a longer trace, or shorter windows, may"
    return False, f"on the {gain.n} windows held out the gain cannot be told from the noise"


def _ablation(lookup: Lookup, point: Point, changed: Sequence[Change]) -> dict[str, list[dict[str, Any]]]:
    """The current policy plus each change, and the winner minus each, on the windows held out."""
    found: dict[str, list[dict[str, Any]]] = {"plus": [], "minus": []}
    if not lookup.plan.trace.held:
        return found
    for kind, name, each in _alone(lookup, point, changed):
        reason = _reason(lookup, each)
        gain = None if reason is not None else _gain_over(lookup, None, each).to_dict()
        found[kind].append({"knob": name, "level": each.get(name), "gain": gain, "reason": reason})
    return found


def _alone(lookup: Lookup, point: Point, changed: Sequence[Change]) -> list[tuple[str, str, Point]]:
    """The current policy plus each change (``plus``), and the winner without it (``minus``): kind, knob, point."""
    plan, names = lookup.plan, [change.knob for change in changed if change.knob in point]
    tried = [("plus", name, plan.space.completed({**plan.current, name: point[name]}, point)) for name in names]
    for name in names:
        without = {**point, name: plan.current.get(name, point[name])}
        tried.append(("minus", name, plan.space.completed(without, plan.current)))
    return tried


def _reason(lookup: Lookup, point: Point) -> str | None:
    """Why a point is no configuration."""
    if (broken := lookup.plan.space.broken(point)) is not None:
        return broken
    try:
        lookup.plan.policy_at(point)
    except ConfigError as error:
        return str(error)
    return None


def _robustness(lookup: Lookup, point: Point) -> list[dict[str, Any]]:
    """The same comparison at other rates, and under a profile that is off by its error."""
    if not lookup.plan.trace.held:
        return []
    return [
        {"case": case, "gain": gain_of(lookup.results(None, "held", **where), lookup.results(point, "held", **where)).to_dict()}
        for case, where in _cases(lookup)
    ]


def _cases(lookup: Lookup) -> list[tuple[str, dict[str, Any]]]:
    """Other rates, and other profiles: what is said of each, and where it is replayed."""
    error, source = _profile_error(lookup)
    cases: list[tuple[str, dict[str, Any]]] = [("rate x0.8", {"rate": 0.8}), ("rate x1.2", {"rate": 1.2})]
    return cases + [(f"profile {100 * off:+.0f} % ({source})", {"slower": 1 + off}) for off in (-error, error)]


def _profile_error(lookup: Lookup) -> tuple[float, str]:
    """The profile's own error where it was measured or fitted, else an assumption."""
    profile = lookup.plan.profile
    errors = [value for name, value in profile.fit.items() if "error" in name and isinstance(value, float) and 0 < value < 1]
    if errors and str(profile.provenance.get("kind", "")).startswith(("measured", "fitted")):
        return max(errors), "its own error"
    return PROFILE_ERROR, "assumed"


def _also(lookup: Lookup, point: Point) -> list[dict[str, Any]]:
    """Whether it holds on other traces: on all of their windows."""
    found = []
    for at, trace in enumerate(lookup.plan.also, 1):
        base: list[Result] = []
        level: list[Result] = []
        for side in SIDES:
            base += lookup.results(None, side, trace=at)
            level += lookup.results(point, side, trace=at)
        if base:
            found.append({"trace": trace.name, "gain": gain_of(base, level).to_dict()})
    return found


def _reached(study: TuneStudy, lookup: Lookup, winner: Candidate, policy: Policy) -> list[float | None]:
    """What the winner comes to by each objective on the windows searched, replayed where no trial says; ``None``: unknown."""
    plan = study.plan
    own = next((t.values for t in study.trials() if t.number == winner.trial and t.values), None)
    if own is not None:
        return list(own)
    found: list[float | None] = []
    for objective in plan.objectives:
        try:
            found.append(evaluate(plan, objective, policy, lookup.replays))
        except (TracekitError, ConfigError, ArithmeticError):  # as a trial that fails
            found.append(None)
    return found


def _front(study: TuneStudy) -> list[dict[str, Any]]:
    """The Pareto front where there are several objectives."""
    objectives = study.plan.objectives
    if len(objectives) < 2:
        return []
    best: list[FrozenTrial] = study.study.best_trials
    return [
        {"trial": t.number, "point": dict(t.params),
         "values": dict(zip((o.name for o in objectives), t.values or [], strict=False))}
        for t in best
    ]  # fmt: skip
