"""Traces with latencies that our own engine made, as the file of a measured vLLM run: what a fit is to find."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from replay_engine.profile import Latency
from tracekit.calibration.observed.fit import source_of
from tracekit.calibration.observed.replays import Replayed, Replayer
from tracekit.calibration.observed.settings import known_settings
from tracekit.traces.load import read_trace

__all__ = ["PLANTED", "SETS", "Load", "served", "write_served"]

PLANTED = Latency(floor_ns=9e6, a_ns=2.7e6, b_ns=35e3, c_ns=2.0, d_ns=40e3, e_ns=70.0, h0_ns=1e6)
SETS = ("max_num_seqs=24", "max_num_batched_tokens=1024", "num_gpu_blocks=8000", "max_model_len=16384", "engine_version=0.24.0",
        "async_scheduling=true")  # fmt: skip


class Load(NamedTuple):
    """Requests, their mean gap (s), and the mean prompt and output."""

    requests: int = 400
    gap_s: float = 0.1
    prompt: float = 600.0
    output: float = 110.0
    seed: int = 5


FULL = Load()


def _rows(load: Load) -> list[dict[str, object]]:
    draw = np.random.default_rng(load.seed)
    arrival = 1.7e9 + np.cumsum(draw.exponential(load.gap_s, load.requests))
    prompt = np.clip(draw.lognormal(np.log(load.prompt), 0.9, load.requests), 16, 8000).astype(int)
    output = np.clip(draw.lognormal(np.log(load.output), 0.7, load.requests), 2, 1500).astype(int)
    return [
        {"request_id": f"r{k}", "input_toks": int(prompt[k]), "output_toks": int(output[k]),
         "arrival_time": round(float(arrival[k]), 6)}
        for k in range(load.requests)
    ]  # fmt: skip


def served(file: Path, load: Load = FULL, latency: Latency = PLANTED, sets: tuple[str, ...] = SETS) -> Replayed:
    """Serve ``load`` under ``latency`` and write what was observed to ``file``."""
    rows = _rows(load)
    write_served(file, rows, None)
    known = known_settings(None, sets, None)
    run = Replayer(source_of(read_trace(str(file)), known), known.policy).run(latency)
    write_served(file, rows, run)
    return run


def write_served(file: Path, rows: list[dict[str, object]], run: Replayed | None) -> None:
    """As the engine's moments; without ``run`` all of them are 0 s apart."""
    with file.open("w", encoding="utf-8") as out:
        for k, row in enumerate(rows):
            moments = [0, 0, 0, 0] if run is None else [int(m[k]) for m in (run.queued, run.planned, run.first, run.last)]
            names = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
            out.write(json.dumps({**row, **{n: 100.0 + m / 1e9 for n, m in zip(names, moments, strict=True)}}) + "\n")
