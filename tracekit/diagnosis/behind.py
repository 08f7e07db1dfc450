"""What stands behind a cause: one that everybody waits for hides those that would be felt without it. The replay with the change
that was confirmed is diagnosed in its turn, and what still misses the SLO there, for a reason not named yet, is told as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tracekit.diagnosis.changes import changed_setup
from tracekit.diagnosis.diagnose import diagnose
from tracekit.diagnosis.finding import Change, Diagnosis, Evidence, Finding, Proof, confirmed
from tracekit.diagnosis.run_data import RunData

__all__ = ["with_behind"]

LEFT = 0.1
"""Of the requests that missed their SLO: if fewer still do with the change, nothing is looked for behind it."""
Prover = Callable[[RunData, Diagnosis], Diagnosis]


def with_behind(data: RunData, found: Diagnosis, proved: Prover) -> Diagnosis:
    """``found`` with what stands behind its first confirmed cause, last. Its changes come on top of that cause's, and are
    replayed so (``proved``). What such a finding explains is taken from what the first one did. Nothing without an SLO."""
    first = next((each for each in found.findings if each.under is None and confirmed(each) is not None), None)
    if first is None or data.slo_result is None:
        return found
    made = confirmed(first)
    assert made is not None
    changed = RunData.replayed(changed_setup(data.setup, made.change.sets).setup)
    if changed.state != "finished" or _missed(changed) < LEFT * _missed(data):
        return found
    named = {each.id for each in found.findings}
    inner = diagnose(changed)
    fresh = tuple(each for each in inner.findings if each.under is None and each.id not in named and each.changes)
    if not fresh:
        return found
    told = tuple(_told(each, made.change, found) for each in proved(changed, replace(inner, findings=fresh)).findings)
    paid = min(sum(each.excess_ns for each in told), first.excess_ns)
    less = replace(first, excess_ns=first.excess_ns - paid, share=(first.excess_ns - paid) / max(found.excess_ns, 1))
    return replace(found, findings=(*(less if each is first else each for each in found.findings), *told))


def _missed(data: RunData) -> int:
    """Counted requests that missed the SLO."""
    result = data.slo_result
    assert result is not None
    return int(np.count_nonzero(~result.met & data.counted[data.outcomes["request"]]))


def _told(each: Finding, made: Change, found: Diagnosis) -> Finding:
    """A finding of the changed replay, in the terms of the run, whose tables have neither its numbers nor its iterations: those
    are of the run that makes that replay once more (``Evidence.sets``)."""
    on_top = {change: replace(change, sets=(*made.sets, *change.sets)) for change in _all(each)}
    proofs = tuple(_moved(proof, on_top) for proof in each.proofs)
    excess = min(each.excess_ns, found.excess_ns)
    said = f"{made.knob} {made.new}"
    return replace(
        each,
        what=f"felt once {said} is there: {each.what}",
        because=f"{each.because}; of the replay with {said}, where it is no longer hidden",
        excess_ns=excess,
        share=excess / max(found.excess_ns, 1),
        evidence=tuple(_of_the_replay(one, made, said) for one in each.evidence),
        where=replace(each.where, iterations=()),
        changes=tuple(on_top[change] for change in each.changes),
        tempting=tuple(on_top[change] for change in each.tempting),
        proofs=proofs,
    )


def _of_the_replay(one: Evidence, made: Change, said: str) -> Evidence:
    """A number of the changed replay, whose tables its SQL asks."""
    return replace(one, note=f"{one.note}, with {said}" if one.note else f"with {said}", sets=made.sets)


def _all(each: Finding) -> tuple[Change, ...]:
    return (*each.changes, *each.tempting, *(proof.change for proof in each.proofs))


def _moved(proof: Proof, on_top: dict[Change, Change]) -> Proof:
    return replace(proof, change=on_top[proof.change])
