"""The lean walk as the in-run reference: the same requests, limits and latency form, and the check that both sides agree."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.lean_walk import lean_replay
from replay_engine.config import SchedulerConfig
from replay_engine.loop import Replay
from replay_engine.profile import Latency
from replay_engine.simulator import SimExecutor
from replay_engine.sinks import MemorySink
from replay_engine.types import RequestSource
from tracekit.cycles import quiet_gc

__all__ = ["LeanRun", "check_equal", "lean_latency", "run_lean"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeanRun:
    """CPU seconds and iterations of the lean walk, and each request's first and last token (ns)."""

    cpu_s: float
    iterations: int
    first_ns: list[int]
    end_ns: list[int]

    @property
    def per_second(self) -> float:
        """Iterations per CPU second."""
        return self.iterations / self.cpu_s


class lean_latency:  # noqa: N801 - it is called like a function
    """The synchronous latency form as the lean walk calls it: device plus host, each rounded to ns."""

    __slots__ = ("_a", "_b", "_c", "_d", "_e", "_floor", "_host")

    def __init__(self, latency: Latency) -> None:
        if latency.h1_ns or latency.h2_ns:
            raise ValueError("the lean walk keeps no count of who joined: expected a profile with h1 = h2 = 0")
        self._floor, self._a, self._b, self._c = latency.floor_ns, latency.a_ns, latency.b_ns, latency.c_ns
        self._d, self._e, self._host = latency.d_ns, latency.e_ns, round(latency.h0_ns)

    def __call__(self, prefill: int, qk: int, decodes: int, decode_kv: int) -> int:
        base = self._a + self._b * prefill
        if base < self._floor:
            base = self._floor
        if prefill:
            return self._host + round(base + self._c * qk + self._d * decodes + self._e * decode_kv)
        return self._host + round(base + self._d * decodes + self._e * decode_kv)


def run_lean(arrival_ns: Ints, prompt: Ints, output: Ints, config: SchedulerConfig, latency: Latency) -> LeanRun:
    """The lean walk over the requests, timed. ``config`` must be what it can do: caching off, synchronous."""
    if config.enable_prefix_caching or config.async_scheduling or config.policy != "fcfs":
        raise ValueError("the lean walk has no prefix cache, no asynchronous scheduling and one order")
    arrivals, prompts, outputs = arrival_ns.tolist(), prompt.tolist(), output.tolist()
    with quiet_gc():
        began = time.process_time()
        first, end, iterations = lean_replay(
            arrivals, prompts, outputs, budget=config.token_budget, max_seqs=config.seat_limit, blocks=config.usable_blocks,
            block_size=config.block_size, latency=lean_latency(latency),
        )  # fmt: skip
        cpu_s = time.process_time() - began
    return LeanRun(cpu_s=cpu_s, iterations=iterations, first_ns=first, end_ns=end)


def check_equal(lean: LeanRun, source: RequestSource, config: SchedulerConfig, latency: Latency) -> None:
    """The engine's first-token and end times and its iterations must be the lean walk's, to the nanosecond."""
    sink = MemorySink()
    run = Replay(source, config, SimExecutor(latency, asynchronous=False), sink, mode="outcomes")
    run.run()
    rows = np.sort(sink.table("outcomes"), order="request")
    first, end = rows["arrival_ns"] + rows["ttft_ns"], rows["last_token_ns"]
    if len(rows) != len(lean.first_ns) or run.totals.iterations != lean.iterations:
        raise RuntimeError(f"{run.totals.iterations} iterations against the lean walk's {lean.iterations}: no comparison")
    wrong = np.flatnonzero((first != np.array(lean.first_ns)) | (end != np.array(lean.end_ns)))
    if len(wrong):
        at = int(wrong[0])
        raise RuntimeError(
            f"request {at}: first token {first[at]} and end {end[at]} ns, the lean walk says {lean.first_ns[at]} and"
            f" {lean.end_ns[at]}: no comparison"
        )
