"""How often a gate is red: on unchanged code, and on a planted 10 % TPOT regression, over fifty seeds each.

``python -m benchmarks.gate [--seeds 50] [--workload NAME ...] [--json]``. A seed draws traffic (stretches of the window,
sessions whole) for the baseline and the gate alike, and the noise of every iteration for each of them anew, as large as the
profile states its error. The gate is ``tpot_p99<=+5%`` with five draws, once more with five others where the first are not
kept. The regression: every iteration takes longer by the factor under which TPOT P99 rises by 10 % on the mean over traffic
like the window's; beside it every iteration simply takes 10 % longer. Workloads: a minute of the shipped demo trace; the same
minute with half the traffic; ten minutes of a public production trace, where it is there.
"""

from __future__ import annotations

import argparse
import inspect
import math
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.figures import ROOT, Figure, Report, run_main
from replay_engine.profile import Latency
from tracekit.gate.baseline import baseline_document, read_baseline
from tracekit.gate.limits import parse_gates
from tracekit.gate.replays import Replays
from tracekit.gate.run import gate
from tracekit.gate.verdict import Judgement, judge_gates, overall, seeds_of
from tracekit.replay import Setup, prepare_setup, replay
from tracekit.store import Store
from tracekit.store.files import write_json

__all__ = ["Workload", "main", "measure"]

DRAWS = 5
METRIC, LIMIT, PLANTED = "tpot_p99", "tpot_p99<=+5%", 1.10
PLANTING = 1_000_000
"""Seeds from here on only find out how large the planted regression must be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A trace, the part of it that is gated, and what that is."""

    name: str
    file: Path
    window: str
    rate_scale: float
    what: str


WORKLOADS = (
    Workload(name="minute", file=ROOT / "examples" / "demo_trace.jsonl.gz", window="60s:120s", rate_scale=1.0,
             what="a minute of the demo trace"),
    Workload(name="calm_minute", file=ROOT / "examples" / "demo_trace.jsonl.gz", window="60s:120s", rate_scale=0.5,
             what="the same minute at half its rate"),
    Workload(name="azure_code", file=ROOT / ".." / "shared" / "traces" / "AzureLLMInferenceTrace_code.csv", window="10m:20m",
             rate_scale=1.0, what="ten minutes of the Azure 2023 code trace"),
)  # fmt: skip


def prepared(workload: Workload, folder: Path) -> Setup:
    """The window as ``replay`` would replay it."""
    options = {name: each.default for name, each in inspect.signature(replay).parameters.items()}
    given = options | {"inputs": [str(workload.file)], "engine": "sim", "window": workload.window,
                       "rate_scale": workload.rate_scale}  # fmt: skip
    return prepare_setup(Store(folder / "gate.duckdb"), given, lambda line: None)


def slower(setup: Setup, factor: float) -> Setup:
    """Every iteration takes ``factor`` times as long."""
    costs = {name: value * factor for name, value in asdict(setup.profile.latency).items()}
    return replace(setup, profile=replace(setup.profile, latency=Latency(**costs)))


def planted(setup: Setup) -> tuple[float, float]:
    """The factor under which the metric rises by a tenth on the mean over traffic like this, and by how much it then rises."""

    def of(factor: float) -> float:
        replays = Replays(slower(setup, factor), "gate", full=False)
        found = [replays.drawn(seed).figures[METRIC].value for seed in range(PLANTING, PLANTING + DRAWS)]
        return math.exp(math.fsum(math.log(value or 1.0) for value in found) / DRAWS)

    base, low, high = of(1.0), 1.0, PLANTED
    for _ in range(8):
        middle = (low + high) / 2
        low, high = (middle, high) if of(middle) / base < PLANTED else (low, middle)
    return high, of(high) / base - 1


def judged(setup: Setup, baseline: Path, seed: int) -> list[Judgement]:
    """The gate of ``setup`` against a baseline file."""
    before = read_baseline(baseline)
    gates = parse_gates([LIMIT], baseline=True)
    return judge_gates(gates, Replays(setup, "gate", full=False), before, seed, DRAWS, paired=True)


def measure_workload(workload: Workload, seeds: int, report: Report) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        setup = prepared(workload, folder)
        factor, rises = planted(setup)
        changed = {"unchanged": setup, "regression": slower(setup, factor), "slower": slower(setup, PLANTED)}
        found: dict[str, list[str]] = {kind: [] for kind in changed}
        for at in range(seeds):
            seed = at * 2 * DRAWS
            first, other = seeds_of(seed, DRAWS)
            baseline = folder / "base.json"
            before = Replays(setup, "baseline", full=False)
            write_json(baseline, baseline_document(before, first + other, before.plain().figures, []))
            for kind, here in changed.items():
                found[kind].append(overall(judged(here, baseline, seed)))
        wall = _gate_s(workload, folder)
    what = f"{workload.what}, {setup.source.total:,} requests"
    red = {kind: verdicts.count("failed") for kind, verdicts in found.items()}
    unsure = {kind: verdicts.count("inconclusive") for kind, verdicts in found.items()}
    report.figures[f"{workload.name}_unchanged_red"] = Figure(
        value=red["unchanged"], unit=f"of {seeds}", target=2 * seeds / 50, at_most=True, reference=what,
        note=f"inconclusive: {unsure['unchanged']}")  # fmt: skip
    report.figures[f"{workload.name}_regression_red"] = Figure(
        value=red["regression"], unit=f"of {seeds}", target=48 * seeds / 50, reference=what,
        note=f"iterations take {factor:.4f} x as long: TPOT P99 {rises:+.1%}; inconclusive: {unsure['regression']}")  # fmt: skip
    report.figures[f"{workload.name}_slower_red"] = Figure(
        value=red["slower"], unit=f"of {seeds}", target=48 * seeds / 50, reference=what,
        note=f"iterations take {PLANTED} x as long; inconclusive: {unsure['slower']}")  # fmt: skip
    report.figures[f"{workload.name}_gate_s"] = Figure(
        value=wall, unit="CPU s", target=60.0, at_most=True, reference=what,
        note="one gate against a baseline, trace loaded")  # fmt: skip


def _gate_s(workload: Workload, folder: Path) -> float:
    """CPU seconds of one gate against a baseline, as the command does it."""
    options: dict[str, Any] = {"window": workload.window, "rate_scale": workload.rate_scale, "db": folder / "gate.duckdb",
                               "gate_file": folder / "gate.json"}  # fmt: skip
    gate(str(workload.file), write_baseline=folder / "one.json", **options)
    began = time.process_time()
    gate(str(workload.file), gates=["ttft_p99<=60s", LIMIT, "no:PREEMPTION_STORM"], baseline=folder / "one.json", **options)
    return round(time.process_time() - began, 2)


def measure(given: argparse.Namespace) -> Report:
    """The chosen workloads."""
    report = Report(benchmark="gate", notes=[
        f"gate {LIMIT}, {DRAWS} draws, {DRAWS} more where the first are not kept; red: exit code 1",
    ])  # fmt: skip
    for workload in WORKLOADS:
        if given.workload and workload.name not in given.workload:
            continue
        if not workload.file.exists():
            report.notes.append(f"{workload.name}: {workload.file.name} is not there")
            continue
        measure_workload(workload, given.seeds, report)
    return report


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=50, help="gates of each kind")
    parser.add_argument("--workload", action="append", choices=[each.name for each in WORKLOADS],
                        help="only this one; repeatable")  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    run_main("gate", "How often a gate is red, on unchanged code and on a planted regression.", measure, argv, _options)


if __name__ == "__main__":
    main()
