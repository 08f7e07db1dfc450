"""``verdict.json``: a diagnosis as one document with stable keys. Same inputs, same bytes: keys are sorted, floats have six
digits, and no clock, path or run number is in it.
"""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import asdict
from typing import Any

import numpy as np

from tracekit import __version__
from tracekit.diagnosis.changes import TRAFFIC, again_options
from tracekit.diagnosis.finding import Change, Diagnosis, Evidence, Expected, Finding, Proof, Where
from tracekit.diagnosis.run_data import RunData
from tracekit.diagnosis.wording import headline, recommended, title
from tracekit.diagnosis.yardstick import MEASURES, times_ns
from tracekit.experiments.knobs import flat_policy
from tracekit.flags import flags_for

__all__ = [
    "SCHEMA",
    "build_verdict",
    "evidence_document",
    "expected_document",
    "finding_document",
    "flags_of",
    "plain",
    "where_document",
]

SCHEMA = "tracekit.verdict/1"
DIGITS = 6
_DIGESTED = ("arrival_ns", "prompt_tokens", "output_tokens", "max_tokens", "priority", "tenant", "class_", "parent", "think_ns",
             "cancel_ns", "deadline_ns")  # fmt: skip


def build_verdict(data: RunData, diagnosis: Diagnosis, *, budget: int | None, limit: int | None = None) -> dict[str, Any]:
    """The document of a diagnosis. ``budget``: iterations that its replays could take, ``None`` without proof; ``limit``: most
    findings to show."""
    shown = diagnosis.findings[:limit]
    total = max(diagnosis.excess_ns, 1)
    document = {
        "schema": SCHEMA,
        "verdict": headline(diagnosis),
        "tool": {"tracekit": __version__, "scheduler": f"vLLM {data.policy.scheduler.engine_version}"},
        "profile": {"name": data.profile.name, "synthetic": data.profile.synthetic, "latency": data.profile.latency.costs()},
        "trace": _trace(data),
        "run": {"state": data.state, "iterations": len(data.iterations), "seed": data.setup.seed,
                "reproduce": "tracekit diagnose RUN " + ("--no-prove" if budget is None else f"--prove {budget}")},
        "config": flat_policy(data.policy.to_dict()),
        "policy_notes": list(data.policy.notes),
        "slo": None if data.slo is None else data.slo.to_dict(),
        "metrics": _metrics(data),
        "basis": diagnosis.basis,
        "excess_s": diagnosis.excess_ns / 1e9,
        "unexplained": {"excess_s": diagnosis.unexplained_ns / 1e9, "share": diagnosis.unexplained_ns / total},
        "expected": None if diagnosis.expected is None else expected_document(diagnosis.expected),
        "findings": [finding_document(data, each, budget is not None) for each in shown],
        "findings_left_out": len(diagnosis.findings) - len(shown),
        "remarks": list(diagnosis.remarks),
        "warnings": list(diagnosis.warnings),
        "proof": {"iterations": budget},
    }  # fmt: skip
    rounded: dict[str, Any] = plain(document)
    return rounded


def flags_of(data: RunData, change: Change) -> dict[str, list[str]]:
    """A change as flags, by engine; an engine that has none has an empty list."""
    scheduler = data.policy.scheduler
    pairs = [pair for pair in change.sets if not pair.startswith(TRAFFIC)]
    return flags_for(pairs, scheduler.engine_version, block_size=scheduler.block_size).to_dict()


def _trace(data: RunData) -> dict[str, Any]:
    source = data.source
    digest = hashlib.sha256()
    for name in _DIGESTED:
        column = getattr(source, name)
        digest.update(name.encode())
        if column is not None:
            digest.update(np.ascontiguousarray(column).tobytes())
    part = {**asdict(source.part), "warmup_ns": data.setup.warmup_ns}
    return {"name": data.setup.trace_name, "requests": source.total, "counted": int(data.counted.sum()),
            "span_s": source.window_ns / 1e9, "slice": part, "digest": digest.hexdigest()}  # fmt: skip


def _metrics(data: RunData) -> dict[str, Any]:
    """Percentiles with their n, over counted requests that have the time; and who met the SLO."""
    rows = data.outcomes[data.counted[data.outcomes["request"]]]
    found: dict[str, Any] = {}
    for measure in MEASURES:
        times = rows["tpot_ns"] if measure == "tpot" else times_ns(rows, measure)
        known = times[~np.isnan(times)]
        name = {"gap": "longest_gap", "tpot": "tpot"}.get(measure, measure)
        found[f"{name}_s"] = {"n": len(known)} | {
            f"p{percent}": float(np.percentile(known, percent)) / 1e9 if len(known) else None for percent in (50, 95, 99, 100)
        }
    result = data.slo_result
    if result is not None:
        met = result.met[data.counted[data.outcomes["request"]]]
        found["slo"] = {"met": int(met.sum()), "n": int(data.counted.sum())}
    found["preemptions"] = int(rows["preemptions"].sum())
    found["output_tokens"] = int(rows["output_tokens"].sum())
    return found


def finding_document(data: RunData, finding: Finding, replayed: bool) -> dict[str, Any]:
    """One finding, with its advice and what was tried."""
    advice = recommended(finding)
    chosen = [] if advice is None else [_change(data, advice[0], advice[1])]
    tried = [each for each in finding.proofs if advice is None or each.change != advice[0]]
    return {
        "id": finding.id, "name": title(finding.id), "under": finding.under, "what": finding.what,
        "confidence": finding.confidence, "because": finding.because, "measure": finding.measure,
        "classes": list(finding.classes), "excess_s": finding.excess_ns / 1e9, "share_of_excess": finding.share,
        "evidence": [evidence_document(each) for each in finding.evidence],
        "where": where_document(finding.where),
        "not": list(finding.is_not), "recommend": chosen,
        "confirmed_by_replay": None if not replayed else advice is not None and advice[1] is not None,
        "tried": [{**_change(data, each.change, each), "proposed": each.change in finding.changes} for each in tried],
    }  # fmt: skip


def where_document(where: Where) -> dict[str, Any]:
    """Where something shows."""
    return {"t0_s": where.t0_ns / 1e9, "t1_s": where.t1_ns / 1e9, "iterations_top": [list(each) for each in where.iterations],
            "requests_top": list(where.requests)}  # fmt: skip


def expected_document(expected: Expected) -> dict[str, Any]:
    """The model beside the run."""
    kinds = [{"kind": k.name, "expected_s": k.expected_ns / 1e9, "actual_s": k.actual_ns / 1e9} for k in expected.kinds]
    unnamed = [{"kind": e.kind, "what": e.what, "over_s": e.over_ns / 1e9, "share_of_time": e.share,
                "where": where_document(e.where)} for e in expected.unnamed]  # fmt: skip
    return {"by": expected.by, "load": expected.load, "kinds": kinds, "unnamed": unnamed}


def evidence_document(each: Evidence) -> dict[str, Any]:
    """One number of a finding. ``replay``: the command that records the replay that it and its SQL are of, ``None``: the run."""
    return {"metric": each.metric, "value": each.value, "threshold": each.threshold, "unit": each.unit, "sql": each.sql,
            "note": each.note, "replay": _recording(each.sets)}  # fmt: skip


def _recording(sets: tuple[str, ...]) -> str | None:
    return f"tracekit replay --from-run {{run}} {shlex.join(again_options(sets))}" if sets else None


def _change(data: RunData, change: Change, proof: Proof | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "knob": change.knob, "old": change.old, "new": change.new, "set": list(change.sets), "why": change.why,
        "price": change.price, "scheduler_knob": not change.outside, "flags": flags_of(data, change),
    }  # fmt: skip
    if proof is None:
        return {**found, "replayed": None}
    figures = [{"metric": name, "unit": unit, "before": before, "after": after} for name, unit, before, after in proof.figures]
    return {**found, "replayed": {
        "outcome": proof.outcome, "reason": proof.reason, "cured": {"low": proof.low, "mid": proof.cured, "high": proof.high},
        "pairs": proof.n, "worse": list(proof.worse), "figures": figures, "iterations": proof.iterations,
    }}  # fmt: skip


def plain(value: Any) -> Any:
    """Plain values in a fixed order, floats to six digits."""
    if isinstance(value, dict):
        return {str(name): plain(value[name]) for name in sorted(value, key=str)}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None
    return value
