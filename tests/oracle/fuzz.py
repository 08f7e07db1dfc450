"""Compares the engine's scheduler with the plain walk on random cases for a while.

``python -m tests.oracle.fuzz --seconds 60 --seed 0 [--bias pressure] [--findings FILE]``
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from replay_engine.parity import replay_case
from tests.oracle.cases import BIASES, Case, random_case
from tests.oracle.compare import Pool, difference, oracle_records, pools_for, shrink

__all__ = ["main"]


def _try(case: Case, pool: Pool, expected: list[dict[str, Any]]) -> str | None:
    """The difference, or the last lines of a crash."""
    try:
        return difference(case, replay_case, pool, expected)
    except Exception:  # any crash is a finding of the fuzzer
        return "crash: " + " | ".join(line.strip() for line in traceback.format_exc().splitlines()[-5:])


def _fails(case: Case, pool: Pool) -> bool:
    try:
        expected = oracle_records(case)
    except Exception:  # shrinking may make a case that no engine accepts
        return False
    return expected is not None and _try(case, pool, expected) is not None


def _report(seed: int, bias: str, pool: Pool, case: Case, found: str, *, small: bool) -> str:
    if small:
        case = shrink(case, lambda candidate: _fails(candidate, pool))
        expected = oracle_records(case)
        found = (_try(case, pool, expected) if expected else None) or found
    text = json.dumps({"knobs": case[0], "requests": case[1]})
    return f"seed {seed} bias {bias} pool {pool}\n  {found}\n  {text}\n"


def fuzz(seconds: float, seed: int, bias: str | None, *, most: int, small: bool) -> tuple[Counter[str], list[str]]:
    """Counts of what was compared, and at most ``most`` reports of differences."""
    counts: Counter[str] = Counter()
    reports: list[str] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end and len(reports) < most:
        which = bias or BIASES[seed % len(BIASES)]
        case = random_case(seed, which)
        expected = oracle_records(case)
        if expected is None:
            counts["livelocks"] += 1
        else:
            counts["cases"] += 1
            counts["preempting"] += any("preempted" in record for record in expected)
            for pool in pools_for(case[0]):
                counts["records"] += len(expected)
                found = _try(case, pool, expected)
                if found:
                    counts["differences"] += 1
                    reports.append(_report(seed, which, pool, case, found, small=small))
                    break
        seed += 1
    counts["next seed"] = seed
    return counts, reports


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bias", choices=BIASES)
    parser.add_argument("--most", type=int, default=5, help="stop after so many differences")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--findings", type=Path, help="append the differences to this file")
    args = parser.parse_args()
    counts, reports = fuzz(args.seconds, args.seed, args.bias, most=args.most, small=not args.no_shrink)
    for report in reports:
        print(report)
    if reports and args.findings:
        with args.findings.open("a", encoding="utf-8") as file:
            file.writelines(reports)
    names = ("cases", "preempting", "records", "differences", "livelocks", "next seed")
    print(", ".join(f"{counts[name]} {name}" if name != "next seed" else f"next seed {counts[name]}" for name in names))
    return 1 if reports else 0


if __name__ == "__main__":
    sys.exit(main())
