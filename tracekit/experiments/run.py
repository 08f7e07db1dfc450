"""``experiment``: one factor, several levels, the same windows of one or more traces, and what may be concluded.

It runs as a job. Each replay's figures are a file as soon as it is done, so that a killed experiment, started again with the
same command, replays only what is missing; the finished one is a row of ``experiments``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from tracekit import __version__
from tracekit.errors import UsageError, shown
from tracekit.experiments.crew import Crew
from tracekit.experiments.plan import Cell, Plan
from tracekit.experiments.planning import make_plan
from tracekit.experiments.replaying import CellReplays
from tracekit.experiments.report import build_document, render_report, verdicts_of
from tracekit.experiments.results import ResultFolder
from tracekit.jobs import Job
from tracekit.store import Store, find_experiment, load_experiment, record_experiment
from tracekit.work_manifest import write_work_manifest

__all__ = ["ExperimentReport", "Reading", "experiment", "recorded_experiment"]

Progress = Callable[[int, int, str], None]
Results = dict[Cell, dict[str, Any]]


class Reading(TypedDict, total=False):
    """How a file is read that is not loaded yet: options of ``replay`` under the same names."""

    mapping: Sequence[str]
    trace_format: str | None
    arrival: str | None
    cached: Literal["inside", "outside"] | None
    on_error: str
    max_dropped: str | float | None
    dedupe: bool


_READING: Reading = {"mapping": (), "trace_format": None, "arrival": None, "cached": None, "on_error": "skip",
                     "max_dropped": None, "dedupe": False}  # fmt: skip


@dataclass(slots=True, kw_only=True)
class ExperimentReport:
    """The experiment's number, its document (``tracekit.experiment/1``), its text, and the lines that were said about it.

    ``conclusive``: whether the measure that decides differs clearly, or not at all, anywhere. ``replayed``: replays that ran
    this time; the rest was there already.
    """

    experiment: int
    document: dict[str, Any]
    text: str
    replayed: int
    lines: list[str] = field(default_factory=list)

    @property
    def conclusive(self) -> bool:
        return bool(self.document["conclusive"])


def experiment(
    traces: str | Sequence[str],
    *,
    vary: str,
    policy: str | None = None,
    sets: Sequence[str] = (),
    pin: bool = False,
    profile: str | None = None,
    slo: str | None = None,
    goodput: str | None = None,
    windows: int = 8,
    length: str | None = None,
    window: str | None = None,
    rate_scale: float = 1.0,
    where: str | None = None,
    thin: str | None = None,
    by: str | None = None,
    spread_ticks: bool = False,
    sessions: str | None = None,
    seed: int = 0,
    accept_degraded: bool = False,
    jobs: int | None = None,
    fresh: bool = False,
    name: str | None = None,
    db: str | Path = "tracekit.duckdb",
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
    **reading: Unpack[Reading],
) -> ExperimentReport:
    """Replay every level of ``vary`` (``knob=a,b,c``) on the same windows of each of ``traces`` (a file or a loaded trace's
    name each), and compare all levels with the first.

    ``jobs`` processes replay at a time (left out: one per core). ``progress(done, total, note)`` counts replays. ``fresh``
    takes nothing that is there already. ``reading``: how files are read, as ``replay`` takes it.
    Errors: ``UsageError``, ``InputError``, ``ConfigError``, ``LockedError``; ``KeyboardInterrupt`` when it was cancelled: the
    same call goes on where it stopped.
    """
    given = dict(locals())
    return _as_job({**_READING, **given.pop("reading"), **given})


def _as_job(given: dict[str, Any]) -> ExperimentReport:
    if unknown := set(given) - set(Reading.__annotations__) - set(experiment.__annotations__):
        raise TypeError(f"experiment() got an unexpected keyword argument '{min(unknown)}'")
    if given["jobs"] is not None and given["jobs"] < 1:
        raise UsageError(f"--jobs {given['jobs']}: expected at least 1")
    store = Store(given["db"])
    job = Job.adopt() or Job.create(store.folder, "experiment", {"argv": list(sys.orig_argv)})
    with job.accounted(interrupted="interrupted; the same command goes on where it stopped"):
        report = _run(store, job, given)
    job.finish({"exit_code": 0 if report.conclusive else 4, "experiment": report.experiment})
    return report


def _run(store: Store, job: Job, given: dict[str, Any]) -> ExperimentReport:
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        if given["say"] is not None:
            given["say"](line)

    jobs = given["jobs"] or len(os.sched_getaffinity(0))
    with ExitStack() as stack:
        crews: list[Crew] = []
        plan = make_plan(store, given, tell, lambda: crews.extend(_crew(store, jobs, stack)))
        return _replayed(store, job, given, plan, crews, tell, lines)


def _crew(store: Store, jobs: int, stack: ExitStack) -> list[Crew]:
    """The workers, if there is to be more than one."""
    return [stack.enter_context(Crew(store.path, jobs))] if jobs > 1 else []


def _replayed(store: Store, job: Job, given: dict[str, Any], plan: Plan, crews: list[Crew], tell: Callable[[str], None],
              lines: list[str]) -> ExperimentReport:  # fmt: skip
    began, started = time.monotonic(), datetime.now(UTC)
    key = plan.key()
    folder = ResultFolder.of(store.folder, key)
    if given["fresh"]:
        folder.remove()
    elif (number := find_experiment(store, key)) is not None:
        folder.remove()
        tell(f"experiment {number} is this one, recorded before: nothing is replayed (--fresh does it again)")
        return _report(number, plan, _recorded(store, number, plan), 0, lines)
    folder.open(plan)
    results, replayed = _replay_all(store, folder, plan, job, given, crews, tell)
    changes, across = verdicts_of(plan, results)
    row = {
        "key": key, "name": given["name"], "started_at": started.replace(tzinfo=None).isoformat(timespec="milliseconds"),
        "wall_s": round(time.monotonic() - began, 3), "factor": plan.factor, "levels": [level.text for level in plan.levels],
        "traces": [trace.name for trace in plan.traces], "spec": plan.to_dict(),
        "results": {cell.name: result for cell, result in results.items()},
        "verdicts": {"changes": [change.to_dict() for change in changes], "across": [each.to_dict() for each in across]},
        "command": " ".join(shown(a, 400) for a in sys.argv), "tracekit_version": __version__,
    }  # fmt: skip
    number = record_experiment(store, row, fresh=given["fresh"])
    folder.remove()
    report = _report(number, plan, results, replayed, lines)
    write_work_manifest(store.folder / "experiments" / f"{number}.manifest.json", "experiment", given=given,
                        rests_on={"key": key, "plan": plan.to_dict()}, result=report.document)  # fmt: skip
    return report


def _report(number: int, plan: Plan, results: Results, replayed: int, lines: list[str]) -> ExperimentReport:
    document = build_document(plan, results, number)
    return ExperimentReport(
        experiment=number, document=document, text=render_report(plan, results), replayed=replayed, lines=lines
    )


def _recorded(store: Store, number: int, plan: Plan) -> Results:
    results = load_experiment(store, number)["results"]
    return {cell: results[cell.name] for cell in plan.cells()}


def recorded_experiment(store: Store, number: int) -> ExperimentReport:
    """A recorded experiment, its conclusions drawn again from its figures. ``UsageError`` where there is none."""
    plan = Plan.from_dict(load_experiment(store, number)["spec"])
    return _report(number, plan, _recorded(store, number, plan), 0, [])


def _replay_all(store: Store, folder: ResultFolder, plan: Plan, job: Job, given: dict[str, Any], crews: list[Crew],
                tell: Callable[[str], None]) -> tuple[Results, int]:  # fmt: skip
    cells = list(plan.cells())
    results = folder.done(cells)
    missing = [cell for cell in cells if cell not in results]
    if results:
        tell(f"{len(results)} of {len(cells)} replays are there from before; {len(missing)} to go")
    done = 0
    job.progress(0, len(missing), unit="replays")

    def on_done(cell: Cell) -> None:
        nonlocal done
        done += 1
        job.progress(done, len(missing), unit="replays", note=cell.name)
        if given["progress"] is not None:
            given["progress"](done, len(missing), shown(plan.traces[cell.trace].name))

    if crews and len(missing) > 1:
        crews[0].run(folder.folder, missing, on_done, job.cancelled)
    else:
        _one_after_the_other(CellReplays(store, plan), folder, missing, on_done, job.cancelled)
    return folder.done(cells), done


def _one_after_the_other(replays: CellReplays, folder: ResultFolder, cells: Sequence[Cell], on_done: Callable[[Cell], None],
                         cancelled: Callable[[], bool]) -> None:  # fmt: skip
    for cell in cells:
        if cancelled():
            raise KeyboardInterrupt
        folder.put(cell, replays.run(cell))
        on_done(cell)
