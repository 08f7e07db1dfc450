"""The simulator against the engine on a device: a trace that the calibration has not seen, through both.

    python -m benchmarks.gpu.against --profile FILE.toml --json FILE [--device cuda] [--tiny]

The profile is what ``benchmarks.gpu.calibration`` left. The engine replays the trace twice: what two repeats differ by is the
yardstick. Needs torch, triton and numpy.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from benchmarks.gpu.calibration import MODEL, TINY_MODEL
from benchmarks.gpu.engine import Figure
from benchmarks.unseen import CPU, GPU, Ran, Unseen, compared, engine_run, predicted, same_shapes, settled, simulated
from replay_engine.profile import Latency, load_profile
from replay_engine.torch_engine.engine import EngineOptions, load_model

__all__ = ["figures", "main"]

REQUESTS, TINY_REQUESTS, UTILISATION = 200, 12, 0.6
PERCENT = 10.0
"""What an error may be, or 1.5 times what two repeats of the engine differ by if that is more."""


def figures(latency: Latency, source: Unseen, runs: list[Ran], judged: bool) -> list[Figure]:
    """Errors of the simulator beside the engine's own spread."""
    first, second = runs
    sim, rows = simulated(latency, source), first.iterations
    off = float(np.median(np.abs(predicted(latency, rows) / rows["duration_ns"] - 1)))
    errors, spreads = compared(sim, first), compared(second, first)
    both = {"iteration duration, median": (off, same_shapes(second, first))}
    both |= {name.replace("_", " ").upper(): (error, spreads[name]) for name, error in errors.items()}
    lines = [Figure(f"utilisation of the engine, {source.total} requests", round(first.utilisation, 3), "", "", None, "")]
    for name, (error, spread) in both.items():
        allowed = max(PERCENT, 150 * spread) if np.isfinite(spread) else PERCENT
        reached = 100 * error <= allowed if judged else None
        lines.append(Figure(f"{name}: simulator's error", round(100 * error, 2), "%", f"{allowed:.1f} %", reached, ""))
        if np.isfinite(spread):
            lines.append(Figure(f"{name}: two repeats of the engine", round(100 * spread, 2), "%", "", None, ""))
    return lines


def main(words: list[str] | None = None) -> int:
    """The command line; exit code 2 where there is no profile."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.against", description="The simulator against the engine.")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    parser.add_argument("--tiny", action="store_true", help="a small model and a short trace: a rehearsal")
    parser.add_argument("--profile", type=Path, required=True, help="the profile of the calibration")
    parser.add_argument("--json", type=Path, required=True, help="file for the figures")
    given = parser.parse_args(words)
    if not given.profile.is_file():
        print(f"{given.profile}: no profile there; expected what benchmarks.gpu.calibration leaves", file=sys.stderr)
        return 2
    latency = load_profile(given.profile).latency
    options = EngineOptions(model=TINY_MODEL if given.tiny else MODEL, device=given.device)
    scale, requests = (CPU, TINY_REQUESTS) if given.tiny else (GPU, REQUESTS)
    source = settled(latency, requests, UTILISATION, scale)
    model = load_model(options)
    runs = [engine_run(model, options, source) for _ in range(2)]
    found = [line._asdict() for line in figures(latency, source, runs, given.device != "cpu")]
    given.json.write_text(json.dumps({"figures": found}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
