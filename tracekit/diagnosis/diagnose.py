"""The diagnosis of one run: every detector's claim, settled in order, ranked by what it explains."""

from __future__ import annotations

import numpy as np

from tracekit.diagnosis.claim import Claim, Remaining
from tracekit.diagnosis.detect import DETECTORS
from tracekit.diagnosis.finding import Diagnosis, Finding, Where
from tracekit.diagnosis.ranking import Settled, ranked
from tracekit.diagnosis.remarks import remarks_of, warnings_of
from tracekit.diagnosis.run_data import RunData
from tracekit.diagnosis.unnamed import expected_of
from tracekit.diagnosis.view import View

__all__ = ["diagnose", "is_material"]

LEAST_SHARE = 0.05
"""Of all excess: below, a cause is not worth a finding."""
LEAST_LATE = 0.15
"""Of the requests that miss an SLO: as many must owe a part of it to a cause that explains less."""
OWN = 0.5
"""What a request owes to a cause, of its excess before or after the first token."""
LEAST_REQUESTS = 0.01
"""Requests in excess, of all: below, nothing is wrong with a run that has an SLO."""


def diagnose(data: RunData) -> Diagnosis:
    """What a run suffers from. Findings come in order of what they explain, consequences after their causes; none where nothing
    is wrong. Nothing is replayed: that is what proves a change."""
    view = View(data)
    remarks, found, left, remaining = remarks_of(view), [], view.excess_ns, Remaining(view)
    if not data.has_iterations:
        remarks = ("this run kept no iterations: causes cannot be told apart; replay with --events full", *remarks)
    elif not is_material(view):
        remarks = (_nothing(view), *remarks)
    else:
        settled = _settled(view, remaining)
        left = remaining.left()
        found = [_finding(view, each) for each in ranked(settled, view.excess_ns)]
    return Diagnosis(
        findings=tuple(found),
        excess_ns=round(view.excess_ns),
        unexplained_ns=round(left),
        basis=view.yardstick.basis,
        remarks=remarks,
        warnings=warnings_of(view),
        expected=expected_of(view, remaining),
    )


def _settled(view: View, remaining: Remaining) -> list[Settled]:
    """Claims in the detectors' order with what each gets, those that are worth a finding; what nobody claims remains. Where the
    profile does not say what iterations cost none can be weighed: a warning says so (``remarks``)."""
    if not view.data.profile.latency.known:
        return []
    settled = []
    for detector in DETECTORS:
        said = detector(view)
        group = () if said is None else (said,) if isinstance(said, Claim) else said
        if group:
            first, later = remaining.take(group[0])
            settled += [Settled(claim=claim, first=first, later=later) for claim in group]
    settled = _once(settled)
    return [each for each in settled if each.claim.urgent or _is_worth(view, each)]


def _once(settled: list[Settled]) -> list[Settled]:
    """A cause that two detectors name is one: it gets what both got, in the words of whoever got more."""
    found: dict[str, Settled] = {}
    for each in settled:
        had = found.get(each.claim.id)
        if had is not None:
            claim = max((had, each), key=lambda one: one.excess_ns).claim
            each = Settled(claim=claim, first=had.first + each.first, later=had.later + each.later)
        found[each.claim.id] = each
    return list(found.values())


def _is_worth(view: View, settled: Settled) -> bool:
    """Whether a cause explains enough to be named: of all excess, or, where an SLO is missed, of the requests that miss it."""
    if settled.excess_ns >= LEAST_SHARE * view.excess_ns:
        return True
    if not view.data.slo_parts:
        return False
    late = (view.first_excess > 0) | (view.later_excess > 0)
    own = (settled.first > OWN * view.first_excess) | (settled.later > OWN * view.later_excess)
    return float((own & late).sum()) >= LEAST_LATE * float(late.sum())


def is_material(view: View) -> bool:
    """Whether enough is in excess to look for a cause: with an SLO a hundredth of the requests; without one so many, and their
    excess a hundredth of all the time that requests took."""
    late = (view.first_excess > 0) | (view.later_excess > 0)
    share = float(late[view.counted].mean()) if view.counted.any() else 0.0
    if view.data.slo_parts:
        return share >= LEAST_REQUESTS
    total = float(np.maximum(view.data.outcomes["e2e_ns"], 0).sum())
    return share >= LEAST_REQUESTS and view.excess_ns >= 0.01 * total


def _nothing(view: View) -> str:
    late = int(((view.first_excess > 0) | (view.later_excess > 0)).sum())
    return f"nothing is wrong: {late} of {int(view.counted.sum())} requests took longer than allowed"


def _finding(view: View, settled: Settled) -> Finding:
    claim, total = settled.claim, max(view.excess_ns, 1.0)
    return Finding(
        id=claim.id,
        what=claim.what,
        excess_ns=round(settled.excess_ns),
        share=settled.excess_ns / total,
        confidence=claim.confidence,
        because=claim.because,
        evidence=claim.evidence,
        where=_where(view, settled),
        is_not=claim.is_not,
        changes=claim.changes,
        tempting=claim.tempting,
        under=claim.under,
        classes=view.classes_of(settled.got),
        measure=claim.measure,
        culprits=claim.culprits,
    )


def _where(view: View, settled: Settled) -> Where:
    """The stretch that holds 90 % of the excess by arrival, its requests with most of it, its worst iterations."""
    rows, got = view.data.outcomes, settled.got
    order = np.argsort(rows["arrival_ns"], kind="stable")
    passed = np.cumsum(got[order])
    low, high = (int(np.searchsorted(passed, share * passed[-1])) for share in (0.05, 0.95))
    inside = order[low : min(high, len(order) - 1) + 1]
    ends = np.where(rows["last_token_ns"][inside] >= 0, rows["last_token_ns"][inside], rows["arrival_ns"][inside])
    t0, t1 = int(rows["arrival_ns"][inside].min()), int(ends.max())
    its = view.data.iterations
    of = (its["start_ns"] >= t0) & (its["start_ns"] <= t1)
    if settled.claim.iterations is not None and (of & settled.claim.iterations).any():
        of &= settled.claim.iterations
    picked = np.flatnonzero(of)
    weight = its["duration_ns"][picked].astype(np.float64) * (1 + its["waiting"][picked])
    worst = picked[np.argsort(-weight, kind="stable")[:10]]
    most = np.argsort(-got, kind="stable")[:20]
    requests = tuple(rows["request"][most[got[most] > 0]].tolist())
    return Where(
        t0_ns=t0,
        t1_ns=t1,
        requests=requests,
        iterations=tuple(zip(its["replica"][worst].tolist(), its["iteration"][worst].tolist(), strict=True)),
    )
