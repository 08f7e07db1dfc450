"""One replay through the engine for the clock: process CPU time, the loop alone, rows dropped or spooled to disk."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from replay_engine.config import SchedulerConfig
from replay_engine.loop import Replay
from replay_engine.profile import Latency
from replay_engine.recorder import EventMode
from replay_engine.rules import Rules
from replay_engine.simulator import SimExecutor
from replay_engine.sinks import NullSink
from replay_engine.totals import RunTotals
from replay_engine.types import EventSink, RequestSource
from tracekit.cycles import quiet_gc
from tracekit.store import SpoolSink
from tracekit.store.spool import remove_spool

__all__ = ["Timed", "best", "best_in_turns", "replay_bare", "replay_into", "replay_nowhere", "replay_spooled"]

_VLLM = Rules()


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """What one replay took (process CPU seconds) and did."""

    cpu_s: float
    totals: RunTotals
    spooled_bytes: int = 0

    @property
    def per_second(self) -> float:
        """Iterations per CPU second."""
        return self.totals.iterations / self.cpu_s

    @property
    def mean_batch(self) -> float:
        """Decoding sequences per iteration."""
        return self.totals.decode_tokens / max(self.totals.iterations, 1)


def replay_into(
    sink: EventSink,
    source: RequestSource,
    config: SchedulerConfig,
    latency: Latency,
    rules: Rules = _VLLM,
    block_bytes: int = 1 << 21,
    *,
    mode: EventMode = "full",
) -> Timed:
    """Replay with the rows of ``mode`` going into ``sink``. A replay that does not finish is an error. What the one before left
    is freed first, off the clock: a replay of ``tracekit replay`` is the first of its process."""
    gc.collect()
    with quiet_gc():
        began = time.process_time()
        executor = SimExecutor(latency, asynchronous=config.async_scheduling)
        run = Replay(source, config, executor, sink, mode=mode, rules=rules, kv_block_bytes=block_bytes)
        state = run.run()
        if isinstance(sink, SpoolSink):
            sink.close()
        cpu_s = time.process_time() - began
    if state != "finished" or run.totals.finished != source.total:
        raise RuntimeError(f"the replay ended {state} with {run.totals.finished} of {source.total} requests: no figure")
    return Timed(cpu_s=cpu_s, totals=run.totals)


def replay_bare(source: RequestSource, config: SchedulerConfig, latency: Latency) -> Timed:
    """No rows of requests are made; those of iterations are, for the totals."""
    return replay_into(NullSink(), source, config, latency, mode="none")


def replay_nowhere(
    source: RequestSource, config: SchedulerConfig, latency: Latency, rules: Rules = _VLLM, block_bytes: int = 1 << 21
) -> Timed:
    """Rows are made and dropped."""
    return replay_into(NullSink(), source, config, latency, rules, block_bytes)


def replay_spooled(source: RequestSource, config: SchedulerConfig, latency: Latency) -> Timed:
    """Rows go to a spool on disk, which is removed afterwards (not timed)."""
    with tempfile.TemporaryDirectory(prefix="tracekit-bench-") as folder:
        sink = SpoolSink(Path(folder), {"name": "benchmark"})
        timed = replay_into(sink, source, config, latency)
        written = sum(file.stat().st_size for file in sink.folder.iterdir())
        remove_spool(sink.folder)
    return Timed(cpu_s=timed.cpu_s, totals=timed.totals, spooled_bytes=written)


def best(repeats: int, measure: Callable[[], Timed]) -> Timed:
    """The fastest of ``repeats``; all must have run the same iterations."""
    return best_in_turns(repeats, {"": measure})[""]


def best_in_turns(repeats: int, measures: Mapping[str, Callable[[], Timed]]) -> dict[str, Timed]:
    """The fastest of ``repeats`` of each measure, which take turns; all of one must have run the same iterations."""
    runs: dict[str, list[Timed]] = {name: [] for name in measures}
    for _ in range(max(repeats, 1)):
        for name, measure in measures.items():
            runs[name].append(measure())
    if any(len({run.totals.iterations for run in each}) != 1 for each in runs.values()):
        raise RuntimeError("equal replays ran different iterations: no figure")
    return {name: min(each, key=lambda run: run.cpu_s) for name, each in runs.items()}
