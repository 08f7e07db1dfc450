"""The simulator with a profile calibrated here against the torch engine, on a trace the calibration has not seen, one thread.

``python -m benchmarks.calibration [--json] [--requests N] [--utilisation U] [--quick]``. The clock is the CPU time of the one
thread, for both the calibration and the engine, so that other programs on the machine count for little. The engine replays
the trace twice: what two repeats of the same thing differ by is the yardstick.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.figures import Figure, Report, run_main
from replay_engine.config import SchedulerConfig
from replay_engine.loop import Replay
from replay_engine.profile import Latency
from replay_engine.simulator import SimExecutor
from replay_engine.sinks import MemorySink
from replay_engine.types import RequestBatch

__all__ = ["Ran", "Unseen", "compared", "main", "measure", "simulated"]

PROMPT, OUTPUT, SEATS, BUDGET = 700, 40, 16, 512
Rows = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """``total`` requests arriving as a Poisson process of one in ``gap_ns`` on average; lognormal lengths, cut at the longest."""

    total: int
    gap_ns: float
    seed: int = 20

    def batches(self) -> Iterator[RequestBatch]:
        draw, n = np.random.default_rng(self.seed), self.total
        arrival = np.cumsum(draw.exponential(self.gap_ns, n)).astype(np.int64)
        prompt = np.clip(draw.lognormal(4.3, 1.0, n), 4, PROMPT).astype(np.int64)
        output = np.clip(draw.lognormal(2.6, 0.7, n), 2, OUTPUT).astype(np.int64)
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


def config() -> SchedulerConfig:
    """Both sides schedule alike; asynchronous as vLLM does."""
    return SchedulerConfig(
        max_model_len=PROMPT + OUTPUT, max_num_seqs=SEATS, max_num_batched_tokens=BUDGET, enable_prefix_caching=False,
        num_gpu_blocks=SEATS * (PROMPT + OUTPUT) // 16 + 4,
    )  # fmt: skip


def simulated(latency: Latency, source: Unseen) -> Ran:
    """The trace through the simulator."""
    sink = MemorySink()
    executor = SimExecutor(latency, asynchronous=config().async_scheduling)
    return _ran(Replay(source, config(), executor, sink), sink)


def engine_run(model: Any, options: Any, source: Unseen) -> Ran:
    """The trace through the engine."""
    from replay_engine.rules import Rules
    from replay_engine.torch_engine.engine import Extent, build_engine
    from replay_engine.torch_engine.engine_rows import EngineSink

    extent = Extent(sequence=PROMPT + OUTPUT, output=OUTPUT, requests=source.total)
    engine = build_engine(model, config(), Rules(), extent, options)
    sink = MemorySink()
    replay = Replay(source, config(), engine.executor, EngineSink(sink, engine.executor.notes), pool=engine.pool)
    return _ran(replay, sink)


def _ran(replay: Replay, sink: MemorySink) -> Ran:
    state = replay.run()
    if state != "finished":
        raise RuntimeError(f"the replay ended as {state}")
    outcomes = sink.table("outcomes")
    return Ran(iterations=sink.table("iterations"), outcomes=outcomes[np.argsort(outcomes["request"])])


def predicted(latency: Latency, rows: Rows) -> npt.NDArray[np.float64]:
    """The simulator's durations of the engine's iterations, ns; who joined or left is known only roughly and counts little."""
    executor = SimExecutor(latency, asynchronous=config().async_scheduling)
    names = ("prefill_tokens", "prefill_qk", "decode_seqs", "decode_kv_tokens", "running", "admitted", "finished")
    columns = [rows[name].tolist() for name in names]
    return np.array([executor.predict(*row[:5], row[5] + row[6])[0] for row in zip(*columns, strict=True)], np.float64)


def compared(one: Ran, other: Ran) -> dict[str, float]:
    """Differences of P50 and P90 of TTFT and TPOT, as shares of ``other``'s."""
    found = {}
    for name in ("ttft_ns", "tpot_ns"):
        for point in (50, 90):
            values = [np.percentile(ran.outcomes[name][ran.outcomes["output_tokens"] > 1], point) for ran in (one, other)]
            found[f"{name[:4]}_p{point}"] = abs(float(values[0] / values[1]) - 1)
    return found


def _same_shapes(one: Ran, other: Ran) -> float:
    """What the engine's two repeats differ by in iterations of about the same shape: the median, over bands of shapes, of the
    difference of the median durations."""
    from replay_engine.calibration.samples import samples_of_rows

    columns = [samples_of_rows({n: ran.iterations[n] for n in ran.iterations.dtype.names if n != "mode"}) for ran in (one, other)]
    shapes = set(columns[0].shape.tolist()) & set(columns[1].shape.tolist())
    medians = [[float(np.median(each.device_ns[each.shape == shape])) for each in columns] for shape in sorted(shapes)]
    return float(np.median([abs(a / b - 1) for a, b in medians]))


def measure(given: argparse.Namespace) -> Report:
    os.environ["OMP_NUM_THREADS"] = "1"
    if not given.wall:
        time.perf_counter_ns = time.thread_time_ns  # before the engine's modules are loaded: its clock
    import torch

    from replay_engine.torch_engine.calibrate import calibrate_model, plan_for
    from replay_engine.torch_engine.engine import EngineOptions, load_model

    torch.set_num_threads(1)
    options = EngineOptions(model="tiny", device="cpu")
    model = load_model(options)
    plan = plan_for(model)
    if given.quick:
        from dataclasses import replace

        plan = replace(plan, cases=plan.cases[::6], repeats=2, prompt=200, output=8, groups=(1, 4, 8))
    calibrated = calibrate_model(model, options, plan)
    latency = calibrated.profile.latency
    source = settled(latency, given.requests, given.utilisation)
    runs = [engine_run(model, options, source) for _ in range(2)]
    return _report(latency, source, runs, calibrated.found.held)


def settled(latency: Latency, requests: int, utilisation: float) -> Unseen:
    """The trace at the rate that keeps the simulator busy for ``utilisation`` of the time."""
    gap = 1e7
    for _ in range(12):
        busy = simulated(latency, Unseen(total=requests, gap_ns=gap)).utilisation
        gap *= (busy / utilisation) ** 0.7
    return Unseen(total=requests, gap_ns=gap)


def _report(latency: Latency, source: Unseen, runs: list[Ran], held: Any) -> Report:
    sim, first = simulated(latency, source), runs[0]
    spread, error = compared(runs[1], first), compared(sim, first)
    rows = first.iterations
    off = float(np.median(np.abs(predicted(latency, rows) / rows["duration_ns"] - 1)))
    own = _same_shapes(runs[1], first)
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
    clock = "CPU time of the one thread" if time.perf_counter_ns is time.thread_time_ns else "wall time"
    notes = [f"tiny, float32, one thread; {clock}; the trace's rate is set by the simulator"]
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
