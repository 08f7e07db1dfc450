"""The proof: what a diagnosis proposes, and what the loudest symptom suggests instead, replayed on the same requests.

Replays are counted in iterations, not in seconds, so that the same inputs give the same proof on any machine with any number
of workers. First come the first change of every finding, causes before consequences, and the changes that tempt; then second
choices, where the first did not hold; then what holds without one of its settings. A change that several findings propose is
replayed once. A run that a real engine took is held against its own requests replayed unchanged: what differs then is the change,
not the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tracekit.diagnosis.ablation import ablated, less_of
from tracekit.diagnosis.behind import with_behind
from tracekit.diagnosis.finding import Change, Diagnosis, Finding, Proof, confirmed
from tracekit.diagnosis.judgement import Judge
from tracekit.diagnosis.own_costs import with_model_error
from tracekit.diagnosis.run_data import RunData
from tracekit.diagnosis.trial import base_trial
from tracekit.diagnosis.trial_budget import Bench
from tracekit.diagnosis.trial_crew import TrialCrew
from tracekit.diagnosis.yardstick import Yardstick

__all__ = ["BUDGET", "confirmed", "prove"]

BUDGET = 5_000_000
"""Iterations of all replays of a proof together, unless told otherwise."""
ROUNDS = 3
PART = 0.25
TEMPTING = 2
Progress = Callable[[int, int], None]


def prove(
    data: RunData, diagnosis: Diagnosis, *, budget: int = BUDGET, workers: int = 2, progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None, behind: bool = True,
) -> Diagnosis:  # fmt: skip
    """``diagnosis`` with the proofs of its findings, confirmed ones before refuted ones, and with what the first cause hides
    unless ``behind`` is false. ``budget``: iterations of all replays; ``progress(done, planned)`` counts replays, without those
    behind. Byte for byte the same for any number of ``workers``. Errors: ``TracekitError`` of a worker; ``KeyboardInterrupt``
    when ``cancelled()``."""
    found, left = _proved(data, diagnosis, budget, workers, progress, cancelled or (lambda: False))
    rest = left - len(data.iterations)
    if not behind or rest < 0:
        return found
    return with_behind(
        data, found, lambda run, told: prove(run, told, budget=rest, workers=workers, cancelled=cancelled, behind=False)
    )


def _proved(
    data: RunData, diagnosis: Diagnosis, budget: int, workers: int, progress: Progress | None, cancelled: Callable[[], bool]
) -> tuple[Diagnosis, int]:
    """The proofs, and the iterations that are left."""
    gaps = any(finding.measure == "gap" for finding in diagnosis.findings) and data.has_iterations
    unchanged, bench = data, Bench(data, budget)
    # a change to a measured run is replayed by the simulator, and so is what it is held against
    if data.measured and diagnosis.findings and budget >= len(data.iterations):
        unchanged = RunData.replayed(data.setup)
        bench.left = max(budget - len(unchanged.iterations), 0)
        diagnosis = with_model_error(data, unchanged, diagnosis)
    judge = Judge(data, base_trial(unchanged, gaps=gaps), Yardstick.of(data))
    done = 0
    planned = 0

    def tell(_: int) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, planned)

    def replayed(wanted: Sequence[tuple[str, ...]]) -> None:
        nonlocal planned
        chosen = bench.affordable(wanted)
        planned += len(chosen)
        if chosen:
            orders = [{"sets": sets, "share": share, "gaps": gaps} for sets, share in chosen.items()]
            bench.take(chosen, crew.run(orders, len(data.iterations)))

    found = diagnosis
    with TrialCrew(data.setup, workers, done=tell, cancelled=cancelled) as crew:
        for turn in range(ROUNDS):
            replayed([change.sets for change in _wanted(found.findings, turn)])
            found = replace(found, findings=tuple(_judged(each, judge, bench, turn) for each in found.findings))
        while any(lesser := [less_of(each) for each in found.findings]):
            replayed([sets for each in lesser for sets in each])
            leaner = [ablated(each, less, judge, bench) for each, less in zip(found.findings, lesser, strict=True)]
            found = replace(found, findings=tuple(leaner))
    return replace(found, findings=_ranked(found.findings)), bench.left


def _wanted(findings: Sequence[Finding], turn: int) -> list[Change]:
    """What to replay in a turn, the most wanted first."""
    if turn:
        return [each.changes[turn] for each in findings if len(each.changes) > turn and confirmed(each) is None]
    first = [each.changes[0] for each in sorted(findings, key=lambda each: each.under is not None) if each.changes]
    tempting = [each.tempting[k] for k in range(TEMPTING) for each in findings if len(each.tempting) > k]
    return first + [change for change in tempting if change.sets]


def _judged(finding: Finding, judge: Judge, bench: Bench, turn: int) -> Finding:
    """The finding with the proofs of one turn added."""
    if turn and (confirmed(finding) is not None or len(finding.changes) <= turn):
        return finding
    asked = [finding.changes[turn]] if turn else [*finding.changes[:1], *finding.tempting[:TEMPTING]]
    proofs = [_proof(finding, change, judge, bench) for change in asked if change.sets]
    return replace(finding, proofs=(*finding.proofs, *proofs))


def _proof(finding: Finding, change: Change, judge: Judge, bench: Bench) -> Proof:
    if change.sets in bench.trials:
        return judge.proof(finding, change, bench.trials[change.sets])
    own = len(bench.data.iterations)
    reason = f"the budget is used up: one more replay takes about {own:,} iterations; a larger --prove allows it"
    return Proof(change=change, outcome="not replayed", reason=reason)


def _ranked(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """A cause whose changes were all refuted comes after those that explain a good part of what it explains and whose change
    holds; otherwise they stay as they were, each consequence after its cause."""

    def refuted(each: Finding) -> bool:
        own = [proof for proof in each.proofs if proof.change in each.changes]
        return bool(own) and all(proof.outcome == "refuted" for proof in own)

    held = max((each.excess_ns for each in findings if each.under is None and confirmed(each)), default=-1)
    causes = [each for each in findings if each.under is None]
    causes.sort(key=lambda each: refuted(each) and held >= PART * each.excess_ns)
    order = [one for cause in causes for one in (cause, *(each for each in findings if each.under == cause.id))]
    order += [each for each in findings if each not in order]
    return tuple(replace(each, confidence="low", because=f"{each.because}; no change that was replayed cures it")
                 if refuted(each) else each for each in order)  # fmt: skip
