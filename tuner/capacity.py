"""``capacity``: how much more traffic a policy takes before the SLO no longer holds, and what it would take to serve it.

A one-dimensional question is bisected, not optimised: the arrival rate is scaled until attainment falls below the target, on the
same windows each time. Beside the knee stands what follows it: the slope, and attainment past it. Replicas over time are given
twice, as the bound of an ideal autoscaler (arrivals of a slot over what one replica serves) and as replayed, with queueing. The
same for every what-if (``scenario.py``). It runs as a job; a killed one goes on where it stopped, and the answer is kept.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tracekit.capacities import SCHEMA, answers_folder
from tracekit.experiments.run import _READING
from tracekit.jobs import Job
from tracekit.manifest import MANIFEST
from tracekit.store import Store
from tracekit.store.files import write_json
from tracekit.work_manifest import write_work_manifest
from tuner.capacity_text import capacity_text
from tuner.cells import CELLS, CellFile, Replays
from tuner.plan import TunePlan
from tuner.planning import make_plan
from tuner.scenario import Scenario, of_plan, of_what_if
from tuner.what_if import resolve_what_if
from tuner.windows import WindowSources

__all__ = ["CapacityReport", "capacity"]

EXPECTED = 22
"""Rates and replica counts that a scenario takes, about."""
_DEFAULTS: dict[str, Any] = {
    "goodput": None, "policy": None, "sets": (), "profile": None, "space": None, "objective": "goodput", "target": 0.9,
    "price_per_hour": None, "windows": 4, "holdout": 0, "split": "alternate", "length": None, "window": None, "rate_scale": 1.0,
    "where": None, "thin": None, "by": None, "spread_ticks": False, "sessions": None, "also": (), "seed": 0,
    "accept_degraded": False, "isl_scale": 1.0, "osl_scale": 1.0, "burst_scale": 1.0,
}  # fmt: skip
Say = Callable[[str], None]
Progress = Callable[[int, int, str], None]


@dataclass(slots=True, kw_only=True)
class CapacityReport:
    """The document (``tracekit.capacity/1``), its text, the lines that were said."""

    document: dict[str, Any]
    text: str
    lines: list[str] = field(default_factory=list)


def capacity(trace: str, *, slo: str | None = None, what_if: Sequence[str] = (), db: str | Path = "tracekit.duckdb",
             say: Say | None = None, progress: Progress | None = None, **options: Any) -> CapacityReport:  # fmt: skip
    """The knee of ``trace`` under the current policy, and under each of ``what_if``: ``knob=value`` settings separated by
    spaces, and what ``tuner.what_if`` knows besides: hardware, tensor parallel, KV, lost replicas, traffic, SLO, price. Options
    are those of ``tune``, and ``isl_scale``, ``osl_scale`` and ``burst_scale``. Errors: ``UsageError``, ``InputError``,
    ``ConfigError``; ``KeyboardInterrupt`` when it was cancelled: the same call goes on where it stopped."""
    if unknown := set(options) - set(_DEFAULTS) - set(_READING):
        raise TypeError(f"capacity() got an unexpected keyword argument '{min(unknown)}'")
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        if say is not None:
            say(line)

    store = Store(db)
    job = Job.adopt() or Job.create(store.folder, "capacity", {"argv": list(sys.orig_argv)})
    with job.accounted(interrupted="interrupted; the same command goes on where it stopped"):
        plan = make_plan(store, {**_DEFAULTS, **_READING, **options, "slo": slo, "trace": trace}, tell)
        question = _Question(store, plan, tuple(what_if), job, progress)
        document = question.document()
        result = {name: value for name, value in document.items() if name not in ("job", "answered_at")}
        write_work_manifest(question.folder / MANIFEST, "capacity", rests_on={"key": plan.key(), "plan": plan.to_dict()},
                            given={**options, "trace": trace, "slo": slo, "what_if": list(what_if)}, result=result)  # fmt: skip
    job.finish({"exit_code": 0, "capacity": document["capacity"]})
    return CapacityReport(document=document, text=capacity_text(document), lines=lines)


class _Question:
    """One question: its scenarios answered one after the other, and the answer kept."""

    def __init__(self, store: Store, plan: TunePlan, what_if: tuple[str, ...], job: Job, progress: Progress | None) -> None:
        self._store, self._plan, self._what_if, self._job, self._progress = store, plan, what_if, job, progress
        self.folder = store.folder / "tune" / f"capacity-{plan.key()}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._replays = Replays(WindowSources(store), CellFile(self.folder / CELLS))
        self._done = self._answered = 0

    def document(self) -> dict[str, Any]:
        plan = self._plan
        changed = [resolve_what_if(plan, text) for text in self._what_if]  # what cannot be asked is said before the first replay
        base = of_plan(plan, self._replays, self._step)
        scenarios = [of_what_if(base, text, each) for text, each in zip(self._what_if, changed, strict=True)]
        head = {"schema": SCHEMA, "capacity": self._key(), "trace": plan.trace.name, "traffic": list(plan.trace.lines),
                "target": plan.target, "job": self._job.id, "asked": list(self._what_if),
                "answered_at": datetime.now(UTC).isoformat(timespec="seconds")}  # fmt: skip
        now = self._answer(base)
        rows = []
        for each in scenarios:
            row = self._answer(each)
            rows.append({**row, "over_current": row["factor"] / now["factor"] if now["factor"] else None})
        found = {**head, **now, "what_if": rows}
        write_json(answers_folder(self._store) / f"{head['capacity']}.json", found)
        self._job.progress(self._done, self._done, unit="replays")
        return found

    def _answer(self, scenario: Scenario) -> dict[str, Any]:
        found = scenario.knee()
        found["replicas"] = scenario.replicas(found)
        found["cost"] = scenario.cost(found)
        self._answered += 1
        return found

    def _key(self) -> str:
        """Sixteen hex digits: of everything that decides the answer."""
        matters = [self._plan.key(), self._plan.price, list(self._what_if)]
        return hashlib.sha256(json.dumps(matters).encode()).hexdigest()[:16]

    def _step(self, note: str) -> None:
        """Before every replay: how far it is, about; ``KeyboardInterrupt`` where somebody asked to stop."""
        if self._job.cancelled():
            raise KeyboardInterrupt
        each = EXPECTED * len(self._plan.trace.search)
        total = max(each * (1 + len(self._what_if)), self._done + each * (len(self._what_if) - self._answered) + 1)
        self._job.progress(self._done, total, unit="replays", note=note)
        if self._progress is not None:
            self._progress(self._done, total, note)
        self._done += 1
