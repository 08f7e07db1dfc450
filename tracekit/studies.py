"""Studies of the tuner as their files say them: what is searched, the trials so far, the answer, and how the search stands.

``<db>.d/tune/KEY/`` holds ``study.json``, ``trials.jsonl`` (a line for every trial that has ended) and ``answer.json``. Reading
them needs no Optuna and disturbs nobody: a page may look every second.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tracekit.errors import UsageError, shown
from tracekit.jobs import JobStatus, list_jobs, show
from tracekit.store import Store
from tracekit.store.files import read_json

__all__ = [
    "STUDY",
    "TRIALS",
    "KnobLevels",
    "Objective",
    "Study",
    "Trial",
    "list_studies",
    "load_study",
    "read_trials",
    "studies_by_job",
    "trial_run_name",
]

STUDY = "study.json"
TRIALS = "trials.jsonl"
ANSWER = "answer.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A trial that has ended. ``state``: complete, pruned, fail. ``values``: by objective, empty unless complete. ``estimate``:
    its value by the first objective; of a pruned one what it would have come to. ``feasible``: within the constraints.
    ``tails_ns``: P99 of its worst window by figure (``ttft_p99`` ...). ``reason``: why it failed."""

    number: int
    state: str
    role: str | None
    point: Mapping[str, Any]
    values: tuple[float, ...]
    estimate: float | None
    feasible: bool
    reason: str | None
    took_s: float | None
    attainment: float | None
    windows: int
    tails_ns: Mapping[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """One figure of merit. ``direction``: maximize or minimize."""

    name: str
    direction: str
    unit: str

    def better(self, one: float, other: float) -> bool:
        """Whether ``one`` is better than ``other``."""
        return one > other if self.direction == "maximize" else one < other


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobLevels:
    """A knob of the space and its levels in order."""

    name: str
    levels: tuple[Any, ...]
    ordered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """``state``: that of the job that searched last (running, finished, cancelled, failed, lost), or gone where the job's
    folder is not there any more. ``answer``: the document of ``tracekit tune``, ``None`` until there is one. ``trials`` by
    number."""

    key: str
    folder: Path
    trace: str
    traffic: tuple[str, ...]
    slo: Mapping[str, Any]
    profile: str
    objectives: tuple[Objective, ...]
    target: float
    knobs: tuple[KnobLevels, ...]
    current: Mapping[str, Any]
    windows: tuple[Mapping[str, int], ...]
    wanted: int
    job: JobStatus | None
    state: str
    changed: float
    trials: tuple[Trial, ...]
    answer: Mapping[str, Any] | None


def list_studies(store: Store, most: int | None = None) -> list[Study]:
    """The studies beside a database, the one that changed last first; of more than ``most`` only those."""
    jobs = {status.id: status for status in list_jobs(store.folder)}
    folders = sorted((path.parent for path in (store.folder / "tune").glob("*/" + STUDY)), key=lambda f: (-_changed(f), f.name))
    return [study for folder in folders[:most] if (study := _study(folder, jobs)) is not None]


def load_study(store: Store, ref: str) -> Study:
    """One study by its key, the start of one, or ``last``. ``UsageError`` where there is none."""
    folders = sorted(path.parent for path in (store.folder / "tune").glob("*/" + STUDY))
    if not folders:
        raise UsageError(f"{store.path} has no study yet; `tracekit tune TRACE --slo ...` makes one")
    if ref == "last":
        found = [max(folders, key=lambda folder: (_changed(folder), folder.name))]
    else:
        found = [folder for folder in folders if ref and folder.name.startswith(ref)]
    if len(found) != 1:
        reason = f"fits {len(found)} studies" if found else "no such study"
        raise UsageError(f"study {shown(ref)}: {reason}; expected the key of one, as {folders[0].name}, or last")
    document = read_json(found[0] / STUDY) or {}
    study = _study(found[0], _one_job(store, str(document.get("job"))))
    if study is None:
        raise UsageError(f"study {found[0].name}: its study.json cannot be read")
    return study


def studies_by_job(store: Store) -> dict[str, str]:
    """By a job's id, the key of the study that it searches or has searched last."""
    documents = (read_json(path) for path in (store.folder / "tune").glob("*/" + STUDY))
    return {str(each.get("job")): str(each["study"]) for each in documents if each is not None}


def read_trials(folder: Path) -> tuple[Trial, ...]:
    """The trials that have ended, by number; a line that is not whole counts as not there."""
    path = folder / TRIALS
    try:
        stat = path.stat()
        return _read(path, stat.st_mtime_ns, stat.st_size)
    except OSError:
        return ()


@lru_cache(maxsize=64)
def _read(path: Path, mtime_ns: int, size: int) -> tuple[Trial, ...]:
    """The file as it was then: looking again costs nothing while nothing has changed."""
    text = path.read_bytes()
    found: dict[int, Trial] = {}
    for line in text.split(b"\n"):
        try:
            trial = _trial(json.loads(line))
        except (ValueError, KeyError, TypeError):
            continue
        found[trial.number] = trial
    return tuple(found[number] for number in sorted(found))


def trial_run_name(key: str, number: int, window: int | None = None) -> str:
    """What the run of a trial is called: an address can name it before it is recorded."""
    return f"{key[:8]}-trial-{number}" + ("" if window is None else f"-window-{window}")


def _one_job(store: Store, job: str) -> dict[str, JobStatus]:
    try:
        return {job: show(store.folder, job, log_lines=0)}
    except UsageError:
        return {}


def _changed(folder: Path) -> float:
    return max((os.path.getmtime(path) for name in (STUDY, TRIALS, ANSWER) if (path := folder / name).exists()), default=0.0)


def _study(folder: Path, jobs: Mapping[str, JobStatus]) -> Study | None:
    document = read_json(folder / STUDY)
    if document is None:
        return None
    job = jobs.get(document["job"])
    return Study(
        key=document["study"],
        folder=folder,
        trace=document["trace"],
        traffic=tuple(document["traffic"]),
        slo=document["slo"],
        profile=document["profile"],
        objectives=tuple(Objective(**each) for each in document["objectives"]),
        target=document["target"],
        knobs=tuple(
            KnobLevels(name=k["name"], levels=tuple(k["levels"]), ordered=k["ordered"]) for k in document["space"]["knobs"]
        ),
        current=document["current"],
        windows=tuple(document["windows"]),
        wanted=document["trials"],
        job=job,
        state="gone" if job is None else job.state,
        changed=_changed(folder),
        trials=read_trials(folder),
        answer=read_json(folder / ANSWER),
    )


def _trial(row: Mapping[str, Any]) -> Trial:
    return Trial(
        number=int(row["number"]),
        state=row["state"],
        role=row["role"],
        point=row["point"],
        values=tuple(row["values"]),
        estimate=row["estimate"],
        feasible=row["feasible"],
        reason=row["reason"],
        took_s=row["took_s"],
        attainment=row.get("attainment"),
        windows=row.get("windows", 0),
        tails_ns=row.get("tails_ns", {}),
    )
