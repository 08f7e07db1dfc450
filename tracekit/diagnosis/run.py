"""``diagnose``: what ``tracekit diagnose`` runs and what a notebook calls. A recorded run, as a job, its findings recorded."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.diagnosis.diagnose import diagnose as find_causes
from tracekit.diagnosis.finding import Diagnosis
from tracekit.diagnosis.proof import BUDGET, prove
from tracekit.diagnosis.rates import falls_with_load, loads_of
from tracekit.diagnosis.run_data import RunData
from tracekit.diagnosis.stored import load_run_data
from tracekit.diagnosis.text import render_diagnosis
from tracekit.diagnosis.verdict import build_verdict
from tracekit.errors import UsageError, shown
from tracekit.fingerprint import rests_on
from tracekit.jobs import Job
from tracekit.store import Store
from tracekit.store.findings import record_findings

if TYPE_CHECKING:
    import polars as pl

__all__ = ["DiagnosisReport", "diagnose", "parse_iterations"]

Progress = Callable[[int, int, str], None]
_FINDINGS: dict[str, Any] = {
    "id": str, "what": str, "excess_s": float, "share": float, "confidence": str, "knob": str, "new": str, "confirmed": bool,
}  # fmt: skip
_UNITS = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisReport:
    """A diagnosis as values, as one JSON document (``verdict.json``), and as the text that a person reads; ``number``: its own in
    table ``findings``."""

    run: int
    number: int
    diagnosis: Diagnosis
    document: dict[str, Any]
    text: str
    lines: list[str] = field(default_factory=list)

    def findings(self) -> pl.DataFrame:
        """A row per finding, what explains most first: seconds of excess, share, confidence, the knob, and whether a replay bore
        it out."""
        import polars as pl

        rows = [
            {"id": each["id"], "what": each["what"], "excess_s": each["excess_s"], "share": each["share_of_excess"],
             "confidence": each["confidence"], "knob": next((one["knob"] for one in each["recommend"]), None),
             "new": next((one["new"] for one in each["recommend"]), None), "confirmed": each["confirmed_by_replay"]}
            for each in self.document["findings"]
        ]  # fmt: skip
        return pl.DataFrame(rows, schema=_FINDINGS)


def parse_iterations(text: str) -> int:
    """``5M``, ``500k`` or a plain number of iterations. ``UsageError`` where it is none."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([kmgKMG]?)\s*", text)
    count = round(float(match[1]) * _UNITS[match[2].lower()]) if match else 0
    if count < 1:
        raise UsageError(f"--prove {shown(text)}: expected a number of iterations, as 5M or 500k")
    return count


def diagnose(
    run: str | int = "last",
    *,
    prove_iterations: int | None = BUDGET,
    workers: int | None = None,
    limit_findings: int | None = None,
    db: str | Path = "tracekit.duckdb",
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> DiagnosisReport:
    """Why requests of a recorded run (its number, its name, or ``last``) are slow, what to change, and whether that holds when
    the same requests are replayed with it. ``prove_iterations``: what all those replays may take, ``None`` for none; ``workers``:
    processes (left out: one per core). ``progress(done, planned, note)`` counts replays. Errors: ``UsageError``,
    ``LockedError``; ``KeyboardInterrupt`` when it was cancelled."""
    if limit_findings is not None and limit_findings < 1:
        raise UsageError(f"--limit-findings {limit_findings}: expected at least 1")
    store = Store(db)
    job = Job.adopt() or Job.create(store.folder, "diagnose", {"argv": list(sys.orig_argv)})
    with job.accounted(interrupted="interrupted; nothing was recorded"):
        data = load_run_data(store, str(run))
        found = _beside(store, data, find_causes(data))
        if prove_iterations is not None:
            if say is not None:
                say(_plan(data, prove_iterations))
            found = _proved(data, found, prove_iterations, workers, job, progress)
        document = build_verdict(data, found, budget=prove_iterations, limit=limit_findings)
        assert data.run is not None
        number = record_findings(store, data.run, document)
        _write_manifest(store, data, document, number, prove_iterations)
    job.finish({"exit_code": 0, "run": data.run, "diagnosis": number})
    text = render_diagnosis(data, found, replayed=prove_iterations is not None, limit=limit_findings)
    return DiagnosisReport(run=data.run, number=number, diagnosis=found, document=document, text=text)


def _write_manifest(store: Store, data: RunData, document: dict[str, Any], number: int, budget: int | None) -> None:
    """Beside the run's own, which is its input."""
    from tracekit.manifest import MANIFEST, folder_of
    from tracekit.work_manifest import input_file, write_work_manifest

    assert data.run is not None
    folder = folder_of(store, data.run)
    write_work_manifest(
        folder / f"diagnosis-{number}.{MANIFEST}", "diagnose", given={"run": data.run, "prove": budget},
        rests_on=rests_on(data.setup), result=document, inputs=[input_file("run", folder / MANIFEST)],
    )  # fmt: skip


def _beside(store: Store, data: RunData, found: Diagnosis) -> Diagnosis:
    """With what other runs of the trace say about this one's figures, or that there are none to say it."""
    assert data.run is not None
    loads = loads_of(store, data.run)
    if len(loads) < 2:
        none = "no run of this trace at another rate is recorded (--rate-scale): how its tail depends on the load cannot be told"
        return replace(found, remarks=(*found.remarks, none))
    return replace(found, warnings=(*found.warnings, *falls_with_load(loads)))


def _proved(data: RunData, found: Diagnosis, budget: int, workers: int | None, job: Job, progress: Progress | None) -> Diagnosis:
    def tell(done: int, planned: int) -> None:
        job.progress(done, planned, unit="replays")
        if progress is not None:
            progress(done, planned, "")

    workers = workers or len(os.sched_getaffinity(0))
    return prove(data, found, budget=budget, workers=workers, progress=tell, cancelled=job.cancelled)


def _plan(data: RunData, budget: int) -> str:
    own = len(data.iterations)
    return f"replaying what is proposed and what tempts: at most {budget:,} iterations, the run itself took {own:,}"
