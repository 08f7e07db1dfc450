"""What an answer asks for beside results of cells: a diagnosis, who loses. Plain data, so that any worker can be asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.cells import Replays
from tuner.diagnosed import diagnosis_of, findings_of, stretch_of
from tuner.losers import who_loses
from tuner.plan import TunePlan
from tuner.space import Point

__all__ = ["Question", "answer_to", "findings_at", "losers_by"]

Question = Mapping[str, Any]
"""``ask``: what; ``point``: of which configuration."""


def findings_at(point: Point) -> Question:
    """What a diagnosis finds at ``point``, where the current policy serves its requests worst."""
    return {"ask": "findings", "point": point}


def losers_by(point: Point) -> Question:
    """Who loses by ``point`` on the windows held out."""
    return {"ask": "losers", "point": point}


def answer_to(question: Question, plan: TunePlan, replays: Replays) -> Any:
    """Plain values for JSON. Errors: ``ConfigError`` where the point is no configuration."""
    policy = plan.policy_at(dict(question["point"]))
    if question["ask"] == "findings":
        base = [replays.result(plan.cell(plan.policy, window)) for window in plan.trace.search]
        return findings_of(diagnosis_of(plan.cell(policy, stretch_of(plan, base)), replays))
    before, after = ([plan.cell(each, window) for window in plan.trace.held] for each in (plan.policy, policy))
    return who_loses(before, after, replays.sources)
