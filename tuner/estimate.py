"""What a study will take, from one replay and from what is there: counted as the search and the answer ask for replays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from replay_engine.config import ConfigError
from replay_engine.policy import Policy
from tracekit.studies import read_trials
from tuner.cells import Replays, replay_cell
from tuner.engine_pace import Pace, work_of
from tuner.plan import TunePlan
from tuner.plateau import LOOKED_AT
from tuner.proposing import first_moves
from tuner.space import Space

__all__ = ["estimated", "neighbours_at_most", "steps_back_at_most"]

BISECTED = 12
"""Rates, or numbers of replicas, that one trial asks for at most: up to 64 by doubling, then a bisection."""
CASES = 4
"""Other rates and profiles that the answer is held against."""
MEASURED, MEASURED_S = 6, 4.0
"""Configurations that tell what a replay takes, and CPU seconds after which no other one is looked at."""
START_S, ASKED_S = 2.0, 0.02
"""Until the first trial begins, the diagnosis included; what proposing one takes."""


def estimated(plan: TunePlan, replays: Replays, folder: Path, given: Mapping[str, Any], workers: int,
              pace: Pace | None = None) -> tuple[dict[str, Any], str]:  # fmt: skip
    """The document, and the same as text. One window is replayed: the longest, under a few configurations.
    ``replays`` are never exceeded; of them are ``answer_replays``, and of these ``step_back_replays``, which only an answer whose
    best configurations all stand beside a cliff asks for. ``minutes`` are what all of them take, about. ``pace``: of the
    engine that the answer is to be proved on, whose replays and ``engine_minutes`` (at least, at most) come on top."""
    search, trials = len(plan.trace.search), int(given["trials"])
    there = min(len(read_trials(folder)), trials)
    each = _seconds_each(plan, replays)
    rates = sum(objective.rates for objective in plan.objectives)
    others = any(objective.name != "capacity" for objective in plan.objectives)  # at the rate and the replicas that there are
    of_trial = (BISECTED * rates + others) * search
    back = neighbours_at_most(plan.space) * steps_back_at_most(plan.space) * search
    answer = _of_answer(plan) + back
    if given["verify"] is not None:
        answer += given["top"] * (len(plan.trace.held) or search)  # as simulated
    if rates:
        answer += of_trial  # of the recommended one, where it is no trial's
    left = trials - there
    ahead = _ahead(plan, workers) if trials > 1 and given["executor"] == "local" else 0
    most = left * of_trial + ahead + answer

    def minutes(count: int) -> float:
        return round((START_S + left * ASKED_S + count * each / workers) / 60, 2)

    document = {"schema": "tracekit.tune/1", "dry_run": True, "trials": trials, "trials_there": there, "replays": most,
                "ahead_replays": ahead, "answer_replays": answer, "step_back_replays": back, "engine_replays": 0,
                "engine_minutes": None, "engine_measured": None, "workers": workers, "seconds_each": round(each, 3),
                "minutes": minutes(most), "minutes_without_step_back": minutes(most - back)}  # fmt: skip
    if pace is not None:
        document |= _on_engine(plan, replays, pace, given["top"] + 1)
    return document, _text(document)


def _on_engine(plan: TunePlan, replays: Replays, pace: Pace, configurations: int) -> dict[str, Any]:
    """What so many configurations take on an engine."""
    windows = plan.trace.held or plan.trace.search
    low, high = pace.minutes([work_of(replays.sources.get(window)) for window in windows], configurations)
    return {"engine_replays": configurations * len(windows), "engine_minutes": [round(low, 2), round(high, 2)],
            "engine_measured": pace.to_dict()}  # fmt: skip


def _seconds_each(plan: TunePlan, replays: Replays) -> float:
    """CPU time of one replay of the longest window: the mean of a few configurations, since some take many times what
    others do. Theirs are not kept: the search may never ask for them."""
    longest = max(plan.trace.search, key=lambda window: window.requests)
    found = replays.result(plan.cell(plan.policy, longest))  # what a process does once is behind it
    seconds: list[float] = []
    for policy in _some_policies(plan):
        if len(seconds) == MEASURED or sum(seconds) >= MEASURED_S:
            break
        seconds.append(float(replay_cell(plan.cell(policy, longest), replays.sources)["cpu_s"]))
    return fmean(seconds) if seconds else float((replays.file.get(found["of"]) or found)["cpu_s"])


def _some_policies(plan: TunePlan) -> Iterator[Policy]:
    """Steps of one knob from the current policy, as most replays of an answer are, in an order drawn by the seed; those that are
    no configuration are passed over."""
    steps = [point for _, _, point in plan.space.neighbours(plan.current)]
    for at in np.random.default_rng(plan.seed).permutation(len(steps)):
        with suppress(ConfigError):
            yield plan.policy_at(steps[int(at)])


def _ahead(plan: TunePlan, workers: int) -> int:
    """Replays that workers begin with while the current policy is diagnosed, of moves that may then not be made (``ahead``)."""
    if workers < 2 or len(plan.objectives) > 1 or plan.objectives[0].rates:
        return 0
    return len(first_moves(plan.space, plan.current)) * len(plan.trace.search)


def neighbours_at_most(space: Space) -> int:
    """Neighbours of a point."""
    return sum(2 if knob.ordered else len(knob.levels) - 1 for knob in space.knobs)


def steps_back_at_most(space: Space) -> int:
    """Neighbours of a point that lead away from a cliff: of a knob with a cliff on one side, the other side."""
    return sum(1 if knob.ordered else max(len(knob.levels) - 2, 0) for knob in space.knobs)


def _of_answer(plan: TunePlan) -> int:
    """Replays of the answer without a step back from cliffs, if every knob is changed and none of them was replayed before."""
    search, held, knobs = len(plan.trace.search), len(plan.trace.held), len(plan.space.knobs)
    chosen = (LOOKED_AT * neighbours_at_most(plan.space) + knobs + 1) * search  # and the engine's defaults
    alone = 2 * knobs * (held + (search if plan.trace.turns else 0)) if held else 0
    others = sum(2 * (len(trace.search) + len(trace.held)) for trace in plan.also)
    return chosen + alone + (3 + 2 * CASES) * held + others


def _text(document: Mapping[str, Any]) -> str:
    """A line for the sum, and one for each part."""
    there, most, answer, back = (document[name] for name in ("trials_there", "replays", "answer_replays", "step_back_replays"))
    left, ahead, count = document["trials"] - there, document["ahead_replays"], document["workers"]
    kept = f"{there} of {document['trials']} are there from before"
    trials = f"for {left} trials{f' ({kept})' if there else ''}, fewer where one is pruned" if left else f"for trials: {kept}"
    parts = [(most - ahead - answer, trials)]
    parts += [(ahead, "that workers begin with")] if ahead else []
    parts += [(answer - back, "for the answer, fewer where it changes few knobs")]
    without = f"about {_span(document['minutes_without_step_back'])} without them"
    parts += [(back, f"only if all that is best stands beside a cliff; {without}")] if back else []
    each = f"{document['seconds_each']:.2f} s each with {count} worker{'s' * (count > 1)}"
    lines = [f"up to {most:,} replays, about {_span(document['minutes'])} if all are needed: {each}"]
    lines += [f"{number:9,} {what}" for number, what in parts]
    return "\n".join([*lines, *([_proof_text(document)] if document["engine_replays"] else [])])


def _span(minutes: float) -> str:
    return f"{minutes:.1f} minutes" if minutes >= 1.5 else f"{60 * minutes:.0f} s"


def _proof_text(document: Mapping[str, Any]) -> str:
    low, high = map(_span, document["engine_minutes"])
    measured = document["engine_measured"]
    about = low if low == high else f"{low} to {high}"
    ended = f"{measured['requests']:,} of a window's {measured['of']:,} requests"
    return (f"then {document['engine_replays']} replays on a real engine, about {about}, if each configuration takes what the"
            f" current policy does\n          (measured: {ended} ended in {measured['seconds']:.1f} s)")  # fmt: skip
