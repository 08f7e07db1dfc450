"""The engine on a device, dummy weights: time between tokens, throughput, with graphs and without.

    python -m benchmarks.gpu.engine --json FILE [--device cuda] [--tiny]

Batches whose requests arrive together are replayed through the scheduler and the engine, as a trace would be; figures are read
from the iterations that were logged. Needs torch, triton and numpy. The floors are for one H200; elsewhere nothing is judged.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from replay_engine.config import SchedulerConfig, cdiv
from replay_engine.loop import Replay
from replay_engine.recorder import EventMode
from replay_engine.rules import Rules
from replay_engine.sinks import MemorySink
from replay_engine.torch_engine.engine import EngineOptions, Extent, build_engine, load_model
from replay_engine.torch_engine.engine_rows import GRAPH, EngineSink
from replay_engine.torch_engine.model import DecoderModel
from replay_engine.types import RequestBatch

__all__ = ["Case", "Figure", "figures", "main"]


class Case(NamedTuple):
    """Requests of ``prompt`` and ``output`` tokens that arrive together; ``floor`` in ms between tokens, or tokens a second."""

    requests: int
    prompt: int
    output: int
    graphs: bool = True
    throughput: bool = False
    floor: float | None = None


class Figure(NamedTuple):
    """One measured value; ``error`` says why there is none."""

    name: str
    value: float | None
    unit: str
    floor: str
    reached: bool | None
    error: str


class Ran(NamedTuple):
    """One replay: rows of its iterations (none without an event log), seconds by engine and wall clock, late compilations."""

    rows: npt.NDArray[np.void]
    clock_s: float
    wall_s: float
    iterations: int
    late: int


FULL: dict[str, tuple[Case, ...]] = {
    "qwen3-0.6b": (
        Case(1, 1024, 256, floor=2.5),
        Case(1, 1024, 128, graphs=False),
        Case(64, 1024, 128),
        Case(256, 512, 256, throughput=True),
    ),
    "llama-3.1-8b": (
        Case(1, 1024, 128, floor=5.2 + 3.4e-5 * 1088),
        Case(1, 8192, 128, floor=5.2 + 3.4e-5 * 8256),
        Case(1, 1024, 64, graphs=False),
        Case(16, 4096, 64),
        Case(64, 1024, 64),
        Case(256, 1000, 1000, throughput=True, floor=8000),
    ),
}
TINY: dict[str, tuple[Case, ...]] = {
    "tiny": (Case(2, 16, 6, floor=1.0), Case(2, 16, 6, graphs=False), Case(3, 8, 5, throughput=True))
}
BLOCK_SIZE, BUDGET = 16, 8192


@dataclass(frozen=True, slots=True)
class Together:
    """A source of the requests of one case."""

    case: Case

    @property
    def total(self) -> int:
        return self.case.requests

    def batches(self) -> Iterator[RequestBatch]:
        n = self.case.requests
        yield RequestBatch(
            index=np.arange(n), arrival_ns=np.zeros(n, np.int64), prompt_tokens=np.full(n, self.case.prompt, np.int64),
            output_tokens=np.full(n, self.case.output, np.int64), priority=np.zeros(n, np.int64),
            max_tokens=np.full(n, -1, np.int64),
        )  # fmt: skip


def replayed(model: DecoderModel, case: Case, mode: EventMode = "full") -> Ran:
    """One case from arrival to last token, on an engine of its own. RuntimeError if it does not finish."""
    length = case.prompt + case.output
    config = SchedulerConfig(
        max_model_len=length, max_num_seqs=case.requests, max_num_batched_tokens=max(BUDGET, length), block_size=BLOCK_SIZE,
        num_gpu_blocks=case.requests * (cdiv(length, BLOCK_SIZE) + 1) + 2, enable_prefix_caching=False,
    )  # fmt: skip
    extent = Extent(sequence=length, output=case.output, requests=case.requests)
    engine = build_engine(model, config, Rules(), extent, EngineOptions(graphs=case.graphs, poison=False))
    sink = MemorySink()
    replay = Replay(Together(case), config, engine.executor, EngineSink(sink, engine.executor.notes), pool=engine.pool, mode=mode)
    began = time.perf_counter()
    state = replay.run()
    wall, late = time.perf_counter() - began, engine.executor.late
    del engine
    gc.collect()
    if model.device.type == "cuda":
        torch.cuda.empty_cache()
    if state != "finished":
        raise RuntimeError(f"the replay ended as {state}: {replay.failure}")
    return Ran(sink.table("iterations"), replay.totals.last_end_ns / 1e9, wall, replay.totals.iterations, late)


def measured(model: DecoderModel, case: Case) -> list[Figure]:
    """Figures of one case. A decode counts only in iterations that hold the whole batch and no prefill."""
    ran = replayed(model, case)
    way = "graphs" if case.graphs else "eager"
    name = f"{model.shape.name} {case.requests} x {case.prompt}/{case.output}, {way}"
    judged = model.device.type == "cuda"
    late = Figure(f"{name}: compiled in mid-run", ran.late, "kernels", "0 kernels", ran.late == 0 if judged else None, "")
    if case.throughput:
        rate = case.requests * case.output / ran.clock_s
        floor = "" if case.floor is None else f"{case.floor:g} tokens/s"
        return [Figure(name, round(rate, 1), "tokens/s", floor, rate >= case.floor if judged and case.floor else None, ""), late]
    rows = ran.rows
    whole = rows[(rows["prefill_seqs"] == 0) & (rows["decode_seqs"] == case.requests)]
    if judged and case.graphs:
        whole = whole[whole["mode"] >= GRAPH]
    if not len(whole):
        raise RuntimeError("no iteration held the whole batch")
    between, device = (float(np.median(whole[column])) / 1e6 for column in ("duration_ns", "device_ns"))
    floor = "" if case.floor is None else f"{case.floor:.2f} ms"
    reached = between <= case.floor if judged and case.floor else None
    return [
        Figure(f"{name}: between tokens", round(between, 3), "ms", floor, reached, ""),
        Figure(f"{name}: of it on the device", round(device, 3), "ms", "", None, ""),
        late,
    ]


def figures(device: str, tiny: bool) -> Iterator[Figure]:
    """All figures; a case that fails says why, and the next one goes on."""
    for name, cases in (TINY if tiny else FULL).items():
        try:
            model = load_model(EngineOptions(model=name, device=device))
        except Exception as error:  # one part that fails must not stop the others; it is reported
            yield _failed(f"{name}: model", error)
            continue
        for case in cases:
            try:
                yield from measured(model, case)
            except Exception as error:  # likewise
                yield _failed(f"{name} {case.requests} x {case.prompt}/{case.output}", error)
        del model
        gc.collect()


def _failed(name: str, error: Exception) -> Figure:
    words = " ".join(str(error).split())[:200]
    return Figure(name, None, "", "", None, f"{type(error).__name__}: {words}")


def main(words: list[str] | None = None) -> int:
    """The command line; exit code 1 if a figure could not be had."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.engine", description="The engine on a device.")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    parser.add_argument("--tiny", action="store_true", help="a tiny model and short answers: a rehearsal")
    parser.add_argument("--json", type=Path, required=True, help="file for the figures, rewritten after each")
    given = parser.parse_args(words)
    found: list[dict[str, Any]] = []
    for figure in figures(given.device, given.tiny):
        print(figure, flush=True)
        found.append(figure._asdict())
        given.json.write_text(json.dumps({"figures": found}, indent=1) + "\n", encoding="utf-8")
    return 1 if any(one["error"] for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
