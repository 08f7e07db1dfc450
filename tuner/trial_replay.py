"""``trial``: one trial of a study replayed again with every event, as a run that the pages can show.

A search keeps outcomes only. The run is named after study and trial and is replayed once; by default it is the search window that
the current policy served worst, the same for every trial of a study, so that any two of them can be compared.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracekit.errors import UsageError
from tracekit.jobs import Job
from tracekit.replay import ReplayReport, recorded_run, run_result
from tracekit.store import Store, load_run
from tracekit.store.files import read_json
from tracekit.studies import Trial, load_study, trial_run_name
from tuner.cells import CELLS, CellFile, Replays, setup_of
from tuner.plan import PLAN, TunePlan
from tuner.windows import WindowSources

__all__ = ["replay_trial"]

Say = Callable[[str], None]


def replay_trial(study: str, number: int, *, window: int | None = None, fresh: bool = False, db: str | Path = "tracekit.duckdb",
                 progress: Callable[[int, int, str], None] | None = None, say: Say | None = None) -> ReplayReport:  # fmt: skip
    """Replay trial ``number`` of a study (its key, the start of one, or ``last``) on one search window (from 1; left out: the one
    that the current policy served worst) and record it with every event and its verdict. A run that is there already is taken,
    unless ``fresh``. Errors: ``UsageError``, ``LockedError``."""
    store = Store(db)
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        if say is not None:
            say(line)

    job = Job.adopt() or Job.create(store.folder, "trial", {"argv": list(sys.orig_argv)})
    with job.accounted(interrupted="interrupted before the replay began"):
        report = _replayed(store, job, (study, number, window, fresh), progress, tell, lines)
    job.finish(run_result(report))
    return report


def _replayed(store: Store, job: Job, asked: tuple[str, int, int | None, bool], progress: Any, tell: Say,
              lines: list[str]) -> ReplayReport:  # fmt: skip
    ref, number, window, fresh = asked
    found = load_study(store, ref)
    trial = next((each for each in found.trials if each.number == number), None)
    if trial is None:
        raise UsageError(f"study {found.key}: trial {number}: no such trial has ended; there are {len(found.trials)}")
    if trial.state == "fail":
        raise UsageError(f"study {found.key}: trial {number} failed and cannot be replayed: {trial.reason}")
    name = trial_run_name(found.key, number, window)
    if not fresh and (run := _recorded(store, name)) is not None:
        tell(f"run {run} is this trial, recorded before: nothing is replayed (--fresh does it again)")
        row = load_run(store, run)
        return ReplayReport(run=run, state=row["state"], matrix=row["matrix"], lines=lines, db=store.path)
    document = read_json(found.folder / PLAN)
    if document is None:
        raise UsageError(f"study {found.key}: its plan.json cannot be read")
    plan = TunePlan.from_dict(document)
    at = _window(plan, window, Replays(WindowSources(store), CellFile(found.folder / CELLS)))
    tell(f"study {found.key}, trial {number} ({_described(trial)}) on search window {at + 1} of {len(plan.trace.search)}")
    cell = plan.cell(plan.policy_at(dict(trial.point)), plan.trace.search[at])
    setup = setup_of(cell, WindowSources(store), events="full")
    return recorded_run(store, job, setup, name=name, diagnose=True, progress=progress, tell=tell, lines=lines)


def _window(plan: TunePlan, window: int | None, replays: Replays) -> int:
    windows = plan.trace.search
    if window is not None:
        if not 1 <= window <= len(windows):
            raise UsageError(f"--window {window}: expected 1 to {len(windows)}, the study's search windows")
        return window - 1
    base = [replays.result(plan.cell(plan.policy, each)) for each in windows]
    return min(range(len(base)), key=lambda at: base[at]["met"] / max(base[at]["n"], 1))


def _recorded(store: Store, name: str) -> int | None:
    """The latest run of this name that finished."""
    if not store.exists():
        return None
    with store.read() as con:
        rows = con.execute("SELECT max(run) FROM runs WHERE name = ? AND state = 'finished'", [name]).fetchall()
    return None if rows[0][0] is None else int(rows[0][0])


def _described(trial: Trial) -> str:
    knobs = ", ".join(f"{name}={value}" for name, value in trial.point.items())
    return f"{trial.role}: {knobs}" if trial.role else knobs
