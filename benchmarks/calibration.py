"""The simulator with a profile calibrated here against the torch engine, on a trace the calibration has not seen, one thread.

``python -m benchmarks.calibration [--json] [--requests N] [--utilisation U] [--quick]``. The clock is the CPU time of the one
thread, for both the calibration and the engine, so that other programs on the machine count for little. The engine replays
the trace twice: what two repeats of the same thing differ by is the yardstick.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from benchmarks.figures import Figure, Report, run_main
from benchmarks.unseen import (
    Ran,
    Unseen,
    calibrated_here,
    clock,
    compared,
    engine_run,
    predicted,
    same_shapes,
    settled,
    simulated,
)
from replay_engine.profile import Latency

__all__ = ["main", "measure"]


def measure(given: argparse.Namespace) -> Report:
    model, options, calibrated = calibrated_here(quick=given.quick, wall=given.wall)
    latency = calibrated.profile.latency
    source = settled(latency, given.requests, given.utilisation)
    runs = [engine_run(model, options, source) for _ in range(2)]
    return _report(latency, source, runs, calibrated.found.held)


def _report(latency: Latency, source: Unseen, runs: list[Ran], held: Any) -> Report:
    sim, first = simulated(latency, source), runs[0]
    spread, error = compared(runs[1], first), compared(sim, first)
    rows = first.iterations
    off = float(np.median(np.abs(predicted(latency, rows) / rows["duration_ns"] - 1)))
    own = same_shapes(runs[1], first)
    figures = {
        "utilisation": Figure(value=first.utilisation, unit="", target=0.7, at_most=True, reference="the engine's, of its clock"),
        "iterations": Figure(value=float(len(rows)), unit="", reference=f"{source.total} requests"),
        "iteration_error": _figure(off, own, "median over the engine's iterations of predicted against measured duration"),
        "iteration_spread": Figure(value=100 * own, unit="%", reference="two repeats of the engine, by bands of shapes"),
    }
    for name, share in error.items():
        figures[f"{name}_error"] = _figure(share, spread[name], "simulator's replay against the engine's")
        figures[f"{name}_spread"] = Figure(value=100 * spread[name], unit="%", reference="two repeats of the engine")
    if held is not None:
        figures["held_out_error"] = Figure(value=100 * held.median, unit="%", reference=f"median of {len(held.shapes)} shapes")
    notes = [f"tiny, float32, one thread; {clock()}; the trace's rate is set by the simulator"]
    return Report(benchmark="calibration", figures=figures, notes=notes)


def _figure(error: float, spread: float, reference: str) -> Figure:
    target = max(10.0, 150 * spread)
    return Figure(value=100 * error, unit="%", target=target, at_most=True, reference=reference)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=200, help="length of the trace (default 200)")
    parser.add_argument(
        "--utilisation", type=float, default=0.6, help="share of the time the simulator is to be busy (default 0.6)"
    )
    parser.add_argument("--quick", action="store_true", help="few batches and a short replay to calibrate from")
    parser.add_argument("--wall", action="store_true", help="wall time instead of CPU time: needs a quiet machine")


def main(argv: list[str] | None = None) -> None:
    run_main("calibration", "The calibrated simulator against the torch engine, on this CPU.", measure, argv, _options)


if __name__ == "__main__":
    main()
