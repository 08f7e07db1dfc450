"""The torch engine on this CPU, one thread: decoding against transformers, host cost of an iteration, cost of the event log.

``python -m benchmarks.engine [--json] [--repeats N] [--quick]``. CPU time of the one thread, so that other programs on the
machine count for little. What is compared is measured in turns, in one process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: two threads on a busy machine wait for each other

import numpy as np

from benchmarks.figures import Figure, Report, reference_figure, run_main
from replay_engine.config import SchedulerConfig
from replay_engine.loop import Replay
from replay_engine.recorder import EventMode
from replay_engine.rules import Rules
from replay_engine.sinks import NullSink
from replay_engine.types import RequestBatch

__all__ = ["AtOnce", "Cost", "main", "measure", "replay_cost", "transformers_seconds"]

BATCH, PROMPT = 8, 64
HOST_BATCH, HOST_PROMPT = 64, 16
HOST_TARGET_US, LOG_TARGET_US = 150.0, 10.0
SWEPT_BYTES = 40 << 20


@dataclass(frozen=True, slots=True)
class AtOnce:
    """``total`` requests of ``prompt`` and ``output`` tokens that arrive together: one batch that decodes to its end."""

    total: int
    prompt: int
    output: int

    def batches(self) -> Iterator[RequestBatch]:
        n = self.total
        same = {name: np.full(n, value, np.int64) for name, value in (("prompt", self.prompt), ("output", self.output))}
        yield RequestBatch(
            index=np.arange(n), arrival_ns=np.zeros(n, np.int64), prompt_tokens=same["prompt"], output_tokens=same["output"],
            priority=np.zeros(n, np.int64), max_tokens=np.full(n, -1, np.int64),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One replay: CPU seconds of the loop, of them on the device's work and on handing rows to the sink for whoever follows the
    run, how often that was, and iterations."""

    cpu_s: float
    device_s: float
    flush_s: float
    flushes: int
    iterations: int

    @property
    def host_us(self) -> float:
        """Everything but the forward pass, per iteration: scheduling, packing, reading tokens, update, log. Without what is done
        a few times a second by the wall clock, however many iterations that is: on a machine that is shared, for each one."""
        return (self.cpu_s - self.device_s - self.flush_s) / self.iterations * 1e6

    @property
    def flush_us(self) -> float:
        """Each time."""
        return self.flush_s / max(self.flushes, 1) * 1e6


def replay_cost(
    model: Any, source: AtOnce, *, events: EventMode = "full", forward: bool = True, instead: Callable[[], Any] | None = None
) -> Cost:
    """Replay ``source`` on ``model``. Without ``forward`` the same tokens come at once, and the host's work is left; ``instead``
    is done in its place."""
    import torch

    from replay_engine.torch_engine.engine import EngineOptions, Extent, build_engine
    from replay_engine.torch_engine.engine_rows import EngineSink

    length = source.prompt + source.output
    config = SchedulerConfig(
        max_model_len=length, max_num_seqs=source.total, max_num_batched_tokens=source.total * source.prompt,
        num_gpu_blocks=source.total * (length // 16 + 2) + 2, enable_prefix_caching=False,
    )  # fmt: skip
    extent = Extent(sequence=length, output=source.output, requests=source.total)
    engine = build_engine(model, config, Rules(), extent, EngineOptions(poison=False))
    executor = engine.executor
    if not forward:
        tokens = torch.zeros(source.total, dtype=torch.int64)

        def constant(packed: Any, layout: Any, blocks: int = 0) -> Any:
            if instead is not None:
                instead()
            return tokens if isinstance(layout, int) else tokens[: layout.samples]

        # The forward pass is left out by putting a constant in its place: what is left is the host's work.
        executor._pass.decode = executor._pass.mixed = constant  # type: ignore[method-assign]
    # Timed around, not copied: the engine itself has no hook that only a benchmark would use.
    compute = executor._compute = _Timed(executor._compute)  # type: ignore[method-assign]
    replay = Replay(source, config, executor, EngineSink(NullSink(), executor.notes), pool=engine.pool, mode=events)
    flush = executor._flush = _Timed(executor._flush)
    began = time.thread_time_ns()
    state = replay.run()
    cpu = time.thread_time_ns() - began
    if state != "finished":
        raise RuntimeError(f"the replay ended as {state}")
    return Cost(
        cpu_s=cpu / 1e9, device_s=compute.ns / 1e9, flush_s=flush.ns / 1e9, flushes=flush.calls,
        iterations=replay.totals.iterations,
    )  # fmt: skip


class _Timed:
    """A function, the CPU time spent in it and how often it was called."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.ns = self.calls = 0

    def __call__(self, *given: Any) -> Any:
        began = time.thread_time_ns()
        found = self._function(*given)
        self.ns += time.thread_time_ns() - began
        self.calls += 1
        return found


def transformers_seconds(shape: Any) -> Callable[[int], float]:
    """``generate`` of transformers for the same batch on a model of the same shape: CPU seconds by output tokens."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=shape.vocab, hidden_size=shape.hidden, intermediate_size=shape.intermediate, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, head_dim=shape.head_dim,
        max_position_embeddings=4096,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).eval()
    ids = torch.randint(1, shape.vocab, (BATCH, PROMPT))
    mask = torch.ones_like(ids)

    def seconds(output: int) -> float:
        began = time.thread_time_ns()
        with torch.inference_mode():
            model.generate(ids, attention_mask=mask, max_new_tokens=output, do_sample=False, eos_token_id=None, pad_token_id=0)
        return (time.thread_time_ns() - began) / 1e9

    return seconds


def decoding(model: Any, repeats: int, output: int) -> dict[str, Figure]:
    """Decode iterations per second, ours and theirs: the time of ``output`` tokens less that of one."""
    ours, theirs = [], []
    generate = transformers_seconds(model.shape) if find_spec("transformers") is not None else None
    for _ in range(repeats):
        whole, first = (replay_cost(model, AtOnce(BATCH, PROMPT, n)).cpu_s for n in (output, 1))
        ours.append((output - 1) / (whole - first))
        if generate is not None:
            theirs.append((output - 1) / (generate(output) - generate(1)))
    figures = {"decode_per_s": Figure(value=max(ours), unit="it/s", reference=f"tiny, batch {BATCH}, {output} tokens")}
    if not theirs:
        figures["decode_ratio"] = Figure(value=None, unit="x", target=1.0, note="transformers is not installed")
        return figures
    figures["transformers_per_s"] = Figure(value=max(theirs), unit="it/s", reference="generate, same shape and batch")
    figures["decode_ratio"] = Figure(
        value=max(ours) / max(theirs), unit="x", target=1.0, reference="engine with schedule and event log over transformers"
    )
    return figures


def host(model: Any, repeats: int, output: int) -> dict[str, Figure]:
    """Host cost of an iteration, and what of it is the event log."""
    source = AtOnce(HOST_BATCH, HOST_PROMPT, output)
    runs = [replay_cost(model, source) for _ in range(repeats)]
    cold = min(run.host_us for run in runs)
    memory = np.ones(SWEPT_BYTES // 8)
    swept = replay_cost(model, source, forward=False, instead=memory.sum).host_us
    full, none = [], []
    for _ in range(2 * repeats + 1):
        full.append(replay_cost(model, source, forward=False).host_us)
        none.append(replay_cost(model, source, events="none", forward=False).host_us)
    log = statistics.median(a - b for a, b in zip(full, none, strict=True))
    return {
        "host_us": Figure(
            value=cold, unit="us", target=HOST_TARGET_US, at_most=True,
            reference=f"schedule, packing, results, update, log; batch {HOST_BATCH}", note="the pass has emptied the caches",
        ),
        "host_swept_us": Figure(
            value=swept, unit="us", reference=f"the same with {SWEPT_BYTES >> 20} MB of memory read in place of the pass"
        ),
        "flush_us": Figure(
            value=statistics.median(run.flush_us for run in runs), unit="us",
            reference="rows handed on for whoever follows the run, a few times a second; part of no iteration",
        ),
        "host_warm_us": Figure(value=min(full), unit="us", reference="the same with the forward pass left out, as beside a GPU"),
        "event_log_us": Figure(
            value=log, unit="us", target=LOG_TARGET_US, at_most=True, reference="full event log against none, in turns; median"
        ),
    }  # fmt: skip


def measure(given: argparse.Namespace) -> Report:
    import torch

    from replay_engine.torch_engine.engine import EngineOptions, load_model

    torch.set_num_threads(1)
    model = load_model(EngineOptions(model="tiny", device="cpu"))
    figures = {"python_reference": reference_figure()}
    figures |= decoding(model, given.repeats, 24 if given.quick else 129)
    figures |= host(model, given.repeats, 40 if given.quick else 400)
    return Report(benchmark="engine", figures=figures, notes=["CPU time of one thread, float32; the best of the runs"])


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=3, help="runs of each (default 3)")
    parser.add_argument("--quick", action="store_true", help="short outputs")


def main(argv: list[str] | None = None) -> None:
    run_main("engine", "The torch engine on this CPU.", measure, argv, _options)


if __name__ == "__main__":
    main()
