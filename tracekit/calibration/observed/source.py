"""``tracekit calibrate TRACE``: the source "latencies observed in a trace"."""

from __future__ import annotations

from replay_engine.profile import load_profile
from tracekit.calibration.observed.fit import fit_observed
from tracekit.calibration.observed.report import report_of
from tracekit.calibration.observed.settings import known_settings
from tracekit.calibration.sources import SourceReport, SourceRequest
from tracekit.traces.stored import loaded_or_read

__all__ = ["calibrate_latencies"]

TYPICAL = 40
"""Steps that are told of in a usual fit."""


def calibrate_latencies(request: SourceRequest) -> SourceReport:
    """Fit the trace in the file ``request.source``, or the one that was loaded by that name. ``InputError``: it cannot be read,
    or has no latencies; ``UsageError``, ``ConfigError``: settings or profile."""
    prior = None if request.prior is None else load_profile(request.prior)
    known = known_settings(request.policy, request.sets, prior)
    loaded = loaded_or_read(request.source, request.db)
    steps = 0

    def say(note: str) -> None:
        nonlocal steps
        steps += 1
        if request.progress is not None:
            request.progress(steps, max(TYPICAL, steps + 1), note)

    found = fit_observed(loaded, known, prior, say=say)
    report = report_of(found, known, prior, loaded.report.name)
    lacks = loaded.report.left_out
    gone = [] if lacks is None else [f"trace: {lacks}; where they ran, the engine had more to do than is replayed here"]
    report.lines = [*gone, *(f"trace: {warning}" for warning in loaded.report.warnings), *report.lines]
    return report
