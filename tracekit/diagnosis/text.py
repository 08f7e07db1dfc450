"""What a tired person reads: the verdict, then per cause the evidence, the change with its price, and what the replays said."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tracekit.diagnosis.finding import Change, Diagnosis, Evidence, Expected, Finding, Proof
from tracekit.diagnosis.run_data import RunData
from tracekit.diagnosis.verdict import flags_of
from tracekit.diagnosis.wording import CALM, besides, change_text, figure_text, headline, recommended, title
from tracekit.metrics.wording import share, span_text

__all__ = ["expected_lines", "finding_lines", "render_diagnosis", "three_lines"]

EVIDENCE = 6
LEAST_KIND = 0.001
"""Of all the time that requests took: a kind of time with less is left out."""
_SHOWN_FIGURES = (
    "ttft p50",
    "ttft p99",
    "longest gap",
    "tpot p50",
    "p99 of all gaps",
    "e2e p50",
    "e2e p99",
    "output",
    "preemptions",
)


def three_lines(diagnosis: Diagnosis, more: str) -> list[str]:
    """The verdict without proof: what is wrong, what might help, and ``more``, the command that replays it. A fourth line where
    a large effect has no name."""
    lines = [f"verdict: {headline(diagnosis)}"]
    cause = next((each for each in diagnosis.findings if each.under is None), None)
    advice = None if cause is None else recommended(cause)
    if cause is None:
        lines.append("change:  none is proposed")
    elif advice is None:
        lines.append("change:  no setting of the scheduler helps")
    else:
        price = f"; price: {advice[0].price}" if advice[0].price else ""
        lines.append(f"change:  {change_text(advice[0])} is proposed, not replayed yet{price}")
    effect = besides(diagnosis)
    if effect is not None and effect.what not in lines[0]:
        lines.append(f"besides: {effect.what}; it has no name here")
    return [*lines, f"more:    {more}"]


def render_diagnosis(data: RunData, diagnosis: Diagnosis, *, replayed: bool, limit: int | None = None) -> str:
    """The whole of it as text."""
    counted = int(data.counted.sum())
    lines = [headline(diagnosis), ""]
    total = diagnosis.excess_ns
    lines.append(f"{counted:,} requests; in excess {span_text(total)}, held against {diagnosis.basis}")
    if total > 0:
        rest = diagnosis.unexplained_ns / total
        first = "NOT EXPLAINED" if rest > CALM and diagnosis.findings else "not explained"
        lines.append(f"{first}: {share(rest)} of it")
    lines += [f"warning: {each}" for each in diagnosis.warnings]
    if diagnosis.expected is not None:
        lines += ["", *expected_lines(diagnosis.expected)]
    number = 0
    for finding in diagnosis.findings[:limit]:
        if finding.under is None:
            number += 1
        mark = f"{number}." if finding.under is None else "   a consequence of it:"
        lines += ["", *finding_lines(data, finding, mark, replayed)]
    left = len(diagnosis.findings) - len(diagnosis.findings[:limit])
    if left:
        lines += ["", f"{left} more findings are not shown (--limit-findings)"]
    if diagnosis.remarks:
        lines += ["", *(f"remark: {each}" for each in diagnosis.remarks)]
    return "\n".join(lines)


def expected_lines(expected: Expected) -> Iterator[str]:
    """The model beside the run: every kind of time that counts, and what has no name."""
    total = max(sum(each.actual_ns for each in expected.kinds), 1)
    load = "" if math.isnan(expected.load) else f"; load {expected.load:.2f}"
    yield f"where the time should go by {expected.by}, and where it went, all requests together{load}:"
    for each in expected.kinds:
        if max(each.expected_ns, each.actual_ns) >= LEAST_KIND * total:
            over = each.actual_ns - each.expected_ns
            sign = "+" if over >= 0 else "-"
            yield (f"   {each.name.replace('_', ' '):21} should {span_text(each.expected_ns):>9}   went"
                   f" {span_text(each.actual_ns):>9}   {sign}{span_text(abs(over))}")  # fmt: skip
    if not expected.unnamed:
        yield "   no effect without a name stands out of the difference"
    for effect in expected.unnamed:
        yield f"NO NAME YET: {effect.what} ({share(effect.share)} of all that requests took)"
        where = effect.where
        worst = f"; worst iterations {', '.join(_iteration(each) for each in where.iterations[:4])}" if where.iterations else ""
        slow = f"; requests {', '.join(map(str, where.requests[:5]))}" if where.requests else ""
        yield f"   where      {where.t0_ns / 1e9:,.1f} s to {where.t1_ns / 1e9:,.1f} s{worst}{slow}"


def finding_lines(data: RunData | None, finding: Finding, mark: str, replayed: bool) -> Iterator[str]:
    """One finding; without ``data``, a replay that can be changed, nothing is said of changes."""
    whom = f" of {', '.join(finding.classes)}" if finding.classes else ""
    yield f"{mark} {finding.id}: {title(finding.id)}"
    yield f"   {finding.what}"
    yield f"   explains   {share(finding.share)} of the excess ({span_text(finding.excess_ns)}){whom}"
    why = f": {finding.because}" if finding.because else ""
    yield f"   sure       {finding.confidence}{why}"
    for k, each in enumerate(finding.evidence[:EVIDENCE]):
        yield f"   {'evidence' if not k else '':10} {_evidence(each)}"
    where = finding.where
    if where.t1_ns > where.t0_ns:
        worst = f"; worst iterations {', '.join(_iteration(each) for each in where.iterations[:4])}" if where.iterations else ""
        slow = f"; requests {', '.join(map(str, where.requests[:5]))}" if where.requests else ""
        yield f"   where      {where.t0_ns / 1e9:,.1f} s to {where.t1_ns / 1e9:,.1f} s{worst}{slow}"
    for k, other in enumerate(finding.is_not):
        yield f"   {'it is not' if not k else '':10} {other}"
    if data is not None:
        yield from _advice(data, finding, replayed)


def _evidence(each: Evidence) -> str:
    held = "" if each.threshold is None else f" (held against {figure_text(each.threshold, each.unit)})"
    unit = "" if each.unit in ("ns", "s", "share", "") else f" {each.unit}"
    return f"{each.metric} {figure_text(each.value, each.unit)}{unit}{held}{f', {each.note}' if each.note else ''}"


def _iteration(each: tuple[int, int]) -> str:
    return f"{each[1]}" if not each[0] else f"{each[0]}/{each[1]}"


def _advice(data: RunData, finding: Finding, replayed: bool) -> Iterator[str]:
    advice = recommended(finding)
    if advice is None:
        if finding.under is None:
            tried = any(each.change in finding.changes for each in finding.proofs)
            yield "   change     " + (
                "none: what was proposed did not hold when it was replayed" if tried else "no setting helps"
            )
    else:
        change, proof = advice
        yield f"   change     {change_text(change)}{_flags(data, change)}{f': {change.why}' if change.why else ''}"
        if change.price:
            yield f"   price      {change.price}"
        if proof is not None:
            yield f"   replayed   confirmed: {proof.reason}"
            yield f"              {_figures(proof)}"
        else:
            yield "   replayed   not yet" if not replayed else f"   replayed   no: {_why_not(finding)}"
    for each in finding.proofs:
        if advice is not None and (each.change == advice[0] or each.outcome == "not replayed"):
            continue
        kind = "tried" if each.change in finding.changes else "tempting"
        yield f"   {kind:10} {change_text(each.change)}: {each.outcome}: {each.reason}"


def _why_not(finding: Finding) -> str:
    return next((each.reason for each in finding.proofs if each.outcome == "not replayed"), "there was nothing to replay")


def _figures(proof: Proof) -> str:
    parts = []
    for name, unit, before, after in proof.figures:
        if name in _SHOWN_FIGURES and before is not None and after is not None and before != after:
            said = f"{name} {figure_text(before, unit)} -> {figure_text(after, unit)}"
            parts.append(said + (f" {unit}" if unit not in ("ns", "count") else ""))
    return "; ".join(parts)


def _flags(data: RunData, change: Change) -> str:
    """How to make a change: vLLM's flags, or else the settings of ``--set``."""
    if change.outside:
        return " (no setting of a scheduler)"
    flags = flags_of(data, change)["vllm"]
    return f" ({' '.join(flags)})" if len(flags) == len(change.sets) else f" (--set {' --set '.join(change.sets)})"
