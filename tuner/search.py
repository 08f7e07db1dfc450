"""The search: trials asked for, replayed window by window, told; until the budget is spent or nothing is left to try."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from replay_engine.config import ConfigError
from replay_engine.policy import Policy, apply_set
from tracekit.errors import TracekitError
from tuner.alike import rest_of
from tuner.cells import FIGURES, Replays, Result
from tuner.objective import Objective, attainment, bisect_rate, fewest, parts_met, value_of
from tuner.plan import TunePlan
from tuner.proofs import PROOF, proof_of
from tuner.proposing import PARTS
from tuner.study import Asked, TuneStudy

__all__ = ["Budget", "Searcher", "evaluate"]

MARGINS = (0.15, 0.10, 0.05)
"""How far below the best trial, on the same windows, a trial may be after the first, the second, and any later one."""
TAILS = tuple(f"{name}_p99" for name in FIGURES)
LOOK_EVERY_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """``trials`` in all of the study, ended or under way; ``until``: time.monotonic() after which no other trial begins;
    ``most``: trials that this call carries out."""

    trials: int
    until: float | None = None
    most: int | None = None

    def spent(self) -> bool:
        return self.until is not None and time.monotonic() >= self.until


class Searcher:
    """Carries out trials of one study in this process."""

    def __init__(self, study: TuneStudy, replays: Replays) -> None:
        self.study = study
        self.plan = study.plan
        self.replays = replays

    def run(self, budget: Budget, done: Callable[[int], None], cancelled: Callable[[], bool]) -> None:
        """Until the budget is spent. ``done(number)`` after each trial; ``KeyboardInterrupt`` when ``cancelled()``."""
        carried_out = 0
        while not budget.spent() and carried_out != budget.most:
            asked = self.study.ask(budget.trials)
            if asked is None:
                return
            if cancelled():
                raise KeyboardInterrupt
            self.carry_out(asked)
            done(asked.number)
            carried_out += 1

    def settle(self, done: Callable[[int], None], cancelled: Callable[[], bool]) -> None:
        """Wait for the trials that others have under way, and carry out those whose workers die: an answer needs them all."""
        while self.study.under_way():
            if cancelled():
                raise KeyboardInterrupt
            orphan = self.study.orphan()
            if orphan is None:
                time.sleep(LOOK_EVERY_S)
            else:
                self.carry_out(orphan)
                done(orphan.number)

    def carry_out(self, asked: Asked) -> None:
        """One trial. What a replay cannot do fails the trial, with the reason; an interrupt is raised and leaves it open."""
        objectives = self.plan.objectives
        try:
            if len(objectives) == 1 and not objectives[0].rates:
                self._window_by_window(asked, objectives[0])
                return
            values = [evaluate(self.plan, objective, asked.policy, self.replays) for objective in objectives]
            self.study.tell(asked, values, self._constraint(asked.policy), **self._known(asked.policy))
        except (TracekitError, ConfigError, ArithmeticError) as error:
            self.study.fail(asked, " ".join(str(error).split())[:200])

    def _constraint(self, policy: Policy) -> float | None:
        """How far attainment is below the target, where that decides whether an answer may be taken."""
        if self.plan.objective_names == ("goodput",) or "cost" not in self.plan.objective_names:
            return None
        return self.plan.target - attainment(self._windows(policy))

    def _known(self, policy: Policy) -> dict[str, Any]:
        """A proof of one rate says nothing of a trial's others."""
        results, objectives = self._windows(policy), self.plan.objectives
        rates = any(objective.rates for objective in objectives)
        return _facts(results) if rates else {**_facts(results), **_proved(policy, results)}

    def _windows(self, policy: Policy) -> list[Result]:
        return [self.replays.result(self.plan.cell(policy, window)) for window in self.plan.trace.search]

    def _window_by_window(self, asked: Asked, objective: Objective) -> None:
        """The same windows in the same order for every trial: a trial is held against the best one on what both replayed."""
        plan, windows = self.plan, self.plan.trace.search
        results: list[Result] = []
        told = asked.told
        for at, window in enumerate(windows):
            results.append(self.replays.result(plan.cell(asked.policy, window)))
            value = self._value(objective, results)
            if at not in told:  # a trial that was taken over has told of some windows
                asked.trial.report(value, at)
            if at + 1 < len(windows) and (full := self._hopeless(asked, objective, value, at)) is not None:
                self.study.prune(asked, full, **_learnt(objective, asked.policy, results))
                return
        constraint = plan.target - attainment(results) if objective.name == "cost" else None
        self.study.tell(asked, [value], constraint, **_learnt(objective, asked.policy, results))

    def _value(self, objective: Objective, results: list[Result]) -> float:
        return value_of(objective.name, results, price=self.plan.price, cards=self.plan.cards)

    def _hopeless(self, asked: Asked, objective: Objective, value: float, at: int) -> float | None:
        """What the trial would have come to, where it is too far below the best one to come near it; else ``None``."""
        best = self.study.best()
        if best is None or asked.trial.user_attrs.get("role") is not None or at not in best.intermediate_values:
            return None
        then = best.intermediate_values[at]
        if not then or best.value is None or not objective.better(then, value):
            return None
        margin = MARGINS[min(at, len(MARGINS) - 1)]
        ratio = value / then
        far = ratio < 1 - margin if objective.direction == "maximize" else ratio > 1 / (1 - margin)
        return best.value * ratio if far else None


def _facts(results: list[Result]) -> dict[str, Any]:
    """``tails_ns``: the P99 of the worst window."""
    tails = {name: max((result["figures"][name] for result in results if result["figures"].get(name) is not None), default=None)
             for name in TAILS}  # fmt: skip
    return {"attainment": round(attainment(results), 6), "windows": len(results), "tails_ns": tails,
            "iterations": sum(result["iterations"] for result in results)}  # fmt: skip


def _learnt(objective: Objective, policy: Policy, results: list[Result]) -> dict[str, Any]:
    """What a trial's windows say of others too: which come to the same, and by which part of the SLO requests are missed."""
    known = _proved(policy, results)
    if objective.name == "goodput":
        known[PARTS] = parts_met(results)
    return {**_facts(results), **known}


def _proved(policy: Policy, results: list[Result]) -> dict[str, Any]:
    proof = proof_of(results, rest_of(policy))
    return {} if proof is None else {PROOF: proof}


def evaluate(plan: TunePlan, objective: Objective, policy: Policy, replays: Replays) -> float:
    """One objective of a policy on all search windows."""

    def attained(tried: Policy, rate: float) -> float:
        return attainment([replays.result(plan.cell(tried, window, rate=rate)) for window in plan.trace.search])

    if objective.name == "capacity":
        return bisect_rate(lambda rate: attained(policy, rate) >= plan.target)[0]
    if objective.name == "replicas":

        def holds(replicas: int) -> bool:
            return attained(apply_set(policy, [f"fleet.replicas={replicas}"], plan.profile), 1.0) >= plan.target

        found = fewest(holds, most=64)
        if found is None:
            raise ArithmeticError("no number of replicas up to 64 attains the target")
        return float(found)
    results = [replays.result(plan.cell(policy, window)) for window in plan.trace.search]
    return value_of(objective.name, results, price=plan.price, cards=plan.cards)
