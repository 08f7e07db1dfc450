"""A profile from means over intervals: what an iteration took on average, with how many prompt tokens, sequences and KV tokens.

Means are linear where the cost is, so floor, b, d and e follow from how they vary together; what does not vary is not told
apart. Three things no mean can tell: c (no query x context), the knee below which prefill rides free (prompt tokens of an
interval may be of one iteration or of hundreds), and host time apart from the device's. Every term is given its range, from
leaving out one block of consecutive intervals after the other; a prior holds what the means do not.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from replay_engine.calibration.nonnegative import nonnegative
from replay_engine.calibration.outcome import Calibration, implied, profile_of
from replay_engine.profile import Latency, Profile
from tracekit.calibration.sources import NO_CARD, ReportTable, SourceReport, in_words
from tracekit.errors import InputError

__all__ = ["FEWEST", "Intervals", "Term", "fit_intervals", "report_intervals"]

Column = npt.NDArray[np.float64]
TERMS = ("floor", "b", "d", "e")
UNITS = {"floor": "ns an iteration", "b": "ns a prompt token", "d": "ns a sequence", "e": "ns a KV token"}
PRIOR_SPREAD = {"floor": 0.35, "b": 0.35, "d": 0.9, "e": 0.35}
"""How far a term may be from what a profile of the same model and card says, as a share."""
FEWEST = 12
"""Intervals below which nothing is fitted."""
BLOCKS, ROUNDS, STEADY = 10, 8, 0.7
"""``STEADY``: the fewer of the sequences at an interval's two ends, of the more: below, their mean says nothing of it."""
CLEAR, HAZY = 0.1, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """One entry an interval: mean ``took_ns`` of its iterations, ``tokens`` prompt tokens an iteration, ``seqs`` decoding and
    their ``kv`` tokens (NaN: not known). ``read``: how many there were before those were left out that are not steady."""

    took_ns: Column
    tokens: Column
    seqs: Column
    kv: Column
    read: int

    @classmethod
    def of(cls, took_ns: Column, tokens: Column, before: Column, after: Column, kv: Column) -> Intervals:
        """``before`` and ``after``: sequences that ran at the ends of each. Those in which the engine may have idled, or that are
        not steady, are left out."""
        with np.errstate(invalid="ignore"):
            steady = (np.minimum(before, after) >= np.maximum(STEADY * np.maximum(before, after), 1)) & (took_ns > 0)
        use = steady & np.isfinite(took_ns) & np.isfinite(tokens)
        seqs = (before + after) / 2
        return cls(took_ns=took_ns[use], tokens=tokens[use], seqs=seqs[use], kv=kv[use], read=len(took_ns))

    def __len__(self) -> int:
        return len(self.took_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """``value`` with its range; ``verdict``: ``identified``, ``weak``, ``not identified``, or why it cannot be."""

    name: str
    value: float
    low: float
    high: float
    verdict: str


def fit_intervals(rows: Intervals, prior: Profile | None, *, file: str) -> tuple[Latency, list[Term]]:
    """The coefficients and how far each is told. ``InputError``: too few steady intervals."""
    if len(rows) < FEWEST:
        raise InputError(f"{len(rows)} of {rows.read} intervals are steady enough to tell a time", file=file,
                         expected=f"{FEWEST} or more with requests running at both ends, about as many")  # fmt: skip
    known = np.isfinite(rows.kv).all()
    expected = None
    if prior is not None:
        was = prior.latency
        expected = np.array([max(was.floor_ns, was.a_ns), was.b_ns, was.d_ns, was.e_ns])
    free = np.array([True, bool((rows.tokens > 0).any()), True, bool(known)])
    value = _fitted(rows, free, expected)
    blocks = np.array_split(np.arange(len(rows)), BLOCKS)
    left = np.array([_fitted(_without(rows, block), free, expected) for block in blocks])
    spread = np.sqrt((BLOCKS - 1) / BLOCKS * ((left - left.mean(axis=0)) ** 2).sum(axis=0))
    terms = [_term(name, value[k], spread[k], bool(free[k]), prior) for k, name in enumerate(TERMS)]
    floor, b, d, e = (term.value for term in terms)
    c = 0.0 if prior is None else prior.latency.c_ns
    return Latency(floor_ns=floor, a_ns=floor, b_ns=b, c_ns=c, d_ns=d, e_ns=e), terms


def _without(rows: Intervals, block: npt.NDArray[np.int64]) -> Intervals:
    took, tokens, seqs, kv = (np.delete(each, block) for each in (rows.took_ns, rows.tokens, rows.seqs, rows.kv))
    return replace(rows, took_ns=took, tokens=tokens, seqs=seqs, kv=kv)


def _fitted(rows: Intervals, free: npt.NDArray[np.bool_], expected: Column | None) -> Column:
    """Least squares of relative errors, outliers weighing less; ``expected`` pulls as one more row a term."""
    kv = np.where(np.isfinite(rows.kv), rows.kv, 0.0)
    matrix = np.stack([np.ones(len(rows)), rows.tokens, rows.seqs, kv], axis=1) / rows.took_ns[:, None]
    scale = np.maximum(np.abs(matrix).max(axis=0), 1e-12)
    weight, found = np.ones(len(rows)), np.zeros(len(TERMS))
    for _ in range(ROUNDS):
        left, right = matrix / scale * weight[:, None], weight.copy()
        if expected is not None:
            noise = max(1.5 * float(np.median(np.abs(matrix @ found - 1))), 0.01) if found.any() else 0.05
            pull = noise / (np.array([PRIOR_SPREAD[name] for name in TERMS]) * np.maximum(expected, 1e-9))
            left = np.concatenate([left, np.diag(pull / scale)])
            right = np.concatenate([right, pull * expected])
        found = np.zeros(len(TERMS))
        found[free] = nonnegative(left[:, free], right) / scale[free]
        off = np.abs(matrix @ found - 1)
        width = max(1.5 * 1.4826 * float(np.median(off)), 1e-6)
        weight = np.sqrt(np.minimum(1.0, width / np.maximum(off, 1e-12)))
    return found


def _term(name: str, value: float, spread: float, free: bool, prior: Profile | None) -> Term:
    if not free and name == "e":
        why = "the size of the KV cache is not known; 0 stands, floor and d carry KV reads at these lengths"
        return Term(name=name, value=0.0, low=0.0, high=float("nan"), verdict=f"not told: {why}")
    if not free:
        kept, whose = (0.0, "0 stands") if prior is None else (prior.latency.b_ns, f"profile {prior.name}'s stands")
        return Term(name=name, value=kept, low=0.0, high=float("nan"), verdict=f"not told: no prompt was computed; {whose}")
    share = spread / value if value > 0 else np.inf
    verdict = "identified" if share <= CLEAR else "weak" if share <= HAZY else "not identified"
    low, high = max(value - 2 * spread, 0.0), value + 2 * spread
    return Term(name=name, value=float(value), low=float(low), high=float(high), verdict=verdict)


def report_intervals(
    kind: str, what: str, rows: Intervals, latency: Latency, terms: list[Term], prior: Profile | None, notes: list[str]
) -> SourceReport:
    """The profile with the provenance of each number. ``what``: as ``ten-second lines of vLLM``. ``ConfigError``: it beats the
    prior's card."""
    predicted = latency.floor_ns + latency.b_ns * rows.tokens + latency.d_ns * rows.seqs
    predicted = predicted + latency.e_ns * np.where(np.isfinite(rows.kv), rows.kv, 0.0)
    error = float(np.median(np.abs(predicted / rows.took_ns - 1)))
    said = {term.name: _words(term, f"{len(rows)} {what}") for term in terms}
    whose = "0 stands" if prior is None else f"prior: {prior.name}"
    sources = {"device": f"fitted to means of {what}", "floor_ns": f"{said['floor']}; host time within",
               "a_ns": "the floor: means do not show how many prompt tokens ride free", "host": "0: within the floor",
               "c_ns": f"not told by means; {whose}"} | {f"{name}_ns": said[name] for name in "bde"}  # fmt: skip
    columns = {"prefill_tokens": rows.tokens, "decode_seqs": rows.seqs, "decode_kv_tokens": rows.kv[np.isfinite(rows.kv)]}
    found = Calibration(
        latency=latency, held=None, by_mode={}, error=error, iterations=len(rows), sources=sources,
        ranges={name: (float(values.min()), float(values.max())) for name, values in columns.items() if len(values)},
    )  # fmt: skip
    # without the KV reads told apart there is nothing to hold e against
    physical = prior is not None and not prior.synthetic and not any(term.value == 0 for term in terms if term.name in "be")
    profile = profile_of(
        found, name=kind, kind=f"fitted to {len(rows)} means: {what}", model=prior.model if prior else None,
        hardware=prior.hardware if prior else None, peaks=physical,
    )  # fmt: skip
    profile.fit["intervals"] = profile.fit.pop("iterations")
    report = SourceReport(kind=kind, profile=profile, lines=[
        f"read: {rows.read:,} intervals, {len(rows):,} of them steady; median error of {error:.1%} over their mean iterations",
        *notes, "not told by means: what attention of prompts costs (c), how many prompt tokens ride free beside decodes (a"
        " stands at the floor), host time apart from the device's",
    ])  # fmt: skip
    if prior is not None and prior.model is not None:
        report.lines += [f"implied by {name}: {value}" for name, value in implied(latency, prior.model, prior.hardware)]
    report.lines += [] if prior is not None else [NO_CARD]
    table = tuple((term.name, UNITS[term.name], term.value, *_range(term), term.verdict) for term in terms)
    head = ("term", "unit", "value", "from", "to", "verdict")
    report.tables.append(ReportTable(title="what the means tell", head=head, rows=table))
    report.document = _document(rows, terms, error)
    return report


def _words(term: Term, what: str) -> str:
    low, high = _range(term)
    return term.verdict if low is None or high is None else f"{term.verdict} by {what}, {in_words(low, high)}"


def _range(term: Term) -> tuple[float | None, float | None]:
    """Of a term that nothing tells there is none."""
    return (None, None) if np.isnan(term.high) else (term.low, term.high)


def _document(rows: Intervals, terms: list[Term], error: float) -> dict[str, Any]:
    told = [{name: None if isinstance(x, float) and np.isnan(x) else x for name, x in asdict(term).items()} for term in terms]
    return {"intervals": {"read": rows.read, "steady": len(rows)}, "terms": told, "median_error": error}
