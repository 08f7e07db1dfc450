"""A model calibrated on a device: coefficients, how far off they are on shapes not seen, and a profile for the simulator.

    python -m benchmarks.gpu.calibration --json FILE [--device cuda] [--tiny]

The profile lies beside FILE, as ``.toml``. Needs torch, triton and numpy.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.gpu.engine import Figure
from replay_engine.calibration.cases import parse_cases
from replay_engine.torch_engine.calibrate import Calibrated, calibrate_model, plan_for
from replay_engine.torch_engine.engine import EngineOptions, load_model

__all__ = ["MODEL", "calibrated", "figures", "main"]

MODEL, TINY_MODEL = "qwen3-0.6b", "tiny"
REHEARSAL = "decode=1@16 decode=4*1@16 decode=8*1@64 prefill=8 prefill=32 prefill=64 chunk=16@32c mix=8,2*1@16"
HELD_PERCENT = 8.0
"""Median error on unseen shapes, from one H200 on."""


def calibrated(device: str, tiny: bool) -> Calibrated:
    """Measured and fitted; ``tiny``: a few small batches of a small model, which say nothing but that it can be done."""
    options = EngineOptions(model=TINY_MODEL if tiny else MODEL, device=device)
    model = load_model(options)
    plan = plan_for(model)
    if tiny:
        plan = replace(plan, cases=parse_cases([REHEARSAL]), repeats=1, prompt=64, output=8, groups=(1, 4))
    return calibrate_model(model, options, plan)


def figures(found: Calibrated, judged: bool) -> list[Figure]:
    """Coefficients, then errors; the floor is for a GPU."""
    fit = found.found
    name = found.profile.name
    lines = [Figure(f"{name} {key}", value, "", "", None, "") for key, value in fit.latency.costs().items()]
    lines.append(Figure(f"{name}: error of the fit, median", round(100 * fit.error, 2), "%", "", None, ""))
    if fit.held is not None:
        median, p90 = 100 * fit.held.median, 100 * fit.held.p90
        reached = median <= HELD_PERCENT if judged else None
        seen = f"of {len(fit.held.shapes)} unseen shapes"
        lines.append(Figure(f"{name}: error {seen}, median", round(median, 2), "%", f"{HELD_PERCENT:g} %", reached, ""))
        lines.append(Figure(f"{name}: error {seen}, P90", round(p90, 2), "%", "", None, ""))
    return lines


def main(words: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.calibration", description="A model calibrated on a device.")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    parser.add_argument("--tiny", action="store_true", help="a small model and few batches: a rehearsal")
    parser.add_argument("--json", type=Path, required=True, help="file for the figures; the profile lies beside")
    given = parser.parse_args(words)
    result = calibrated(given.device, given.tiny)
    given.json.with_suffix(".toml").write_text(result.profile.to_toml(), encoding="utf-8")
    found = [line._asdict() for line in figures(result, given.device != "cpu")]
    given.json.write_text(json.dumps({"figures": found}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
