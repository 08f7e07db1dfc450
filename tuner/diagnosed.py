"""Before a search: whether any scheduler knob can help at all. Where none can, nothing is searched.

The trace is replayed under the current policy with every event and diagnosed: as a whole, since overload only shows over time, or
the stretch of it around the window that serves its requests worst. A knob cannot help where what explains the
excess is outside the scheduler, as overload, the client's own limit or the link are: then the causes whose proposed change is
outside must explain most of the excess, and no cause with a knob of its own may explain much of it. Nor may many requests miss
nothing but a limit on the time between tokens: how iterations are shared out is the scheduler's own, however much is offered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tracekit.diagnosis.diagnose import diagnose
from tracekit.diagnosis.finding import Diagnosis, Finding
from tracekit.diagnosis.run_data import RunData
from tuner.cells import Cell, Replays, Result, setup_of
from tuner.objective import attainment
from tuner.plan import TunePlan
from tuner.proposing import BETWEEN
from tuner.windows import StudyWindow

__all__ = ["NO_KNOB", "Verdict", "before_searching", "between_alone", "diagnosis_of", "findings_of", "stretch_of"]

NO_KNOB = ("OVERLOAD", "CLIENT_LIMIT", "KV_TRANSFER")
"""Causes that no scheduler knob takes away, wherever they explain most."""
ENOUGH = 2000
"""Requests that a diagnosis looks at, about."""
MOST, LITTLE = 0.5, 0.2
"""Shares of the excess: of what is outside at least, of what a knob could help at most. The latter of the misses too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``stop``: why no search is worth a trial, in a sentence, or ``None``. ``findings``: of the diagnosis, as the report says
    them."""

    stop: str | None
    findings: list[dict[str, Any]]


def before_searching(plan: TunePlan, base: Sequence[Result], replays: Replays) -> Verdict:
    """Look at the current policy. ``base``: its results on the search windows."""
    if plan.objective_names == ("goodput",) and attainment(base) == 1.0:
        n = sum(result["n"] for result in base)
        return Verdict(stop=f"the current policy meets the SLO of all {n:,} requests on the windows searched: there is nothing to"
                            " gain", findings=[])  # fmt: skip
    found = diagnosis_of(plan.cell(plan.policy, stretch_of(plan, base)), replays)
    said = findings_of(found)
    if plan.objective_names != ("goodput",):
        return Verdict(stop=None, findings=said)
    return Verdict(stop=_no_knob(found) if between_alone(base) <= LITTLE else None, findings=said)


def stretch_of(plan: TunePlan, base: Sequence[Result]) -> StudyWindow:
    """The stretch that is diagnosed: the worst window with as much to either side of it as makes some two thousand requests."""
    trace = plan.trace
    windows = sorted([*trace.search, *trace.held], key=lambda window: window.begin_ns)
    worst = trace.search[min(range(len(base)), key=lambda at: base[at]["met"] / max(base[at]["n"], 1))]
    rate = worst.requests / max(worst.end_ns - worst.begin_ns, 1)
    half = int(ENOUGH / 2 / max(rate, 1e-18))
    middle = (worst.begin_ns + worst.end_ns) // 2
    begin, end = max(middle - half, 0), min(middle + half, trace.span_ns or windows[-1].end_ns)
    return replace(worst, begin_ns=min(begin, worst.begin_ns), end_ns=max(end, worst.end_ns))


def diagnosis_of(cell: Cell, replays: Replays) -> Diagnosis:
    """One cell, replayed with every event and diagnosed."""
    return diagnose(RunData.replayed(setup_of(cell, replays.sources, events="full")))


def findings_of(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    """What a report says of a diagnosis."""
    return [{"id": f.id, "what": f.what, "share": f.share, "confidence": f.confidence} for f in diagnosis.findings]


def _no_knob(found: Diagnosis) -> str | None:
    causes = [finding for finding in found.findings if finding.under is None]
    outside = [finding for finding in causes if finding.id in NO_KNOB]
    others = [finding for finding in causes if finding.id not in NO_KNOB and _has_knob(finding)]
    if sum(finding.share for finding in outside) < MOST or sum(finding.share for finding in others) > LITTLE:
        return None
    first = max(outside, key=lambda finding: finding.share)
    return f"no scheduler knob helps: {first.id}: {first.what}"


def between_alone(base: Sequence[Result]) -> float:
    """Which share of the requests that miss their SLO miss nothing but limits on the time between tokens, at most."""
    lost = alone = 0
    for result in base:
        mine, missed = result["n"] - result["met"], result["missed"]
        others = max((count for part, count in missed.items() if part not in BETWEEN), default=0)
        lost += mine
        alone += max(min(mine - others, sum(missed.get(part, 0) for part in BETWEEN)), 0)
    return alone / lost if lost else 0.0


def _has_knob(finding: Finding) -> bool:
    """Whether a change is proposed that the policy can hold."""
    return any(not change.outside for change in finding.changes)
