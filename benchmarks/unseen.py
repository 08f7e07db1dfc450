"""An unseen trace through the simulator and through the torch engine, and what the two differ by."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.turns import engine_clock, least, together
from replay_engine.config import SchedulerConfig
from replay_engine.loop import Replay
from replay_engine.profile import Latency
from replay_engine.simulator import SimExecutor, SkewedExecutor
from replay_engine.sinks import MemorySink
from replay_engine.types import RequestBatch

__all__ = [
    "CPU",
    "GPU",
    "Ran",
    "Scale",
    "Unseen",
    "calibrated_here",
    "clock",
    "compared",
    "config_of",
    "engine_run",
    "engine_runs",
    "predicted",
    "same_shapes",
    "settled",
    "simulated",
]

Rows = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large a trace is: the longest ``prompt`` and ``output``, tokens, means of the logarithms of both (``logs``), and the
    scheduler's ``seats`` and token ``budget``."""

    prompt: int
    output: int
    logs: tuple[float, float]
    seats: int
    budget: int


CPU = Scale(prompt=700, output=40, logs=(4.3, 2.6), seats=16, budget=512)
"""For a tiny model on one core."""
GPU = Scale(prompt=8000, output=400, logs=(6.5, 4.6), seats=256, budget=8192)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """``total`` requests arriving as a Poisson process of one in ``gap_ns`` on average; lognormal lengths, cut at the longest."""

    total: int
    gap_ns: float
    seed: int = 20
    scale: Scale = CPU

    def batches(self) -> Iterator[RequestBatch]:
        draw, n, scale = np.random.default_rng(self.seed), self.total, self.scale
        arrival = np.cumsum(draw.exponential(self.gap_ns, n)).astype(np.int64)
        prompt = np.clip(draw.lognormal(scale.logs[0], 1.0, n), 4, scale.prompt).astype(np.int64)
        output = np.clip(draw.lognormal(scale.logs[1], 0.7, n), 2, scale.output).astype(np.int64)
        yield RequestBatch(
            index=np.arange(n), arrival_ns=arrival, prompt_tokens=prompt, output_tokens=output, priority=np.zeros(n, np.int64),
            max_tokens=np.full(n, -1, np.int64),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One replay: its rows, and how long iterations took of the time from first to last."""

    iterations: Rows
    outcomes: Rows

    @property
    def utilisation(self) -> float:
        rows = self.iterations
        span = int(rows["start_ns"][-1] + rows["duration_ns"][-1] - rows["start_ns"][0])
        return float(rows["duration_ns"].sum() / span)


def config_of(scale: Scale) -> SchedulerConfig:
    """Both sides schedule alike; asynchronous as vLLM does."""
    longest = scale.prompt + scale.output
    return SchedulerConfig(
        max_model_len=longest, max_num_seqs=scale.seats, max_num_batched_tokens=scale.budget, enable_prefix_caching=False,
        num_gpu_blocks=max(scale.seats // 4, 16) * longest // 16 + 4,
    )  # fmt: skip


def calibrated_here(*, quick: bool, wall: bool) -> tuple[Any, Any, Any]:
    """The model, the engine's options and the calibration of the tiny model on one thread of this CPU, whose CPU time is the
    clock unless ``wall``. ``quick``: few batches and a short replay. To be called before anything loads torch."""
    os.environ["OMP_NUM_THREADS"] = "1"
    if not wall:
        time.perf_counter_ns = engine_clock  # before the engine's modules are loaded: its clock
    import torch

    from replay_engine.torch_engine.calibrate import calibrate_model, plan_for
    from replay_engine.torch_engine.engine import EngineOptions, load_model

    torch.set_num_threads(1)
    options = EngineOptions(model="tiny", device="cpu")
    model = load_model(options)
    plan = plan_for(model)
    if quick:
        plan = replace(plan, cases=plan.cases[::6], repeats=2, prompt=200, output=8, groups=(1, 4, 8))
    return model, options, calibrate_model(model, options, plan)


def clock() -> str:
    """What the engine's clock counts, in words."""
    return "CPU time of the one thread" if time.perf_counter_ns is engine_clock else "wall time"


def simulated(latency: Latency, source: Unseen, config: SchedulerConfig | None = None) -> Ran:
    """The trace through the simulator, under other settings than its scale's where ``config`` is given."""
    sink, config = MemorySink(), config or config_of(source.scale)
    executor = SimExecutor(latency, asynchronous=config.async_scheduling)
    return _ran(Replay(source, config, executor, sink), sink)


def engine_run(model: Any, options: Any, source: Unseen, config: SchedulerConfig | None = None) -> Ran:
    """The trace through the engine, likewise."""
    return _ran(*_engine(model, options, source, config)[:2])


def engine_runs(model: Any, options: Any, source: Unseen, configs: Sequence[SchedulerConfig], repeats: int) -> list[Ran]:
    """The trace through one engine for each of ``configs``, which take turns; a forward pass counts by the fastest of ``repeats``
    (``benchmarks/turns.py``)."""

    def job(config: SchedulerConfig) -> Callable[[Callable[[], None]], Ran]:
        replay, sink, run = _engine(model, options, source, config)

        def went(pass_on: Callable[[], None]) -> Ran:
            for name in ("decode", "mixed"):
                setattr(run, name, least(getattr(run, name), repeats, pass_on))
            return _ran(replay, sink)

        return went

    return together([job(each) for each in configs])


def _engine(model: Any, options: Any, source: Unseen, config: SchedulerConfig | None) -> tuple[Replay, MemorySink, Any]:
    """A replay that has not begun, where its rows go, and the pass that its engine computes with."""
    from replay_engine.rules import Rules
    from replay_engine.torch_engine.engine import Extent, build_engine
    from replay_engine.torch_engine.engine_rows import EngineSink

    scale = source.scale
    config = config or config_of(scale)
    extent = Extent(sequence=scale.prompt + scale.output, output=scale.output, requests=source.total)
    engine = build_engine(model, config, Rules(), extent, options)
    sink = MemorySink()
    return Replay(source, config, engine.executor, EngineSink(sink, engine.executor.notes), pool=engine.pool), sink, engine.run


def _ran(replay: Replay, sink: MemorySink) -> Ran:
    state = replay.run()
    if state != "finished":
        raise RuntimeError(f"the replay ended as {state}")
    outcomes = sink.table("outcomes")
    return Ran(iterations=sink.table("iterations"), outcomes=outcomes[np.argsort(outcomes["request"])])


def predicted(latency: Latency, rows: Rows) -> npt.NDArray[np.float64]:
    """The simulator's durations of the engine's iterations, ns; who joined or left is known only roughly and counts little."""
    executor = SimExecutor(latency, asynchronous=SchedulerConfig().async_scheduling)
    names = ["prefill_tokens", "prefill_qk", "decode_seqs", "decode_kv_tokens", "running", "admitted", "finished"]
    skewed = isinstance(executor, SkewedExecutor)
    columns = [rows[name].tolist() for name in names + ["decode_longest_tokens"] * skewed]
    times = [executor.predict(*row[:5], row[5] + row[6], *row[7:])[0] for row in zip(*columns, strict=True)]
    return np.array(times, np.float64)


def compared(one: Ran, other: Ran) -> dict[str, float]:
    """Differences of P50 and P90 of TTFT and TPOT, as shares of ``other``'s."""
    found = {}
    for name in ("ttft_ns", "tpot_ns"):
        for point in (50, 90):
            values = [np.percentile(ran.outcomes[name][ran.outcomes["output_tokens"] > 1], point) for ran in (one, other)]
            found[f"{name[:4]}_p{point}"] = abs(float(values[0] / values[1]) - 1)
    return found


def same_shapes(one: Ran, other: Ran) -> float:
    """What the engine's two repeats differ by in iterations of about the same shape: the median, over bands of shapes, of the
    difference of the median durations."""
    from replay_engine.calibration.samples import samples_of_rows

    columns = [samples_of_rows({n: ran.iterations[n] for n in ran.iterations.dtype.names if n != "mode"}) for ran in (one, other)]
    shapes = set(columns[0].shape.tolist()) & set(columns[1].shape.tolist())
    medians = [[float(np.median(each.device_ns[each.shape == shape])) for each in columns] for shape in sorted(shapes)]
    return float(np.median([abs(a / b - 1) for a, b in medians]))


def settled(latency: Latency, requests: int, utilisation: float, scale: Scale = CPU) -> Unseen:
    """The trace at the rate that keeps the simulator busy for ``utilisation`` of the time."""
    gap = 1e7
    for _ in range(12):
        busy = simulated(latency, Unseen(total=requests, gap_ns=gap, scale=scale)).utilisation
        gap *= (busy / utilisation) ** 0.7
    return Unseen(total=requests, gap_ns=gap, scale=scale)
