"""The words of a diagnosis: findings with their evidence, changes with their price, and what a replay made of them.

Plain frozen values: detectors make them, the proof adds to them, reports and pages read them. Times are ns on the engine clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = [
    "Change",
    "Confidence",
    "Diagnosis",
    "Evidence",
    "Expected",
    "Finding",
    "Kind",
    "Measure",
    "Outcome",
    "Proof",
    "Unnamed",
    "Where",
    "confirmed",
]

Confidence = Literal["high", "medium", "low"]
Outcome = Literal["confirmed", "refuted", "within noise", "not replayed"]
Measure = Literal["ttft", "gap", "tpot", "e2e"]
"""What of a request a cause makes long: time to its first token, its longest gap, all its gaps together, or all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One number that a finding rests on. ``threshold``: what it was held against (``None``: it only describes). ``sql`` yields
    it from the run's tables (``{run}`` stands for its number); ``None`` where no one query does, with ``note`` saying how.
    ``sets``: it is of a replay with these settings, and so is its ``sql``; empty for the run itself."""

    metric: str
    value: float | None
    unit: str
    threshold: float | None = None
    sql: str | None = None
    note: str = ""
    sets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Where a finding shows: a stretch of time (ns), its worst iterations as (replica, iteration), and requests (indices)."""

    t0_ns: int
    t1_ns: int
    iterations: tuple[tuple[int, int], ...] = ()
    requests: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of the policy, in the language of ``--set``. ``knob``, ``old`` and ``new`` are what people read; ``price`` what it
    costs, in words; ``why`` why one would make it. A change that no policy can hold (another link, more replicas, the client's
    own limit) has ``sets`` all the same where a replay can show it, and ``outside`` true: it is no scheduler knob.
    ``tolerated``: the largest relative rise of any class's mean time to the last token that ``price`` speaks of.
    """

    knob: str
    old: str
    new: str
    sets: tuple[str, ...]
    why: str
    price: str = ""
    outside: bool = False
    tolerated: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What replaying one change did to a finding. ``cured``: share of its excess that is gone on paired requests, with its 95 %
    interval and the number of pairs. ``worse``: classes or measures that lost more than the price stated, in words.
    ``figures``: (measure, unit, before, after). ``ablated``: each of several settings was left out in turn, and the reason says
    what came of it.
    """

    change: Change
    outcome: Outcome
    reason: str
    cured: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    worse: tuple[str, ...] = ()
    figures: tuple[tuple[str, str, float | None, float | None], ...] = ()
    iterations: int = 0
    ablated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A named cause. ``excess_ns``: request time it explains, of all that is in excess (``share``), in ``measure`` and summed
    over the requests of ``classes`` (empty: all). ``what``: one sentence with the numbers that matter. ``is_not``: what it could
    be taken for, and why it is not. ``changes``: the proposal first, then second choices; ``tempting``: changes that the loudest
    symptom suggests and that the proof should refute. ``under``: id of the finding that it is a consequence of. ``proofs``: what
    the replays said, of changes and tempting ones. ``culprits``: requests (indices) that are the cause, where some are.
    """

    id: str
    what: str
    excess_ns: int
    share: float
    confidence: Confidence
    because: str
    evidence: tuple[Evidence, ...]
    where: Where
    is_not: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    tempting: tuple[Change, ...] = ()
    under: str | None = None
    classes: tuple[str, ...] = ()
    measure: Measure = "ttft"
    proofs: tuple[Proof, ...] = field(default=())
    culprits: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of time, summed over all requests: what a model of the engine expects, and what it was. ns."""

    name: str
    expected_ns: int
    actual_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unnamed:
    """An effect that no finding has a name for. ``kind``: what sort of time it shows in; ``over_ns``: request time it took,
    ``share`` of all that requests took; ``where`` it shows."""

    kind: str
    what: str
    over_ns: int
    share: float
    where: Where


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Where the time should have gone beside where it went (the largest difference first), with ``load``, offered work over the
    engines' time; and what of the difference has no name. ``by``: what says where it should have gone."""

    load: float
    kinds: tuple[Kind, ...]
    unnamed: tuple[Unnamed, ...] = ()
    by: str = "a model of the engine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What a run suffers from, causes first, and what is left over. ``excess_ns``: request time beyond what ``basis`` allows;
    ``unexplained_ns``: the part of it that no finding explains. ``remarks``: what is no fault and still worth knowing;
    ``warnings``: figures of this run that mislead; ``expected``: the model of where time should go, ``None`` without iterations.
    """

    findings: tuple[Finding, ...]
    excess_ns: int
    unexplained_ns: int
    basis: str
    remarks: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    expected: Expected | None = None


def confirmed(finding: Finding) -> Proof | None:
    """The proof of the change to make: the first of the finding's own proposals that a replay confirms."""
    for change in finding.changes:
        for proof in finding.proofs:
            if proof.change == change and proof.outcome == "confirmed":
                return proof
    return None
