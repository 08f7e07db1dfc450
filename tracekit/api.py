"""The verbs whose library functions have other shapes than their commands: here with the same names and defaults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tracekit.diagnosis.observed_run import ObservedReport, diagnose_trace
from tracekit.diagnosis.run import DiagnosisReport, parse_iterations
from tracekit.diagnosis.run import diagnose as diagnose_run
from tracekit.errors import UsageError, shown
from tracekit.frames import requests_frame
from tracekit.store import Store
from tracekit.traces.load import LoadReport, load_trace
from tracekit.traces.said_prefix import Beginning
from tracekit.traces.tolerance import tolerance

if TYPE_CHECKING:
    import polars as pl

__all__ = ["LoadedInto", "diagnose", "load"]

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedInto:
    """A trace in a database: what was kept of it and what was not."""

    report: LoadReport
    db: Path

    @property
    def trace(self) -> int:
        """Its number."""
        assert self.report.trace is not None
        return self.report.trace

    @property
    def name(self) -> str:
        """As other verbs take it."""
        return self.report.name

    def requests(self) -> pl.DataFrame:
        """A row per request; times are ns from the trace's start."""
        return requests_frame(self.db, self.trace)


def load(
    files: str | Sequence[str], *, mapping: Sequence[str] = (), trace_format: str | None = None, arrival: str | None = None,
    cached: Literal["inside", "outside"] | None = None, on_error: str = "skip", max_dropped: str | float | None = None,
    dedupe: bool = False, shared_prefix: int | str | None = None, name: str | None = None, db: str | Path = "tracekit.duckdb",
) -> LoadedInto:  # fmt: skip
    """Load a trace (files, globs, a folder) into ``db``; the same bytes are found, not loaded again. ``shared_prefix``: tokens
    that all prompts begin with, where the trace has no block hashes, or ``"32@100"``: so many on average after so many
    requests. Errors: ``UsageError``, ``InputError``, ``LockedError``."""
    allowed = tolerance(on_error, max_dropped, dedupe)
    given = [files] if isinstance(files, str) else list(files)
    said = None if shared_prefix is None else Beginning.parse(str(shared_prefix), "shared_prefix")
    with Store(db).write("load a trace") as con:
        report = load_trace(con, given, name=name, mapping=list(mapping), fmt=trace_format, arrival=arrival, tolerance=allowed,
                            cached=cached, shared_prefix=said)  # fmt: skip
    return LoadedInto(report=report, db=Path(db))


def diagnose(
    run: str | int = "last", *, prove: str | int = "5M", no_prove: bool = False, limit_findings: int | None = None,
    jobs: int | None = None, observed: bool = False, sets: Sequence[str] = (), policy: str | None = None,
    profile: str | None = None, slo: str | None = None, db: str | Path = "tracekit.duckdb", progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> DiagnosisReport | ObservedReport:  # fmt: skip
    """Why requests of a run are slow, what to change, and whether replays bear it out; with ``observed`` those of a trace with
    latencies (``run`` is its file or name), for which the other options are. ``prove``: iterations that replays may take
    together. Errors: ``UsageError``, ``InputError``, ``LockedError``."""
    iterations = None if no_prove else parse_iterations(str(prove))
    if observed:
        return diagnose_trace(str(run), prove_iterations=iterations, workers=jobs, progress=progress, sets=tuple(sets),
                              policy=policy, profile=profile, slo=slo, db=db)  # fmt: skip
    for name, value in (("set", sets), ("policy", policy), ("profile", profile), ("slo", slo)):
        if value:
            raise UsageError(f"--{name}: a run has its own; expected it with --observed and a trace")
    if Path(str(run)).is_file():
        raise UsageError(f"{shown(run, 200)}: a file; expected a run (tracekit replay makes one), or --observed with a trace")
    return diagnose_run(run, prove_iterations=iterations, workers=jobs, limit_findings=limit_findings, db=db, progress=progress,
                        say=say)  # fmt: skip
