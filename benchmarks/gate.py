"""How often a gate is red: on unchanged code, and on a planted 10 % TPOT regression, over fifty seeds each.

``python -m benchmarks.gate [--seeds 50] [--first 0] [--workload NAME ...] [--half] [--json]``. A seed draws traffic (stretches
of the window, sessions whole) for the baseline and the gate alike, and the noise of every iteration for each of them anew, as
large as the profile states its error; no two of the fifty share a draw. The gate is ``tpot_p99<=+5%`` with five draws, and more
where they do not settle it. The regression: every iteration takes longer by the factor under which TPOT P99 rises by 10 % on
the mean over traffic like the window's, which is measured on draws of its own. Beside it every iteration simply takes 10 %
longer, and with ``--half`` the regression's half as much longer, which no target says what becomes of. Workloads: a minute of
the shipped demo trace; the same minute with half the traffic; ten minutes of a public production trace, where it is there.
"""

from __future__ import annotations

import argparse
import inspect
import math
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.figures import ROOT, Figure, Report, run_main
from tracekit.fingerprint import rests_on
from tracekit.gate.baseline import Baseline
from tracekit.gate.limits import parse_gates
from tracekit.gate.metrics import Figures
from tracekit.gate.replays import Replays
from tracekit.gate.run import gate
from tracekit.gate.verdict import MOST, Judgement, judge_gates, most_seeds, overall
from tracekit.replay import Setup, prepare_setup, replay
from tracekit.store import Store

__all__ = ["Workload", "main", "measure"]

DRAWS = 5
METRIC, LIMIT, PLANTED = "tpot_p99", "tpot_p99<=+5%", 1.10
PLANTING, PLANTED_ON = 1_000_000, 20
"""Seeds from here on, so many, only find out how large the planted regression must be: on few of them a burst decides it."""


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
    return replace(setup, profile=replace(setup.profile, latency=setup.profile.latency.times(factor)))


def planted(setup: Setup) -> tuple[float, float]:
    """The factor under which the metric rises by a tenth on the mean over traffic like this, and by how much it then rises."""

    def of(factor: float) -> float:
        replays = Replays(slower(setup, factor), "gate", full=False)
        found = [replays.drawn(seed).figures[METRIC].value for seed in range(PLANTING, PLANTING + PLANTED_ON)]
        return math.exp(math.fsum(math.log(value or 1.0) for value in found) / PLANTED_ON)

    base, low, high = of(1.0), 1.0, PLANTED
    for _ in range(8):
        middle = (low + high) / 2
        low, high = (middle, high) if of(middle) / base < PLANTED else (low, middle)
    return high, of(high) / base - 1


class Draws(Mapping[int, Figures]):
    """A baseline's draws, replayed when they are looked at: most gates need few of them."""

    def __init__(self, replays: Replays, seeds: list[int]) -> None:
        self._replays, self._seeds = replays, seeds

    def __getitem__(self, seed: int) -> Figures:
        if seed not in self._seeds:
            raise KeyError(seed)
        return self._replays.drawn(seed).figures

    def __iter__(self) -> Iterator[int]:
        return iter(self._seeds)

    def __len__(self) -> int:
        return len(self._seeds)

    def __contains__(self, seed: object) -> bool:
        return seed in self._seeds


def baseline_of(setup: Setup, seed: int) -> Baseline:
    """What ``--write-baseline`` would write."""
    before = Replays(setup, "baseline", full=False)
    draws = Draws(before, most_seeds(seed, DRAWS))
    return Baseline(file="", rests_on=rests_on(setup), made_by={}, plain=before.plain().figures, draws=draws)


def judged(setup: Setup, before: Baseline, seed: int) -> list[Judgement]:
    """The gate of ``setup`` against a baseline."""
    gates = parse_gates([LIMIT], baseline=True)
    return judge_gates(gates, Replays(setup, "gate", full=False), before, seed, DRAWS, paired=True)


def measure_workload(workload: Workload, given: argparse.Namespace, report: Report) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        setup = prepared(workload, folder)
        factor, rises = planted(setup)
        changed = {"unchanged": setup, "regression": slower(setup, factor), "slower": slower(setup, PLANTED)}
        if given.half:
            changed["half"] = slower(setup, 1 + (factor - 1) / 2)
        found: dict[str, list[Judgement]] = {kind: [] for kind in changed}
        for at in range(given.first, given.first + given.seeds):
            seed = at * MOST * DRAWS
            before = baseline_of(setup, seed)
            for kind, here in changed.items():
                found[kind].append(_worst(judged(here, before, seed)))
        wall = _gate_s(workload, folder)
    what = f"{workload.what}, {setup.source.total:,} requests"
    slow = {"unchanged": "", "regression": f"iterations take {factor:.4f} x as long: TPOT P99 {rises:+.1%}; ",
            "slower": f"iterations take {PLANTED} x as long; ", "half": f"iterations take {1 + (factor - 1) / 2:.4f} x as long; "}
    for kind, judgements in found.items():
        report.figures[f"{workload.name}_{kind}_red"] = _red(kind, judgements, what, slow[kind])
    report.figures[f"{workload.name}_gate_s"] = Figure(
        value=wall, unit="CPU s", target=60.0, at_most=True, reference=what,
        note="one gate against a baseline, trace loaded")  # fmt: skip


def _worst(judgements: list[Judgement]) -> Judgement:
    """The one that decides the exit code."""
    verdict = overall(judgements)
    return next(each for each in judgements if each.verdict.status == verdict)


def _red(kind: str, judgements: list[Judgement], what: str, note: str) -> Figure:
    statuses = [each.verdict.status for each in judgements]
    count = len(judgements)
    draws = math.fsum(each.verdict.draws for each in judgements) / count
    note += f"inconclusive: {statuses.count('inconclusive')}; {draws:.1f} draws on the mean"
    target = None if kind == "half" else (2 if kind == "unchanged" else 48) * count / 50
    return Figure(value=statuses.count("failed"), unit=f"of {count}", target=target, at_most=kind == "unchanged", reference=what,
                  note=note)  # fmt: skip


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
        f"gate {LIMIT}, {DRAWS} draws, up to {MOST * DRAWS} where they do not settle it; red: exit code 1",
    ])  # fmt: skip
    for workload in WORKLOADS:
        if given.workload and workload.name not in given.workload:
            continue
        if not workload.file.exists():
            report.notes.append(f"{workload.name}: {workload.file.name} is not there")
            continue
        measure_workload(workload, given, report)
    return report


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=50, help="gates of each kind")
    parser.add_argument("--first", type=int, default=0, help="number of the first seed, to measure on fresh ones")
    parser.add_argument("--half", action="store_true", help="a regression half as large too")
    parser.add_argument("--workload", action="append", choices=[each.name for each in WORKLOADS],
                        help="only this one; repeatable")  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    run_main("gate", "How often a gate is red, on unchanged code and on a planted regression.", measure, argv, _options)


if __name__ == "__main__":
    main()
