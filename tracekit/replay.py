"""The main job: a trace through the engine, every iteration logged, the acceptance matrix at the end.

``replay`` is what ``tracekit replay`` runs and what a notebook calls. It runs as a job (``tracekit.jobs``), spools events
beside the database as they come, and commits run, events and matrix in one transaction.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from replay_engine.config import ConfigError
from replay_engine.front_door import DoorFacts
from replay_engine.loop import Replay
from replay_engine.policy import Policy
from replay_engine.profile import Profile
from replay_engine.rules import Rules
from replay_engine.totals import RunTotals
from tracekit.door_facts import door_facts, door_notes
from tracekit.engines import ENGINES, TorchEngine, executor_for, settle_engine
from tracekit.errors import TracekitError, UsageError, shown
from tracekit.jobs import Job
from tracekit.metrics import SloTable, parse_goodput, parse_slo
from tracekit.metrics.slo import Slo, parse_duration_ns
from tracekit.record import RunRecord
from tracekit.slices import lead_in_ns, slice_lines, slice_of
from tracekit.store import Store
from tracekit.traces.load import load_trace, report_of
from tracekit.traces.source import TraceSource
from tracekit.traces.tolerance import tolerance

__all__ = ["ReplayReport", "replay"]

DEFAULT_KV_BYTES = 131072
"""KV bytes of a token where the profile has no model: those of an 8B model with grouped-query attention."""

Progress = Callable[[int, int, str], None]
Say = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class ReplayReport:
    """A run's number, how it ended, its acceptance matrix, and the lines that were said about it."""

    run: int
    state: str
    matrix: dict[str, Any]
    lines: list[str] = field(default_factory=list)


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


def replay(
    inputs: str | Sequence[str],
    *,
    engine: str = "auto",
    model: str | None = None,
    profile: str | None = None,
    policy: str | None = None,
    sets: Sequence[str] = (),
    slo: str | None = None,
    goodput: str | None = None,
    window: str | None = None,
    warmup: str | None = None,
    limit: int | None = None,
    rate_scale: float = 1.0,
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
    name: str | None = None,
    db: str = "tracekit.duckdb",
    progress: Progress | None = None,
    say: Say | None = None,
) -> ReplayReport:
    """Replay ``inputs`` (files, globs, ``-``, or one name of a loaded trace) and record the run in ``db``.

    The defaults are those of the command line. ``progress(done, total, note)`` is called now and then, ``say(line)`` with what
    runs, before it runs. Errors: ``UsageError``, ``InputError``, ``LockedError``.
    """
    return _as_job(locals())


def _as_job(given: dict[str, Any]) -> ReplayReport:
    """The replay as a job with a folder: how it ended is written down whatever happens."""
    if given["engine"] not in ENGINES:
        raise UsageError(f"--engine {shown(given['engine'])}: expected one of {', '.join(ENGINES)}")
    store = Store(given["db"])
    job = Job.adopt() or Job.create(store.folder, "replay", {"argv": list(sys.orig_argv)})
    job.begin()
    try:
        report = _job(store, job, given)
    except KeyboardInterrupt:
        job.finish({"exit_code": 130, "cancelled": True, "error": "interrupted before the replay began"})
        raise
    except Exception as error:
        code = error.exit_code if isinstance(error, TracekitError) else 2 if isinstance(error, ConfigError) else 5
        job.finish({"exit_code": code, "error": str(error)})
        raise
    stopped, failed = report.state == "interrupted", report.state.startswith("failed")
    done: dict[str, Any] = {"exit_code": 130 if stopped else 5 if failed else 0, "run": report.run, "cancelled": stopped}
    job.finish(done | ({"error": report.state} if failed else {}))
    return report


def _job(store: Store, job: Job, given: dict[str, Any]) -> ReplayReport:
    lines: list[str] = []
    say: Say | None = given["say"]

    def tell(line: str) -> None:
        lines.append(line)
        if say is not None:
            say(line)

    setup = _prepare(store, given, tell)
    record = RunRecord(store, setup, name=given["name"], command=" ".join(shown(a, 400) for a in sys.argv))
    state = _simulate(setup, record, job, given["progress"])
    run, matrix = record.commit(state.partition(":")[0])
    if state != "finished":
        tell(f"the replay ended early: {state.replace('_', ' ')}; what ran is recorded as run {run}")
    return ReplayReport(run=run, state=state, matrix=matrix, lines=lines)


def _prepare(store: Store, given: dict[str, Any], tell: Say) -> Setup:
    engine = settle_engine(given)
    profile, policy = engine.profile, engine.policy
    if policy.rules.pd.prefill:
        raise UsageError("pd.prefill: replaying separate pools is not built yet; expected pd.prefill = 0")
    tell(engine.line)
    for note in policy.notes:
        tell(f"policy: {note}")
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
        with store.read() as con:
            report = report_of(con, found)
    assert report.trace is not None
    dropped = sum(report.rows_dropped.values())
    kept = f"trace: {shown(report.name)}, {report.rows_kept:,} requests ({report.format})"
    why = "; ".join(f"{n:,} {reason}" for reason, n in report.rows_dropped.items())
    tell(kept + (f", {dropped:,} rows dropped: {why}" if dropped else ""))
    for warning in report.warnings:
        tell(f"trace: {shown(warning, 400)}")
    return report.trace, report.name, report.t0_ns, report.span_ns


def _named_trace(store: Store, inputs: list[str]) -> int | None:
    """A loaded trace of this name, unless a file is called so too."""
    if len(inputs) != 1 or os.path.exists(inputs[0]) or not store.exists():
        return None
    with store.read() as con:
        there = con.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = 'traces'").fetchall()
        rows = con.execute("SELECT trace FROM traces WHERE name = ?", [inputs[0]]).fetchall() if there else []
    return int(rows[0][0]) if rows else None


def _simulate(setup: Setup, record: RunRecord, job: Job, progress: Progress | None) -> str:
    total = setup.source.total
    config = setup.policy.scheduler
    rules = setup.policy.rules
    if rules.order.larger_first:
        rules = smaller_first(setup.source, rules)
    executor, pool, sink = executor_for(setup, rules, record.sink)
    looked = time.monotonic()

    def on_chunk(totals: RunTotals) -> None:
        nonlocal looked
        now = time.monotonic()
        if now - looked < 0.1:
            return
        looked = now
        job.progress(totals.finished, total, unit="requests")
        if progress is not None:
            progress(totals.finished, total, f"{totals.iterations:,} iterations")
        if job.cancelled():
            raise KeyboardInterrupt

    run = Replay(
        setup.source, config, executor, sink, mode="full" if setup.events == "full" else "outcomes",
        stall_threshold_ns=record.stall_threshold_ns, on_chunk=on_chunk, rules=rules, facts=setup.facts,
        kv_block_bytes=block_bytes(setup), pool=pool,
    )  # fmt: skip
    with _quiet_gc():
        ended = run.run()
    state = ended if run.failure is None else str(run.failure)
    record.totals = run.totals
    job.progress(total, total, unit="requests")
    return state


def smaller_first(source: TraceSource, rules: Rules) -> Rules:
    """Turn priorities round where the larger is the more urgent: the trace's in place, the tiers' in the rules returned."""
    if source.priority is not None:
        source.priority = -source.priority
    tiers = tuple(replace(tier, priority=-tier.priority) for tier in rules.order.reserved)
    return replace(rules, order=replace(rules.order, larger_first=False, reserved=tiers))


def block_bytes(setup: Setup) -> int:
    """Bytes of a KV block on one card, which its own link to the host carries."""
    model, hardware = setup.profile.model, setup.profile.hardware
    per_token = model.kv_bytes_per_token if model is not None else DEFAULT_KV_BYTES
    cards = hardware.tensor_parallel if hardware is not None else 1
    return max(1, int(per_token * setup.policy.scheduler.block_size / cards))


@contextmanager
def _quiet_gc() -> Iterator[None]:
    """No cycle collection while the loop runs: it makes no cycles, and looking for them costs up to a third of the time."""
    enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()

