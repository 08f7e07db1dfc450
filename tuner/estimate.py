"""What a study will take, from one replay and from what is there: counted as the search and the answer ask for replays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tracekit.studies import read_trials
from tuner.cells import Replays
from tuner.plan import TunePlan
from tuner.plateau import LOOKED_AT

__all__ = ["estimated"]

BISECTED = 12
"""Rates, or numbers of replicas, that one trial asks for at most: up to 64 by doubling, then a bisection."""
CASES = 4
"""Other rates and profiles that the answer is held against."""
START_S, ASKED_S = 2.0, 0.02
"""Until the first trial begins, the diagnosis included; what proposing one takes."""


def estimated(plan: TunePlan, replays: Replays, folder: Path, given: Mapping[str, Any],
              workers: int) -> tuple[dict[str, Any], str]:  # fmt: skip
    """The document, and the same as text. One window is replayed, unless it was: the longest, under the current policy."""
    search, trials = len(plan.trace.search), int(given["trials"])
    there = min(len(read_trials(folder)), trials)
    longest = max(plan.trace.search, key=lambda window: window.requests)
    each = float(replays.result(plan.cell(plan.policy, longest))["cpu_s"])
    rates = sum(objective.rates for objective in plan.objectives)
    of_trial = (BISECTED * rates + (rates < len(plan.objectives))) * search
    answer = _of_answer(plan)
    if given["verify"] is not None:
        answer += given["top"] * (len(plan.trace.held) or search)  # as simulated
    if rates:
        answer += of_trial  # of the recommended one, where it is no trial's
    most = (trials - there) * of_trial + answer
    minutes = (START_S + (trials - there) * ASKED_S + most * each / workers) / 60
    engine = 0 if given["verify"] is None else (given["top"] + 1) * (len(plan.trace.held) or search)
    document = {"schema": "tracekit.tune/1", "dry_run": True, "trials": trials, "trials_there": there, "replays": most,
                "answer_replays": answer, "engine_replays": engine, "workers": workers, "seconds_each": round(each, 3),
                "minutes": round(minutes, 2)}  # fmt: skip
    return document, _text(document, of_trial)


def _of_answer(plan: TunePlan) -> int:
    """Replays of the answer, if every knob is changed and none of them was replayed before; without a step back from cliffs."""
    search, held, knobs = len(plan.trace.search), len(plan.trace.held), len(plan.space.knobs)
    steps = sum(2 if knob.ordered else len(knob.levels) - 1 for knob in plan.space.knobs)
    chosen = (LOOKED_AT * steps + knobs + 1) * search  # and the engine's defaults
    alone = 2 * knobs * (held + (search if plan.trace.turns else 0)) if held else 0
    others = sum(2 * (len(trace.search) + len(trace.held)) for trace in plan.also)
    return chosen + alone + (3 + 2 * CASES) * held + others


def _text(document: Mapping[str, Any], of_trial: int) -> str:
    there, most = document["trials_there"], document["replays"]
    left = document["trials"] - there
    kept = f" ({there} of {document['trials']} trials are there from before)" if there else ""
    engine = document["engine_replays"]
    proof = f"; then {engine} replays on a real engine, which take what it takes" if engine else ""
    how = f"at {document['seconds_each']:.2f} s each with {document['workers']} workers about {document['minutes']:.1f} minutes"
    return (f"up to {most:,} replays: {left * of_trial:,} for {left} trials{kept}, fewer where one is pruned, and"
            f" {document['answer_replays']:,} for the answer, fewer where it changes few knobs, more where all"
            f" that is best stands beside a cliff; {how} if all are needed{proof}")
