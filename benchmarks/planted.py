"""Is the right cause named where a fault was planted, and none where nothing is wrong? On fresh random services each time.

    python -m benchmarks.planted [--single 140] [--double 60] [--healthy 100] [--seed N] [--jobs 2]
        [--only FAULT] [--out FILE.json] [--failures FOLDER]

Draws come from ``planted_draws`` (which knows of no diagnosis). Each is diagnosed and proved as ``tracekit diagnose`` does. What
replays confirm is tried again on another window of the same traffic: the same recipe drawn with another seed.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.planted_draws import Draw, draw_healthy, draw_planted
from benchmarks.planted_faults import FAULTS, NAMES
from benchmarks.planted_replay import Replayed, setup_of
from replay_engine.tables import TABLES
from tracekit.diagnosis.changes import changed_setup
from tracekit.diagnosis.diagnose import diagnose
from tracekit.diagnosis.finding import Diagnosis, Finding, confirmed
from tracekit.diagnosis.proof import prove
from tracekit.diagnosis.run_data import RunData, tidy
from tracekit.diagnosis.text import render_diagnosis
from tracekit.diagnosis.wording import headline
from tracekit.diagnosis.yardstick import Yardstick

__all__ = ["TARGETS", "examined", "main", "scores"]

TARGETS = {"right first": 0.95, "both named": 0.85, "silent": 0.98, "still better": 0.90}
BUDGET = 5_000_000


def _data(run: Replayed) -> RunData:
    return RunData(setup=run.setup, tables={name: tidy(name, run.record.rows(name)) for name in TABLES}, state=run.state)


def examined(kind: str, seed: int, only: str | None = None) -> dict[str, Any]:
    """Draw, diagnose, prove and score one service: ``single``, ``double`` or ``healthy``."""
    draw = draw_healthy(seed) if kind == "healthy" else draw_planted(seed, 1 if kind == "single" else 2, only)
    data = _data(draw.run)
    found = prove(data, diagnose(data), budget=BUDGET, workers=1)
    names = [each.id for each in found.findings]
    accepted = [NAMES[fault] for fault in draw.faults]
    right = bool(names) and any(names[0] in each for each in accepted) if accepted else not names
    both = all(any(name in each for name in names) for each in accepted)
    return {
        "kind": kind, "seed": seed, "faults": list(draw.faults), "names": names, "right_first": right, "all_named": both,
        "misses": round(draw.misses, 4), "healthy_misses": round(draw.healthy_misses, 4), "discarded": draw.discarded,
        "confirmed": [_elsewhere(draw, data, each) for each in found.findings if confirmed(each) is not None],
        "headline": headline(found), "text": _told(draw, data, found),
    }  # fmt: skip


def _elsewhere(draw: Draw, data: RunData, finding: Finding) -> dict[str, Any]:
    """A confirmed change on another window of the same traffic: what is in excess there without it and with it, s."""
    proof = confirmed(finding)
    assert proof is not None
    recipe = {**draw.recipe, "seed": draw.recipe["seed"] + 1_000_003}
    other = RunData.replayed(setup_of(recipe, draw.slo))
    changed = RunData.replayed(changed_setup(other.setup, proof.change.sets).setup)
    yardstick = Yardstick.of(other)
    before, after = (float(np.nansum(yardstick.excess(each.outcomes, finding.measure))) / 1e9 for each in (other, changed))
    return {"id": finding.id, "set": list(proof.change.sets), "before_s": before, "after_s": after,
            "better": after < before or before == 0}  # fmt: skip


def _told(draw: Draw, data: RunData, found: Diagnosis) -> str:
    """What a failure is looked into with."""
    held = {"default": draw.slo.default.to_dict(), "exempt": sorted(draw.slo.classes)}
    return "\n".join([
        f"# planted: {', '.join(draw.faults) or 'nothing'}", "",
        f"misses {draw.misses:.1%} with, {draw.healthy_misses:.1%} without; SLO (ns) {json.dumps(held)}", "",
        "```yaml", yaml.safe_dump(draw.recipe, sort_keys=False, default_flow_style=None).rstrip(), "```", "", "```",
        render_diagnosis(data, found, replayed=True), "```", "",
    ])  # fmt: skip


def scores(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Shares that the targets are about, with their n."""
    of = {kind: [row for row in rows if row["kind"] == kind] for kind in ("single", "double", "healthy")}
    planted = of["single"] + of["double"]
    again = [each for row in planted for each in row["confirmed"]]
    found = {
        "right first": [row["right_first"] for row in planted],
        "both named": [row["all_named"] for row in of["double"]],
        "silent": [row["right_first"] for row in of["healthy"]],
        "still better": [each["better"] for each in again],
    }  # fmt: skip
    shares = {name: {"share": round(sum(each) / len(each), 4) if each else None, "n": len(each), "target": TARGETS[name]}
              for name, each in found.items()}  # fmt: skip
    proved = [any(each["id"] in NAMES[row["faults"][0]] for each in row["confirmed"]) for row in of["single"]]
    by_fault = {fault: _by(of["single"], fault) for fault in FAULTS if any(fault in row["faults"] for row in of["single"])}
    right = {"share": round(sum(proved) / len(proved), 4) if proved else None, "n": len(proved)}
    return {"scores": shares, "right cause confirmed by replay": right, "by fault": by_fault,
            "discarded draws": sum(row["discarded"] for row in rows)}  # fmt: skip


def _by(rows: list[dict[str, Any]], fault: str) -> dict[str, Any]:
    own = [row for row in rows if fault in row["faults"]]
    wrong = Counter(row["names"][0] if row["names"] else "nothing" for row in own if not row["right_first"])
    return {"n": len(own), "right first": sum(row["right_first"] for row in own), "said instead": dict(wrong)}


def main(argv: list[str] | None = None) -> int:
    """Draw and score; exit code 1 where a target is missed."""
    options = _options(argv)
    seed = options.seed if options.seed is not None else secrets.randbelow(10**8)
    wanted = {kind: getattr(options, kind) for kind in ("single", "double", "healthy")}
    tasks = [(kind, seed + k, options.only) for kind, n in wanted.items() for k in range(n)]
    rows: list[dict[str, Any]] = []
    began = time.monotonic()
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(examined, *task) for task in tasks]):
            row = future.result()
            rows.append(row)
            good = row["right_first"] and (row["kind"] != "double" or row["all_named"])
            if not good:
                _keep(options.failures, row)
            said = ", ".join(row["names"]) or "nothing"
            print(f"{'ok   ' if good else 'WRONG'} {row['kind']} {row['seed']}: {', '.join(row['faults']) or 'healthy'}"
                  f" ({row['misses']:.0%} miss): {said}", file=sys.stderr, flush=True)  # fmt: skip
    rows.sort(key=lambda row: (row["kind"], row["seed"]))
    result = {"seed": seed, "wall_s": round(time.monotonic() - began), **scores(rows)}
    print(json.dumps(result, indent=2))
    if options.out is not None:
        kept = [{name: value for name, value in row.items() if name != "text"} for row in rows]
        options.out.write_text(json.dumps({**result, "draws": kept}, indent=1) + "\n", "utf-8")
    return int(any(each["share"] is not None and each["share"] < each["target"] for each in result["scores"].values()))


def _keep(folder: Path | None, row: dict[str, Any]) -> None:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{row['kind']}-{'-'.join(row['faults']).replace(' ', '_').replace(',', '') or 'healthy'}-{row['seed']}.md"
        (folder / name).write_text(row["text"], "utf-8")


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.planted", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    for name, n in (("single", 140), ("double", 60), ("healthy", 100), ("jobs", 2)):
        parser.add_argument(f"--{name}", type=int, default=n)
    parser.add_argument("--seed", type=int, help="of the first draw [default: a fresh one]")
    parser.add_argument("--only", choices=list(FAULTS), help="plant this fault only")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--failures", type=Path, help="a folder for what was wrong, a file a draw")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
