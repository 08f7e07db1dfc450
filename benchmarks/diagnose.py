"""What a diagnosis costs: 13,000 requests over some 100,000 iterations, without proof, with it, and at the end of a replay.

``python -m benchmarks.diagnose [--json] [--repeats N]``. Wall time, the fastest run; the share of a replay is in CPU time of one
process, both measured in turn.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure, Report, reference_figure, run_main
from benchmarks.planted_replay import setup_of
from tracekit.diagnosis.diagnose import diagnose
from tracekit.diagnosis.proof import prove
from tracekit.diagnosis.run_data import RunData
from tracekit.generators.recipe import build_case
from tracekit.replay import replay

__all__ = ["RECIPE", "main", "measure"]

RECIPE = {
    "seed": 8,
    "engine": {"cost": "S80", "budget": 2048, "seats": 40, "kv_tokens": 60000, "step": "mixed", "admit": "chunk"},
    "load": [
        {"cls": "chat", "n": 12600, "arrive": "poisson(6.3)", "isl": "ln(700,0.7,50,4000)", "osl": "ln(180,0.7,10,1500)"},
        {"cls": "book", "n": 400, "arrive": "poisson(0.2)", "isl": "u(12000,20000)", "osl": "u(20,60)"},
    ],
}
"""Long prompts among short ones, and KV that is short: several detectors have something to say."""


def _fastest(repeats: int, call: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    found = []
    for _ in range(max(repeats, 1)):
        began = clock()
        call()
        found.append(clock() - began)
    return min(found)


def _end_of_replay(folder: Path, repeats: int) -> tuple[float, float]:
    """CPU seconds of a whole replay without the verdict at its end, and with it."""
    import yaml

    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE), "utf-8")
    built = build_case(folder / "recipe.yaml", folder / "built")
    trace = replay(str(built.trace), limit=10, engine="sim", db=str(folder / "t.duckdb"), diagnose=False).matrix["run"]["trace"]

    def once(told: bool) -> float:
        began = time.process_time()
        replay(
            trace, engine="sim", db=str(folder / "t.duckdb"), profile=str(built.profile), policy=str(built.policy), diagnose=told
        )
        return time.process_time() - began

    pairs = [(once(False), once(True)) for _ in range(max(repeats, 1))]
    bare, told = (np.array(side) for side in zip(*pairs, strict=True))
    return float(bare.min()), float(told.min())


def measure(repeats: int) -> Report:
    """All figures."""
    data = RunData.replayed(setup_of(RECIPE, None))

    def fresh() -> RunData:
        return RunData(setup=data.setup, tables=data.tables, state=data.state)

    found = diagnose(data)
    proved = prove(fresh(), found)
    report = Report(benchmark="diagnose")
    what = f"{len(data.outcomes):,} requests, {len(data.iterations):,} iterations"
    named = ", ".join(each.id for each in found.findings) or "nothing"
    report.figures["diagnose"] = Figure(value=_fastest(repeats, lambda: diagnose(fresh())), unit="s", target=2.0, at_most=True,
                                        reference=what, note=f"found {named}")  # fmt: skip
    trials = {proof.change.sets: proof for each in proved.findings for proof in each.proofs}
    ran = sum(proof.iterations for proof in trials.values())
    proof_s = _fastest(repeats, lambda: prove(fresh(), diagnose(fresh())))
    report.figures["with_proof"] = Figure(value=proof_s, unit="s", target=30.0, at_most=True, reference=what,
                                          note=f"{len(trials)} replays, {ran:,} iterations")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        bare, told = _end_of_replay(Path(folder), repeats)
    report.figures["verdict_of_replay"] = Figure(
        value=max(told - bare, 0.0) / bare, unit="of the replay", target=0.15, at_most=True,
        reference=f"replay {bare:.2f} s CPU, with the verdict {told:.2f} s",
    )  # fmt: skip
    report.figures["python"] = reference_figure()
    return report


def main(argv: list[str] | None = None) -> None:
    """Print the figures."""

    def options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--repeats", type=int, default=3)

    run_main("diagnose", "What a diagnosis costs.", lambda given: measure(given.repeats), argv, options)


if __name__ == "__main__":
    main()
