"""``diagnose_trace``: what ``tracekit diagnose TRACE --observed`` runs. A trace with its own latencies, and what is known of the
engine: settings, and a calibrated profile.

What the requests' own moments tell comes first. With a profile the trace is replayed: where that shows what was observed, what is
wrong with the replay is wrong with the engine, and changes can be proved; where it does not, that is the answer. The two
must not contradict each other: then nothing is named.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from replay_engine.profile import Profile, load_profile
from tracekit.calibration.observed.settings import Known, known_settings
from tracekit.calibration.observed.shared_prefix import begin_alike, fitted_prefix
from tracekit.diagnosis.diagnose import diagnose
from tracekit.diagnosis.finding import Diagnosis, Finding
from tracekit.diagnosis.from_observed import diagnose_observed
from tracekit.diagnosis.observed import Observed, observe
from tracekit.diagnosis.observed_replay import Beside, beside_replay
from tracekit.diagnosis.proof import BUDGET, prove
from tracekit.errors import InputError, UsageError
from tracekit.fitted_settings import fitted_sets
from tracekit.metrics import SloTable, parse_slo
from tracekit.metrics.slo import Slo
from tracekit.traces.source import TraceSource
from tracekit.traces.stored import loaded_or_read
from tracekit.trust.accuracy import observed_latencies, predicted_latencies
from tracekit.trust.check import setup_on

if TYPE_CHECKING:
    from tracekit.diagnosis.run_data import RunData

__all__ = ["ObservedReport", "diagnose_trace"]

Progress = Callable[[int, int, str], None]
Bools = npt.NDArray[np.bool_]
FEW_LATE = 0.01
"""Of the requests whose latencies are known: with fewer that miss the SLO, nothing is wrong."""
ITS_OWN = 0.5
"""Of the excess: where the replay accounts for less of the waits that were observed, they are not what scheduling made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedReport:
    """What a trace's latencies tell: the diagnosis; ``seen``, the trace's own parts and levels; ``known``, the engine's settings;
    ``beside`` and ``data``, the replay, where there is a profile. ``missed``: requests that miss the SLO, of ``judged``."""

    trace: str
    requests: int
    clock: str | None
    seen: Observed
    known: Known
    slo: Slo | None
    diagnosis: Diagnosis
    profile: Profile | None = None
    beside: Beside | None = None
    data: RunData | None = None
    missed: int = 0
    judged: int = 0
    notes: tuple[str, ...] = ()

    @property
    def document(self) -> dict[str, Any]:
        from tracekit.diagnosis.observed_text import observed_document

        return observed_document(self)

    @property
    def text(self) -> str:
        from tracekit.diagnosis.observed_text import render_observed

        return render_observed(self)


def diagnose_trace(
    inputs: str | Sequence[str],
    *,
    policy: str | None = None,
    sets: Sequence[str] = (),
    profile: str | None = None,
    slo: str | None = None,
    prove_iterations: int | None = BUDGET,
    workers: int | None = None,
    db: str | Path = "tracekit.duckdb",
    progress: Progress | None = None,
) -> ObservedReport:
    """Why requests of an observed trace (files, or the name of a loaded one) are slow. ``policy`` and ``sets``: how its engine
    ran; ``profile``: one calibrated for it, whose own settings count where nothing else is said; ``slo`` as ``ttft=500ms``.
    Errors: ``UsageError``, ``InputError``, ``ConfigError``."""
    prior = None if profile is None else load_profile(profile)
    limits = None if slo is None else parse_slo(slo)
    told = () if prior is None else fitted_sets(prior, sets)
    known = known_settings(policy, (*(told if policy is None else ()), *sets), prior)
    source, clock, notes = _source(inputs, db)
    said = known.shared_prefix
    alike = said if said is not None else fitted_prefix(prior, source) if prior is not None else None
    if alike:
        begin_alike(source, alike, known.policy.scheduler.block_size)
    seen = observe(source)
    if not seen.has:
        raise InputError("no request has a latency: there is nothing to diagnose", file=source.name,
                         expected="queue times, TTFT, TPOT or E2E; or replay it")  # fmt: skip
    late, judged = _late(source, limits, seen)
    found = diagnose_observed(source, seen=seen, **_limits(known), late=late)
    report = ObservedReport(
        trace=source.name, requests=source.total, clock=known.clock or clock, seen=seen, known=known, slo=limits,
        diagnosis=found, profile=prior, missed=0 if late is None else int(late.sum()), judged=judged,
        notes=(*notes, *(known.notes if prior else ())),
    )  # fmt: skip
    if late is not None and late.sum() < max(FEW_LATE * judged, 1):
        calm = f"nothing is wrong: {int(late.sum())} of {judged} requests miss the SLO"
        return replace(report, diagnosis=replace(found, findings=(), excess_ns=0, unexplained_ns=0, remarks=(calm,)))
    return report if prior is None else _replayed(report, source, prove_iterations, workers, progress)


def _source(inputs: str | Sequence[str], db: str | Path) -> tuple[TraceSource, str | None, tuple[str, ...]]:
    loaded = loaded_or_read(inputs, db)
    return TraceSource.from_loaded(loaded), loaded.report.obs_clock, tuple(f"trace: {each}" for each in loaded.report.warnings)


def _limits(known: Known) -> dict[str, int | None]:
    """Seats and KV tokens of the engine, where somebody said them and there is one engine."""
    policy, config = known.policy, known.policy.scheduler
    if policy.engines or policy.rules.fleet.replicas > 1:
        return {"seats": None, "kv_tokens": None}
    blocks = config.usable_blocks * config.block_size
    return {"seats": config.max_num_seqs if "max_num_seqs" in known.given else None,
            "kv_tokens": blocks if "num_gpu_blocks" in known.given else None}  # fmt: skip


def _late(source: TraceSource, slo: Slo | None, seen: Observed) -> tuple[Bools | None, int]:
    """Who misses the SLO, and of how many that can be said. ``UsageError``: it asks for what no trace tells, or this one does
    not."""
    if slo is None:
        return None, 0
    latencies = observed_latencies(source)
    late, judged = np.zeros(source.total, np.bool_), np.zeros(source.total, np.bool_)
    for part in slo.given():
        if part not in ("ttft", "tpot", "e2e"):
            raise UsageError(f"--slo {part}: the gaps between tokens are not in a trace; expected ttft, tpot or e2e")
        values, limit = latencies.metric(part), slo.limit(part)
        if np.isnan(values).all():
            raise UsageError(f"--slo {part}: the trace has no such latencies; it has {', '.join(seen.has)}")
        late |= np.nan_to_num(values) > float(limit or 0)
        judged |= ~np.isnan(values)
    return late, int(judged.sum())


def _replayed(
    report: ObservedReport, source: TraceSource, budget: int | None, workers: int | None, progress: Progress | None
) -> ObservedReport:
    """The report with the replay beside it."""
    from tracekit.diagnosis.run_data import RunData

    profile = report.profile
    assert profile is not None
    if source.obs_e2e_ns is None or source.obs_ttft_ns is None:
        return replace(report, notes=(*report.notes, "nothing is held against a replay: that takes TTFT and E2E"))
    setup = setup_on(profile, report.known.policy, source)
    if report.slo is not None:
        setup = replace(setup, slo=SloTable.from_policy({}, report.slo))
    data = RunData.replayed(setup)
    predicted = predicted_latencies(source, data.outcomes)
    try:
        beside = beside_replay(data, predicted, observed_latencies(source))
    except ValueError as error:
        return replace(report, notes=(*report.notes, f"nothing is held against the replay: {error}"))
    found = _weighed(report, data, beside)
    if beside.shows and budget is not None and found.findings:
        tell = None if progress is None else (lambda done, planned: progress(done, planned, ""))
        found = prove(data, found, budget=budget, workers=workers or len(os.sched_getaffinity(0)), progress=tell)
    return replace(report, diagnosis=found, beside=beside, data=data)


def _weighed(report: ObservedReport, data: RunData, beside: Beside) -> Diagnosis:
    """What the observed moments and the replay say together."""
    own = report.diagnosis
    never = tuple(each for each in own.remarks if "cannot be told: " in each)
    if beside.why_not:
        return replace(own, remarks=(*(each for each in own.remarks if each not in never),
                                     f"the replay tells nothing: {beside.why_not}", *never))  # fmt: skip
    if not beside.shows:
        return _outside(own, beside, never)
    found = diagnose(data)
    named = {each.id for each in found.findings}
    clash = [each.id for each in own.findings if each.id not in named]
    if clash and named:
        text = f"cannot tell, because what was observed speaks for {clash[0]} and its replay for {found.findings[0].id}"
        return replace(own, findings=(), unexplained_ns=own.excess_ns, remarks=(text,))
    if clash:
        return own
    return replace(found, findings=tuple(_both(each, own.findings) for each in found.findings), expected=beside.expected)


def _outside(own: Diagnosis, beside: Beside, never: tuple[str, ...]) -> Diagnosis:
    """The profile holds, and yet requests took much longer than in the replay: a cause of waits stands only if the replay has
    most of them."""
    first = beside.expected.kinds[0]
    accounted = first.expected_ns >= ITS_OWN * first.actual_ns
    findings = own.findings if accounted else ()
    text = f"{beside.over:.0%} of the observed time is not explained by scheduling"
    left = own.unexplained_ns if accounted else own.excess_ns
    return replace(own, findings=findings, unexplained_ns=left, remarks=(text, *never), expected=beside.expected)


def _both(finding: Finding, own: Sequence[Finding]) -> Finding:
    seen = next((each for each in own if each.id == finding.id), None)
    if seen is None:
        return replace(finding, because=f"the replay shows what was observed; {finding.because}", confidence="medium")
    return replace(finding, evidence=(*seen.evidence, *finding.evidence),
                   because=f"observed moments and the replay both say so; {finding.because}")  # fmt: skip
