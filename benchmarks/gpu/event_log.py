"""What the event log costs on a device: replays with it and without it, in turns, in one process.

    python -m benchmarks.gpu.event_log --json FILE [--device cuda] [--tiny]

One request at a time on a small model, where an iteration is shortest and the log weighs most. Needs torch, triton and numpy.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

from benchmarks.gpu.engine import Case, Figure, replayed
from replay_engine.recorder import EventMode
from replay_engine.torch_engine.engine import EngineOptions, load_model
from replay_engine.torch_engine.model import DecoderModel

__all__ = ["log_cost", "main"]

LOG_PERCENT, LOG_US = 0.5, 10.0


def log_cost(model: DecoderModel, case: Case, repeats: int) -> list[Figure]:
    """By the wall clock of whole replays: what an iteration pays for the log, the share of it, and how far repeats lie apart."""
    spent: dict[EventMode, list[float]] = {"full": [], "none": []}
    modes: tuple[EventMode, ...] = ("full", "none")
    for turn in range(2 * repeats):
        mode = modes[turn % 2 if turn // 2 % 2 else 1 - turn % 2]  # whoever is first in a pair is second in the next
        ran = replayed(model, case, mode)
        spent[mode].append(ran.wall_s / ran.iterations * 1e6)
    full, none = statistics.median(spent["full"]), statistics.median(spent["none"])
    pairs = [a - b for a, b in zip(spent["full"], spent["none"], strict=True)]
    judged, percent = model.device.type == "cuda", 100 * (full - none) / none
    name = f"{model.shape.name} batch {case.requests}: event log"
    return [
        Figure(name, round(full - none, 2), "us/iteration", f"{LOG_US:g} us", full - none <= LOG_US if judged else None, ""),
        Figure(f"{name}, share", round(percent, 3), "%", f"{LOG_PERCENT:g} %", percent <= LOG_PERCENT if judged else None, ""),
        Figure(f"{name}, range of {repeats} pairs", round(max(pairs) - min(pairs), 2), "us/iteration", "", None, ""),
    ]


def main(words: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.event_log", description="What the event log costs.")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    parser.add_argument("--tiny", action="store_true", help="a tiny model and short answers: a rehearsal")
    parser.add_argument("--json", type=Path, required=True, help="file for the figures")
    given = parser.parse_args(words)
    model = load_model(EngineOptions(model="tiny" if given.tiny else "qwen3-0.6b", device=given.device))
    case, repeats = (Case(1, 16, 8), 1) if given.tiny else (Case(1, 128, 512), 7)
    found = [line._asdict() for line in log_cost(model, case, repeats)]
    given.json.write_text(json.dumps({"figures": found}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
