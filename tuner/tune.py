"""``tune``: the best SLO-goodput on traffic it has not seen. It runs as a job, and a killed one goes on where it stopped."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from tracekit.errors import UsageError, shown, shown_path
from tracekit.experiments.run import _READING, Reading
from tracekit.jobs import Job
from tracekit.manifest import MANIFEST
from tracekit.store import Store
from tracekit.store.files import write_json
from tracekit.work_manifest import write_work_manifest
from tuner.ahead import first_wants
from tuner.answer import Answer, find_answer
from tuner.cells import Replays
from tuner.crew import Crew
from tuner.diagnosed import Verdict, before_searching
from tuner.engine_pace import MEASURED_S
from tuner.estimate import estimated
from tuner.lookup import Lookup, Want
from tuner.plan import PLAN, TunePlan
from tuner.planning import make_plan
from tuner.questions import Question
from tuner.report import build_document, render_report
from tuner.search import Budget, Searcher
from tuner.study import TuneStudy, forget_study, open_study, study_name
from tuner.trial_log import TrialLog, describe_study
from tuner.verify import check_verify, load_engine, pace_of, verify
from tuner.watched import Progress, Watched
from tuner.windows import WindowSources
from tuner.worker import open_cells

if TYPE_CHECKING:
    from tuner.ray_crew import RayCrew

__all__ = ["TuneReport", "tune"]

WAITS = "another command of this study looks for the answer; what it replays is not replayed here again"


@dataclass(slots=True, kw_only=True)
class TuneReport:
    """The document (``tracekit.tune/1``), its text, the lines that were said, and how many replays ran this time."""

    document: dict[str, Any]
    text: str
    replayed: int
    lines: list[str] = field(default_factory=list)


def tune(
    trace: str,
    *,
    slo: str | None = None, goodput: str | None = None,
    policy: str | None = None, sets: Sequence[str] = (),
    profile: str | None = None,
    space: str | None = None,
    objective: str = "goodput",
    target: float = 0.9,
    price_per_hour: float | None = None,
    trials: int = 60, minutes: float | None = None, workers: int | None = None,
    storage: str | None = None, executor: str = "local", address: str | None = None, search_only: bool = False,
    windows: int = 4, holdout: int = 4, split: str = "alternate",
    length: str | None = None, window: str | None = None,
    rate_scale: float = 1.0,
    where: str | None = None, thin: str | None = None, by: str | None = None,
    spread_ticks: bool = False,
    sessions: str | None = None, also: Sequence[str] = (),
    verify: str | None = None, top: int = 3, model: str | None = None,
    seed: int = 0,
    accept_degraded: bool = False,
    fresh: bool = False,
    dry_run: bool = False,
    db: str | Path = "tracekit.duckdb",
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
    **reading: Unpack[Reading],
) -> TuneReport:  # fmt: skip
    """Search ``space`` (``scheduler``, ``policy`` or a TOML file) over windows of ``trace`` for what serves the SLO best, and
    prove it on windows held out. ``trials``: of the whole study, whoever carries them out; ``minutes``: of this call's search.
    ``workers`` processes (left out: one per core). ``storage``: a PostgreSQL URL that several machines share. ``executor``:
    ``local``, or ``ray`` for workers on the Ray cluster at ``address`` (left out: ``RAY_ADDRESS``, or the one this machine is
    in). ``search_only`` leaves the answer to another call of the same study. ``also``: other traces that the answer is held
    against. ``verify``: ``torch`` replays the ``top`` best configurations and the current policy on ``model`` too. ``dry_run``
    replays one window and says what the whole would take.
    Errors: ``UsageError``, ``InputError``, ``ConfigError``, ``LockedError``; ``KeyboardInterrupt`` when it was cancelled.
    """
    given = dict(locals())
    return _as_job({**_READING, **given.pop("reading"), **given})


def _as_job(given: dict[str, Any]) -> TuneReport:
    if unknown := set(given) - set(Reading.__annotations__) - set(tune.__annotations__):
        raise TypeError(f"tune() got an unexpected keyword argument '{min(unknown)}'")
    _checked(given)
    store = Store(given["db"])
    job = Job.adopt() or Job.create(store.folder, "tune", {"argv": list(sys.orig_argv)})
    with job.accounted(interrupted="interrupted; the same command goes on where it stopped"):
        report = _Run(store, job, given).report()
    job.finish({"exit_code": 0, "recommended": report.document.get("recommended"), "sets": report.document.get("sets")})
    return report


def _checked(given: dict[str, Any]) -> None:
    for name, least in (("trials", 1), ("workers", 1), ("windows", 1), ("holdout", 0)):
        if given[name] is not None and given[name] < least:
            raise UsageError(f"--{name} {given[name]}: expected at least {least}")
    if given["minutes"] is not None and given["minutes"] <= 0:
        raise UsageError(f"--minutes {given['minutes']}: expected a time above 0")
    if given["split"] not in ("alternate", "past"):
        raise UsageError(f"--split {shown(given['split'])}: expected alternate or past")
    check_verify(given["verify"], given["model"], given["top"])
    if given["executor"] not in ("local", "ray"):
        raise UsageError(f"--executor {shown(given['executor'])}: expected local or ray")
    if given["address"] is not None and given["executor"] != "ray":
        raise UsageError(f"--address {shown(given['address'])}: of a Ray cluster; expected --executor ray with it")


class _Run:
    """One call of ``tune``."""

    def __init__(self, store: Store, job: Job, given: dict[str, Any]) -> None:
        self.store, self.job, self.given = store, job, given
        self.lines: list[str] = []
        self.began = time.monotonic()
        self.watched = Watched(job, given["progress"], self.tell)

    def tell(self, line: str) -> None:
        self.lines.append(line)
        if self.given["say"] is not None:
            self.given["say"](line)

    def report(self) -> TuneReport:
        """Plan, look, search, answer."""
        with ExitStack() as stack:
            crew = self._local_crew()
            if crew is not None:
                stack.enter_context(crew)
            plan = make_plan(self.store, self.given, self.tell)
            folder = self.store.folder / "tune" / plan.key()
            if self.given["fresh"]:
                self._cleared(plan, folder)
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / PLAN, plan.to_dict())
            storage = None if self.given["dry_run"] else self.given["storage"]
            replays = Replays(WindowSources(self.store, plan.windows), open_cells(plan, folder, storage))
            if self.given["dry_run"]:
                return self._estimated(plan, replays)
            describe_study(folder, plan, job=self.job.id, trials=self.given["trials"])
            if crew is not None:
                crew.work_in(folder)
            verdict = self._looked_at(self._lookup(plan, replays, crew), crew)
            if verdict.stop is not None:
                self.tell(f"no search: {verdict.stop}")
                return self._finished(folder, plan, None, None, replays, verdict)
            others = crew or self._ray_crew(plan, folder, stack)
            return self._searched(folder, self._lookup(plan, replays, others), others, verdict)

    def _looked_at(self, lookup: Lookup, crew: Crew | None) -> Verdict:
        """The current policy, diagnosed. Meanwhile workers begin with what any search begins with."""
        lookup.need(lookup.wants([None], "search"))
        base = lookup.results(None, "search")
        if crew is not None:
            crew.ahead(first_wants(lookup, crew.workers))
        return before_searching(lookup.plan, base, lookup.replays)

    def _searched(self, folder: Path, lookup: Lookup, crew: Crew | RayCrew | None, verdict: Verdict) -> TuneReport:
        plan, storage = lookup.plan, self.given["storage"]
        study = open_study(plan, folder, storage)
        study.first()
        self.tell(f"study: {study_name(plan)} in {'the database' if storage else shown_path(folder / 'study.journal')}")
        log = TrialLog(folder)
        self._search(study, lookup.replays, crew, log)
        if self.given["search_only"]:
            return self._left(plan, study)
        with study.answering(lambda: self.tell(WAITS)):
            answer = find_answer(study, lookup)
        if answer is not None and self.given["verify"] is not None:
            engine = load_engine(self.given["model"], self.given["seed"])
            answer.verification = verify(study, answer, lookup, engine, self.given["top"], self.watched)
        self.watched.begin("trials")
        self._noted(study, log)
        return self._finished(folder, plan, study, answer, lookup.replays, verdict)

    def _cleared(self, plan: TunePlan, folder: Path) -> None:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
        if self.given["storage"] is not None:
            from tuner.postgres import PostgresCells

            forget_study(plan, self.given["storage"])
            PostgresCells(self.given["storage"], study_name(plan)).clear()

    def _local_crew(self) -> Crew | None:
        """Processes that search and replay besides this one; ``None``: there are none. Begun before there is a plan."""
        workers, given = self.given["workers"], self.given
        if given["executor"] == "ray" or given["dry_run"] or given["trials"] < 2:
            return None
        count = workers or len(os.sched_getaffinity(0))
        return Crew(self.store.path, given["storage"], count) if count > 1 else None

    def _ray_crew(self, plan: TunePlan, folder: Path, stack: ExitStack) -> RayCrew | None:
        if self.given["executor"] != "ray":
            return None
        from tuner.ray_crew import RayCrew

        storage, workers = self.given["storage"], self.given["workers"]
        return stack.enter_context(RayCrew(plan, self.store, folder, storage, workers, self.given["address"], self.tell))

    def _search(self, study: TuneStudy, replays: Replays, crew: Crew | RayCrew | None, log: TrialLog) -> None:
        trials, minutes = self.given["trials"], self.given["minutes"]
        there = len(study.trials())
        if there:
            self.tell(f"{there} of {trials} trials are there from before; {max(trials - there, 0)} to go")

        def noted(_: Any = None) -> None:
            self._noted(study, log)

        self.watched.begin("trials", there)
        noted()
        seconds = None if minutes is None else minutes * 60
        if crew is not None:
            crew.search(trials, seconds, noted, self.job.cancelled)
        else:
            until = None if seconds is None else time.monotonic() + seconds
            Searcher(study, replays).run(Budget(trials=trials, until=until), noted, self.job.cancelled)
        if not self.given["search_only"]:
            Searcher(study, replays).settle(noted, self.job.cancelled)
        noted()

    def _noted(self, study: TuneStudy, log: TrialLog) -> None:
        """How many trials have ended, and the best of them."""
        log.follow(study)
        counts, best = study.counts(), study.best()
        value = "" if best is None else f"{(best.values or [0.0])[0]:.4g} {study.plan.objectives[0].unit}"
        note = f"best so far {value}" if value else "none completed yet"
        note += f", {counts['failed']} failed" if counts["failed"] else ""
        self.watched.tell(counts["complete"] + counts["pruned"] + counts["failed"], self.given["trials"], note)

    def _lookup(self, plan: TunePlan, replays: Replays, crew: Crew | RayCrew | None) -> Lookup:
        """What is looked up is replayed by the crew, where there is one."""

        def carry(wants: Sequence[Want], questions: Sequence[Question]) -> list[Any]:
            assert crew is not None
            return crew.replay(wants, questions, self.watched.looking(replays.file, len(wants)))

        return Lookup(plan, replays, None if crew is None else carry, self.watched)

    def _left(self, plan: TunePlan, study: TuneStudy) -> TuneReport:
        """What a call that only searches has to say."""
        counts, best = study.counts(), study.best()
        value = None if best is None or not best.values else best.values[0]
        document = {"schema": "tracekit.tune/1", "search_only": True, "study": plan.key(), "trace": plan.trace.name,
                    "trials": counts, "best": value, "unit": plan.objectives[0].unit}  # fmt: skip
        ended = counts["complete"] + counts["pruned"] + counts["failed"]
        text = (f"{ended} trials are in the study, the best {'none' if value is None else f'{value:.4g}'}"
                f" {plan.objectives[0].unit}; the same command without --search-only answers\n")  # fmt: skip
        return TuneReport(document=document, text=text, replayed=0, lines=self.lines)

    def _estimated(self, plan: TunePlan, replays: Replays) -> TuneReport:
        """How many replays and minutes."""
        workers, pace = self.given["workers"] or len(os.sched_getaffinity(0)), None
        if self.given["verify"] is not None:
            engine = load_engine(self.given["model"], self.given["seed"])
            self.tell(f"verify: measured for {MEASURED_S:.0f} s at most on {engine.what}")
            pace = pace_of(plan, engine, replays.sources)
        document, text = estimated(plan, replays, self.store.folder / "tune" / plan.key(), self.given, workers, pace)
        return TuneReport(document=document, text=text, replayed=replays.replayed, lines=self.lines)

    def _finished(self, folder: Path, plan: TunePlan, study: TuneStudy | None, answer: Answer | None, replays: Replays,
                  verdict: Verdict) -> TuneReport:  # fmt: skip
        document = build_document(plan, study, answer, verdict)
        document |= {"replays": len(replays.file), "wall_s": round(time.monotonic() - self.began, 3)}
        write_json(folder / "answer.json", document)
        result = {name: value for name, value in document.items() if name not in ("wall_s", "replays")}
        write_work_manifest(folder / MANIFEST, "tune", given=self.given, rests_on={"key": plan.key(), "plan": plan.to_dict()},
                            result=result)  # fmt: skip
        return TuneReport(document=document, text=render_report(document), replayed=replays.replayed, lines=self.lines)
