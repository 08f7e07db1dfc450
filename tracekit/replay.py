"""The main job: a trace through the engine, every iteration logged, the acceptance matrix at the end.

``replay`` is what ``tracekit replay`` runs and what a notebook calls. It runs as a job (``tracekit.jobs``), spools events
beside the database as they come, and commits run, events and matrix in one transaction.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from replay_engine.front_door import DoorFacts
from replay_engine.noise import IterationNoise
from replay_engine.policy import Policy
from replay_engine.profile import Profile
from tracekit.again import prepare_again
from tracekit.callable_module import make_callable
from tracekit.delivery import delivery_note
from tracekit.door_facts import door_facts, door_notes
from tracekit.engines import ENGINES, TorchEngine, settle_engine
from tracekit.errors import UsageError, shown
from tracekit.fingerprint import library_versions
from tracekit.frames import run_frame
from tracekit.jobs import Job
from tracekit.manifest import differences, read_manifest, reading_of, restored_setup, write_manifest
from tracekit.metrics import SloTable, parse_goodput, parse_slo
from tracekit.metrics.slo import Slo, parse_duration_ns
from tracekit.pools import pd_sets
from tracekit.record import RunRecord
from tracekit.resumed import committed_before, note_spool
from tracekit.simulate import simulate
from tracekit.slices import check_slice, lead_in_ns, slice_lines, slice_of
from tracekit.store import Store
from tracekit.traces.load import LoadReport, load_trace, report_of
from tracekit.traces.source import TraceSource
from tracekit.traces.stored import stored_number
from tracekit.traces.tolerance import tolerance

if TYPE_CHECKING:
    import polars as pl

    from tracekit.diagnosis.at_once import AtOnce

__all__ = ["ReplayReport", "Setup", "prepare_setup", "recorded_run", "replay", "run_result"]

Progress = Callable[[int, int, str], None]
Say = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class ReplayReport:
    """A run's number, how it ended, its acceptance matrix, and the lines that were said about it."""

    run: int
    state: str
    matrix: dict[str, Any]
    lines: list[str] = field(default_factory=list)
    verdict: list[str] = field(default_factory=list)
    """What the diagnosis says, without proof: the cause, the change that is proposed, and the command that shows more."""
    manifest: dict[str, Any] = field(default_factory=dict)
    """All that decided the run, and digests of what came out (``manifest.json``)."""
    differences: list[str] | None = None
    """With ``from_manifest``: what came out otherwise; empty where every byte is the same."""
    db: Path = Path("tracekit.duckdb")

    def table(self, name: str) -> pl.DataFrame:
        """An event table of the run: ``outcomes``, ``iterations``, ``spans``, ..."""
        return run_frame(self.db, self.run, name)

    @property
    def outcomes(self) -> pl.DataFrame:
        """A row per request: latencies in ns, how it ended, whether it met its SLO."""
        return self.table("outcomes")

    @property
    def iterations(self) -> pl.DataFrame:
        """A row per iteration."""
        return self.table("iterations")


@dataclass(slots=True, kw_only=True)
class Setup:
    """Everything that decides a replay, resolved."""

    profile: Profile
    policy: Policy
    slo: SloTable | None
    source: TraceSource
    trace: int
    trace_name: str
    lead_in_ns: int
    seed: int
    events: str
    accept_degraded: bool
    warmup_ns: int
    facts: DoorFacts
    torch: TorchEngine | None = None
    noise: IterationNoise | None = None
    """Of a simulated engine's iterations; ``None``: they take what the profile says."""


def replay(
    inputs: str | Sequence[str] = (),
    *, from_run: str | None = None, from_manifest: str | None = None,
    engine: str = "auto", model: str | None = None,
    profile: str | None = None,
    policy: str | None = None,
    sets: Sequence[str] = (),
    slo: str | None = None,
    goodput: str | None = None,
    window: str | None = None,
    warmup: str | None = None,
    limit: int | None = None,
    rate_scale: float = 1.0, burst_scale: float = 1.0,
    where: str | None = None,
    thin: str | None = None,
    by: str | None = None,
    spread_ticks: bool = False,
    sessions: str | None = None,
    seed: int = 0,
    events: str = "full",
    mapping: Sequence[str] = (),
    trace_format: str | None = None,
    arrival: str | None = None,
    cached: Literal["inside", "outside"] | None = None,
    on_error: str = "skip",
    max_dropped: str | float | None = None,
    dedupe: bool = False,
    accept_degraded: bool = False,
    replicas: int | None = None, pd: str | None = None, router: str | None = None,
    fail: Sequence[str] = (), slow: Sequence[str] = (),
    name: str | None = None, diagnose: bool = True,
    db: str = "tracekit.duckdb",
    progress: Progress | None = None, say: Say | None = None,
) -> ReplayReport:  # fmt: skip
    """Replay ``inputs`` (files, globs, ``-``, or one name of a loaded trace) and record the run in ``db``; defaults as on the
    command line. ``from_run``: no inputs, but a recorded run once more, with ``sets`` changed. ``from_manifest``: the run of a
    ``manifest.json`` once more, ``inputs`` being where its trace lies now. ``progress(done, total, note)`` is called now and
    then, ``say(line)`` with what runs, before it runs. Errors: ``UsageError``, ``InputError``, ``LockedError``."""
    return _as_job(locals())


def _as_job(given: dict[str, Any]) -> ReplayReport:
    """The replay as a job with a folder: how it ended is written down whatever happens."""
    if not given["inputs"] and given["from_run"] is None and given["from_manifest"] is None:
        raise UsageError("no trace; expected TRACE..., --from-run RUN for a recorded run once more, or --from MANIFEST")
    if given["engine"] not in ENGINES:
        raise UsageError(f"--engine {shown(given['engine'])}: expected one of {', '.join(ENGINES)}")
    store = Store(given["db"])
    job = Job.adopt() or Job.create(store.folder, "replay", {"argv": list(sys.orig_argv)})
    with job.accounted(interrupted="interrupted before the replay began"):
        report = _job(store, job, given)
    job.finish(run_result(report))
    return report


def run_result(report: ReplayReport) -> dict[str, Any]:
    """What the folder of a job that recorded a run says of how it ended."""
    stopped, failed = report.state == "interrupted", report.state.startswith("failed")
    done: dict[str, Any] = {"exit_code": 130 if stopped else 5 if failed else 0, "run": report.run, "cancelled": stopped}
    return done | ({"error": report.state} if failed else {})


def _job(store: Store, job: Job, given: dict[str, Any]) -> ReplayReport:
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        if given["say"] is not None:
            given["say"](line)

    if (kept := committed_before(store, job, tell)) is not None:
        return ReplayReport(**kept, lines=lines, db=store.path)
    before = None if given["from_manifest"] is None else read_manifest(given["from_manifest"])
    setup = prepare_setup(store, given, tell) if before is None else restored_setup(store, before, given, tell)
    report = recorded_run(store, job, setup, name=given["name"], diagnose=given["diagnose"], progress=given["progress"],
                          tell=tell, lines=lines, given=given if before is None else reading_of(before, given))  # fmt: skip
    report.differences = None if before is None else differences(before, report.manifest)
    return report


def recorded_run(store: Store, job: Job, setup: Setup, *, name: str | None, diagnose: bool, progress: Progress | None, tell: Say,
                 lines: list[str], given: Mapping[str, Any] | None = None) -> ReplayReport:  # fmt: skip
    """Replay a setup and record the run, with its manifest, and its verdict where every event is kept. ``lines``: what ``tell``
    gathers; ``given``: the options that the manifest tells how the trace was read by."""
    record = RunRecord(store, setup, name=name, command=" ".join(shown(a, 400) for a in sys.argv))
    note_spool(job, record.spool)
    state = simulate(setup, record, job, progress)
    with record.committing():
        verdict = _verdict(setup, record) if diagnose and setup.events == "full" and state == "finished" else None
        library_versions()  # of the manifest; now, since another core has rows to insert
        run, matrix = record.commit(state.partition(":")[0])
        if state != "finished":
            tell(f"the replay ended early: {state.replace('_', ' ')}; what ran is recorded as run {run}")
        told, said = ([], None) if verdict is None else (verdict.lines(run, str(store.path)), verdict.document)
        manifest = write_manifest(store, run, setup, row=record.row, verdict=said, given=given)
    return ReplayReport(run=run, state=state, matrix=matrix, lines=lines, verdict=told, manifest=manifest, db=store.path)


def _verdict(setup: Setup, record: RunRecord) -> AtOnce:
    """The verdict, once the run's number is known. The run is what matters: a diagnosis that fails must not take it along."""
    from tracekit.diagnosis.at_once import verdict_at_once
    return verdict_at_once(setup, record)


def prepare_setup(store: Store, given: dict[str, Any], tell: Say) -> Setup:
    """Everything that the options of ``replay`` decide; a trace that is a file is loaded. Errors as ``replay``'s."""
    sets = (*given["sets"], *_fleet_sets(given))
    if given.get("from_run") is not None:
        return prepare_again(store, given, sets, tell)
    check_slice(given)  # a slip is told before a long trace is loaded
    given["sets"] = sets
    engine = settle_engine(given)
    profile, policy = engine.profile, engine.policy
    tell(engine.line)
    for note in policy.notes:
        tell(f"policy: {note}")
    delivered = delivery_note(profile, policy.rules)
    if delivered is not None:
        tell(delivered)
    warmup_ns = parse_duration_ns(given["warmup"], where="--warmup") if given["warmup"] else 0
    slo = _slo(given, policy)
    trace, trace_name, t0_ns, span_ns = _trace(store, given, tell)
    part = slice_of(given, span_ns, t0_ns)
    with store.read() as con:
        if part.window_ns is not None:
            part = replace(part, lead_in_ns=lead_in_ns(con, trace, profile))
        source = TraceSource.from_database(con, trace, part)
    for line in slice_lines(source):
        tell(line)
    for note in door_notes(policy, source):
        tell(f"policy: {note}")
    return Setup(
        profile=profile, policy=policy, slo=slo, source=source, trace=trace, trace_name=trace_name, lead_in_ns=part.lead_in_ns,
        seed=given["seed"], events=given["events"], accept_degraded=given["accept_degraded"], warmup_ns=warmup_ns,
        facts=door_facts(policy, profile, slo, source), torch=engine.torch,
    )  # fmt: skip


def _fleet_sets(given: dict[str, Any]) -> list[str]:
    """``--replicas``, ``--router``, ``--fail`` and ``--slow`` as the settings they stand for, of ``[fleet]`` or with ``--pd`` of
    ``[pd]``."""
    if given["pd"] is not None:
        return pd_sets(given)
    sets = [f"fleet.{name}={given[name]}" for name in ("replicas", "router") if given[name] is not None]
    return sets + [f"fleet.{name}={','.join(given[name])}" for name in ("fail", "slow") if given[name]]


def _slo(given: dict[str, Any], policy: Policy) -> SloTable | None:
    default: Slo | None = None
    if given["slo"] and given["goodput"]:
        raise UsageError("--slo and --goodput: two ways to say the same thing; expected one of them")
    if given["slo"]:
        default = parse_slo(given["slo"])
    elif given["goodput"]:
        default = parse_goodput(given["goodput"])
    if default is None and not policy.slo:
        return None
    return SloTable.from_policy(policy.slo, default)


def _trace(store: Store, given: dict[str, Any], tell: Say) -> tuple[int, str, int | None, int]:
    """The loaded trace behind ``inputs``: its number, name, start (UTC ns or ``None``) and span (ns)."""
    inputs = [given["inputs"]] if isinstance(given["inputs"], str) else list(given["inputs"])
    found = _named_trace(store, inputs)
    if found is None:
        allowed = tolerance(given["on_error"], given["max_dropped"], given["dedupe"])
        with store.write("load a trace") as con:
            report = load_trace(con, inputs, mapping=list(given["mapping"]), fmt=given["trace_format"], tolerance=allowed,
                                arrival=given["arrival"], cached=given["cached"])  # fmt: skip
    elif given["arrival"] or given["cached"]:
        raise UsageError(f"--arrival, --cached: {shown(inputs[0])} is loaded already; expected them with files")
    else:
        report = found
    assert report.trace is not None
    dropped = sum(report.rows_dropped.values())
    kept = f"trace: {shown(report.name)}, {report.rows_kept:,} requests ({report.format})"
    why = "; ".join(f"{n:,} {reason}" for reason, n in report.rows_dropped.items())
    tell(kept + (f", {dropped:,} rows dropped: {why}" if dropped else ""))
    for warning in report.warnings:
        tell(f"trace: {shown(warning, 400)}")
    return report.trace, report.name, report.t0_ns, report.span_ns


def _named_trace(store: Store, inputs: list[str]) -> LoadReport | None:
    """A loaded trace of this name, unless a file is called so too. One connection for it: opening one takes longest."""
    if len(inputs) != 1 or os.path.exists(inputs[0]) or not store.exists():
        return None
    with store.read() as con:
        number = stored_number(con, inputs[0])
        return None if number is None else report_of(con, number)


make_callable(__name__)
