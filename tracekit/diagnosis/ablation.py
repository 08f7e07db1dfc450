"""Recommendations are minimal: a change of several settings that holds is replayed without each of them in turn, and a setting
is kept only if the cure is smaller without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tracekit.diagnosis.changes import changed_setup
from tracekit.diagnosis.finding import Change, Finding, Proof, confirmed

if TYPE_CHECKING:
    from tracekit.diagnosis.judgement import Judge
    from tracekit.diagnosis.trial_budget import Bench

__all__ = ["ablated", "less_of"]

SHRINKS = 0.01
"""By so much of the excess a cure must be smaller for the setting that is left out to matter."""
Sets = tuple[str, ...]


def less_of(finding: Finding) -> tuple[Sets, ...]:
    """What to replay of the change that holds: its settings without each of them; nothing where there is one, or where it has
    been done."""
    proof = confirmed(finding)
    if proof is None or len(proof.change.sets) < 2 or proof.ablated:
        return ()
    return tuple(_without(proof.change.sets, k) for k in range(len(proof.change.sets)))


def ablated(finding: Finding, less: Sequence[Sets], judge: Judge, bench: Bench) -> Finding:
    """The finding with the change that was looked at as it was, if every setting matters, else with the one without the setting
    that matters least before it, confirmed in its turn and to be looked at again."""
    proof = confirmed(finding)
    if proof is None or not less:
        return finding
    tried = {sets: judge.proof(finding, _lesser(proof.change, sets, bench), bench.trials[sets]) for sets in less
             if sets in bench.trials}  # fmt: skip
    names = [pair.partition("=")[0] for pair in proof.change.sets]
    said = "; ".join(f"without {name} {_cure(tried[sets])}" for name, sets in zip(names, less, strict=True) if sets in tried)
    marked = replace(proof, ablated=True, reason=f"{proof.reason}; {said}" if said else proof.reason)
    proofs = tuple(marked if each is proof else each for each in finding.proofs)
    as_good = [each for each in tried.values() if each.outcome == "confirmed" and _is_as_good(each, proof)]
    if not as_good:
        return replace(finding, proofs=proofs)
    best = max(as_good, key=lambda each: each.cured or 0.0)
    return replace(finding, changes=(best.change, *finding.changes), proofs=(*proofs, best))


def _is_as_good(lesser: Proof, proof: Proof) -> bool:
    return lesser.cured is not None and proof.cured is not None and lesser.cured >= proof.cured - SHRINKS


def _cure(proof: Proof) -> str:
    if proof.cured is None:
        return "it cannot be replayed" if proof.outcome == "not replayed" else f"it is {proof.outcome}"
    return f"{min(max(proof.cured, 0.0), 1.0):.0%} of it is gone".replace("%", " %")


def _without(sets: Sets, k: int) -> Sets:
    return (*sets[:k], *sets[k + 1 :])


def _lesser(change: Change, sets: Sets, bench: Bench) -> Change:
    """``change`` with fewer settings; where its own knob is not among them any more, in the name of the first that is."""
    if change.knob in {pair.partition("=")[0] for pair in sets} or bench.trials[sets].outcomes is None:
        return replace(change, sets=sets)
    knob, old, new = changed_setup(bench.data.setup, sets).named[0]
    return replace(change, knob=knob, old=old, new=new, sets=sets)
