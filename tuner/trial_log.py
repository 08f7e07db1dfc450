"""What others may read of a study while it runs and afterwards, without Optuna or its database: two files in its folder.

``study.json`` says what is searched and by which job; ``trials.jsonl`` has a line for every trial that has ended, written by
whoever runs the study, wherever its trials were carried out. ``tracekit.studies`` reads both.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from tracekit.store.files import write_json
from tracekit.studies import STUDY, TRIALS, read_trials
from tuner.plan import TunePlan
from tuner.proposing import estimated_value
from tuner.study import REASON, TuneStudy

__all__ = ["TrialLog", "describe_study"]

FACTS = ("attainment", "windows", "iterations", "tails_ns")


def describe_study(folder: Path, plan: TunePlan, *, job: str, trials: int) -> None:
    """Write ``study.json``. ``job``: who searches; ``trials``: how many are wanted."""
    objectives = [{"name": o.name, "direction": o.direction, "unit": o.unit} for o in plan.objectives]
    windows = [{"begin_ns": w.begin_ns, "end_ns": w.end_ns, "requests": w.requests} for w in plan.trace.search]
    write_json(folder / STUDY, {
        "schema": "tracekit.study/1", "study": plan.key(), "trace": plan.trace.name, "traffic": list(plan.trace.lines),
        "windows": windows, "slo": plan.slo.to_dict(), "profile": plan.profile.name, "objectives": objectives,
        "target": plan.target, "space": plan.space.to_dict(), "current": plan.current, "seed": plan.seed, "job": job,
        "trials": trials,
    })  # fmt: skip


class TrialLog:
    """The writing side of ``trials.jsonl``: whole lines, each trial once, however many commands share the study."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._there: set[int] = set()
        self._size = -1

    def follow(self, study: TuneStudy) -> None:
        """Append the trials that have ended since."""
        ended = study.trials()
        if all(trial.number in self._there for trial in ended):
            return
        file = os.open(self._folder / TRIALS, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            size = os.fstat(file).st_size
            if size != self._size:  # another command has written meanwhile
                self._there = {trial.number for trial in read_trials(self._folder)}
            new = [trial for trial in ended if trial.number not in self._there]
            lines = b"".join(json.dumps(_row(trial), default=str).encode() + b"\n" for trial in new)
            torn = size and os.pread(file, 1, size - 1) != b"\n"
            os.write(file, b"\n" + lines if torn else lines)
            self._size = os.fstat(file).st_size
        finally:
            os.close(file)
        self._there.update(trial.number for trial in new)


def _row(trial: FrozenTrial) -> dict[str, Any]:
    took = None
    if trial.datetime_start is not None and trial.datetime_complete is not None:
        took = round((trial.datetime_complete - trial.datetime_start).total_seconds(), 4)
    facts = {name: trial.user_attrs[name] for name in FACTS if name in trial.user_attrs}
    return {
        "number": trial.number, "state": trial.state.name.lower(), "role": trial.user_attrs.get("role"),
        "point": dict(trial.params), "values": list(trial.values or ()), "estimate": estimated_value(trial),
        "feasible": all(value <= 0 for value in trial.constraints.values()), "reason": trial.user_attrs.get(REASON),
        "took_s": took, **facts,
    }  # fmt: skip
