"""Cases of trouble, diagnosed: does the right cause come first, with its numbers and its knob, and is nothing wrong said?

    python -m benchmarks.cases FILE.md [--case D01 ...] [--no-prove] [--no-variants] [--json OUT]

Reads any file of the format of ``case_file``, builds every recipe, replays it, diagnoses it without an SLO, and replays what the
diagnosis proposes. Variants of the file's tables that can be written as settings are replayed too. Exit code 1 where a case
is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.case_file import CaseText, Stated, expected_knobs, forbidden, parse_cases, stated_numbers, variant_sets
from benchmarks.case_setups import recipe_setup
from replay_engine.config import ConfigError
from tracekit.diagnosis.changes import changed_setup
from tracekit.diagnosis.diagnose import diagnose
from tracekit.diagnosis.finding import Change, Diagnosis
from tracekit.diagnosis.proof import BUDGET, prove
from tracekit.diagnosis.run_data import RunData
from tracekit.diagnosis.signals import SIGNALS
from tracekit.diagnosis.view import View
from tracekit.errors import TracekitError

__all__ = ["examined", "main"]

NEAR = 0.3
"""Relative; shares (up to 1) within 0.1 instead."""


def examined(case: CaseText, *, proof: bool, variants: bool) -> dict[str, Any]:
    """One case: what it expects, what was found, and what of it is right. Errors: ``TracekitError`` of the recipe."""
    with TemporaryDirectory() as folder:
        recipe = Path(folder) / f"{case.name}.yaml"
        recipe.write_text(case.recipe, encoding="utf-8")
        data = RunData.replayed(recipe_setup(recipe, Path(folder) / "built"))
    began = time.perf_counter()
    found = diagnose(data)
    took = time.perf_counter() - began
    if proof:
        found = prove(data, found, budget=BUDGET)
    first = found.findings[0] if found.findings else None
    wanted = expected_knobs(case)
    names = [each.id for each in found.findings]
    silent = case.ids[:1] == ("NONE",)
    proposed = first.changes[0] if first is not None and first.changes else None
    outcome = next((each.outcome for each in first.proofs if each.change == proposed), None) if first is not None else None
    return {
        "case": case.name, "expected": list(case.ids), "found": names, "took_s": round(took, 3),
        "right first": not names if silent else names[:1] == [case.ids[0]],
        "all named": silent or set(case.named) <= set(names),
        "knob": proposed.knob if proposed else None,
        "right knob": silent or (proposed is None if not wanted else proposed is not None and proposed.knob in wanted),
        "proof": outcome, "said wrong": _said_wrong(case, found), "must not": list(case.wrong),
        "numbers": _numbers(case, data, found), "diagnosis": _told(found),
        "variants": _variants(case, data) if variants else {},
    }  # fmt: skip


def _said_wrong(case: CaseText, found: Diagnosis) -> list[str]:
    ids, knobs, none = forbidden(case)
    said = [each.id for each in found.findings if each.id in ids]
    for change in (change for each in found.findings for change in each.changes):
        way = _way(change)
        if any(change.knob == knob and sign in (0, way) for knob, sign in knobs - _wanted_anyway(case)) or (
            none and not change.outside
        ):
            said.append(f"{change.knob} {change.old} -> {change.new}")
    return said


def _wanted_anyway(case: CaseText) -> set[tuple[str, int]]:
    """What a sentence forbids in one sense and the answer asks for in another (``budget alone``, ``first``)."""
    return {(knob, sign) for knob in expected_knobs(case) for sign in (0,)}


def _way(change: Change) -> int:
    try:
        return 1 if float(change.new) > float(change.old) else -1
    except ValueError:
        return 0


def _numbers(case: CaseText, data: RunData, found: Diagnosis) -> list[dict[str, Any]]:
    view, seen = View(data), {}
    for finding in reversed(found.findings):
        seen.update({each.metric: each.value for each in finding.evidence})
    rows = []
    for stated in stated_numbers(case):
        value = seen.get(stated.metric)
        if value is None and stated.metric in SIGNALS:
            value = float(SIGNALS[stated.metric][1](view))
        rows.append({"metric": stated.metric, "stated": f"{stated.how} {stated.value:g}", "found": value,
                     "holds": None if value is None else _holds(stated, value)})  # fmt: skip
    return rows


def _holds(stated: Stated, value: float) -> bool:
    near = 0.1 if stated.value <= 1 else NEAR * stated.value
    if stated.how == "~":
        return abs(value - stated.value) <= near
    slack = 0.02 if stated.value <= 1 else 0.0
    return value >= stated.value - slack if stated.how in (">=", ">") else value <= stated.value + slack


def _told(found: Diagnosis) -> list[dict[str, Any]]:
    return [
        {"id": each.id, "share": round(each.share, 3), "under": each.under, "what": each.what,
         "changes": [f"{c.knob} {c.old} -> {c.new}" for c in each.changes],
         "proofs": [f"{p.change.knob} {p.change.old} -> {p.change.new}: {p.outcome}; {p.reason}" for p in each.proofs]}
        for each in found.findings
    ]  # fmt: skip


def _variants(case: CaseText, data: RunData) -> dict[str, str]:
    """What each variant of the table does to the times, as far as a machine can tell what it is."""
    told = {}
    for row in case.rows:
        sets = variant_sets(case, row, data.policy.scheduler.num_gpu_blocks)
        if sets is None:
            told[row] = "not understood"
            continue
        try:
            run = data if not sets else RunData.replayed(changed_setup(data.setup, sets).setup)
        except (ConfigError, TracekitError) as error:
            told[row] = str(error)
            continue
        rows = run.outcomes[run.outcomes["ttft_ns"] >= 0]
        ttft = np.quantile(rows["ttft_ns"], [0.5, 0.99]) / 1e9
        length = (rows["last_token_ns"].max() - rows["arrival_ns"].min()) / 1e9
        gap = max(int(rows["max_gap_ns"].max()), 0) / 1e9
        told[row] = (f"TTFT p50 {ttft[0]:.3g} s, p99 {ttft[1]:.3g} s, longest gap {gap:.3g} s,"
                     f" {rows['output_tokens'].sum() / length:.4g} tok/s")  # fmt: skip
    return told


def _print(row: dict[str, Any]) -> None:
    good = _good(row)
    print(f"{'ok   ' if good else 'WRONG'} {row['case']}: expected {', '.join(row['expected'])}; found"
          f" {', '.join(row['found']) or 'NONE'} ({row['took_s']} s)")  # fmt: skip
    for each in row["diagnosis"]:
        print(
            f"      {each['id']} {100 * each['share']:.0f} %{' under ' + each['under'] if each['under'] else ''}: {each['what']}"
        )
        for change in each["changes"]:
            print(f"         change {change}")
        for proof in each["proofs"]:
            print(f"         replay {proof}")
    for each in row["numbers"]:
        value = "not there" if each["found"] is None else f"{each['found']:.4g}"
        print(f"      {'' if each['holds'] else 'DIFFERS '}{each['metric']} {each['stated']}: {value}")
    for sentence in row["must not"]:
        print(f"      file: {sentence}")
    for said in row["said wrong"]:
        print(f"      FORBIDDEN {said}")
    for name, told in row["variants"].items():
        print(f"      variant {name}: {told}")


def _good(row: dict[str, Any]) -> bool:
    return bool(row["right first"] and row["all named"] and row["right knob"] and not row["said wrong"])


def main(argv: list[str] | None = None) -> int:
    """Examine every case of a file."""
    parser = argparse.ArgumentParser(prog="benchmarks.cases", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--case", action="append", help="only this one; may be repeated")
    parser.add_argument("--no-prove", action="store_true", help="replay no change")
    parser.add_argument("--no-variants", action="store_true", help="replay no variant of the tables")
    parser.add_argument("--json", type=Path, help="write all that was found")
    options = parser.parse_args(argv)
    rows = []
    for case in parse_cases(options.file.read_text(encoding="utf-8")):
        if options.case and case.name not in options.case:
            continue
        rows.append(examined(case, proof=not options.no_prove, variants=not options.no_variants))
        _print(rows[-1])
    numbers = [each["holds"] for row in rows for each in row["numbers"]]
    confirmed = sum(row["proof"] == "confirmed" for row in rows)
    print(f"{sum(map(_good, rows))} of {len(rows)} cases right; {confirmed} first proposals confirmed by replay;"
          f" {sum(each is True for each in numbers)} of {len(numbers)} stated numbers hold")  # fmt: skip
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return int(not rows or not all(map(_good, rows)))


if __name__ == "__main__":
    sys.exit(main())
