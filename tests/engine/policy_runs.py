"""Whole replays under given rules, for tests that look at who was served when: the tables, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from replay_engine.combinations import check
from replay_engine.config import SchedulerConfig
from replay_engine.loop import Replay
from replay_engine.profile import Latency
from replay_engine.rules import Rules
from replay_engine.simulator import SimExecutor
from replay_engine.sinks import MemorySink
from replay_engine.types import Phase
from tests.engine.traffic import Row, RowSource

__all__ = ["MILLISECOND", "Told", "knobs", "tell"]

Ints = npt.NDArray[np.int64]
MILLISECOND = 1_000_000
FLAT = Latency(floor_ns=1.0 * MILLISECOND)
"""Every iteration takes a millisecond."""
WAITING = (Phase.queued, Phase.preempted, Phase.swapped, Phase.paused)


def knobs(**change: Any) -> SchedulerConfig:
    """Small synchronous engines without a prefix cache: blocks of 4 tokens, prompts and outputs of 400 at most."""
    plain: dict[str, Any] = {
        "max_num_batched_tokens": 64, "max_num_seqs": 4, "max_model_len": 400, "block_size": 4, "num_gpu_blocks": 1001,
        "enable_prefix_caching": False, "async_scheduling": False,
    }  # fmt: skip
    return SchedulerConfig(**(plain | change))


@dataclass(frozen=True)
class Told:
    """One replay's tables, by request or by iteration."""

    rows: list[Row]
    replay: Replay
    sink: MemorySink
    how: str

    @property
    def outcomes(self) -> npt.NDArray[np.void]:
        """In the order of the requests."""
        table = self.sink.table("outcomes")
        return table[np.argsort(table["request"])]

    @property
    def iterations(self) -> npt.NDArray[np.void]:
        return self.sink.table("iterations")

    @property
    def entries(self) -> npt.NDArray[np.void]:
        return self.sink.table("prefill_entries")

    def spans(self, request: int | None = None, phase: Phase | None = None) -> npt.NDArray[np.void]:
        """Spans in time order, of one request, of one phase."""
        table = self.sink.table("spans")
        if request is not None:
            table = table[table["request"] == request]
        if phase is not None:
            table = table[table["phase"] == phase]
        return table[np.argsort(table["start_ns"], kind="stable")]

    def phases(self, request: int) -> list[str]:
        """What a request did, in order; spans of no length are left out."""
        spans = self.spans(request)
        return [Phase(int(span["phase"])).name for span in spans if span["end_ns"] > span["start_ns"]]

    def admitted_at(self) -> Ints:
        """By request: the iteration of its first admission."""
        first = np.full(len(self.rows), -1)
        for span in self.spans(phase=Phase.queued):
            first[span["request"]] = span["end_iteration"] + 1
        return first

    def admission_order(self) -> list[int]:
        """Requests as they were first admitted; within an iteration as their prefill entries stand."""
        seen: dict[int, None] = {}
        for entry in self.entries:
            seen.setdefault(int(entry["request"]))
        return list(seen)

    def service(self, prompt_weight: float, output_weight: float) -> dict[int, npt.NDArray[np.float64]]:
        """By tenant: weighted tokens served in each iteration. A prompt counts when it is admitted, as the counter has it."""
        length = int(self.iterations["iteration"].max()) + 2
        served = {row.tenant: np.zeros(length) for row in self.rows}
        for request, at in enumerate(self.admitted_at()):
            if at >= 0:
                served[self.rows[request].tenant][at] += prompt_weight * self.rows[request].prompt
        for request in range(len(self.rows)):
            own = self.spans(request)
            mine = served[self.rows[request].tenant]
            for i, span in enumerate(own):
                if span["phase"] == Phase.decode:
                    mine[span["start_iteration"] : span["end_iteration"] + 1] += output_weight
                elif span["phase"] == Phase.prefill and (i + 1 == len(own) or own[i + 1]["phase"] == Phase.decode):
                    mine[span["end_iteration"]] += output_weight
        return served

    def backlogged(self) -> dict[int, npt.NDArray[np.bool_]]:
        """By tenant: iterations after whose decision somebody of it still waited."""
        start = self.iterations["start_ns"]
        numbers = self.iterations["iteration"]
        lag = int(self.replay.config.async_scheduling)
        waits = {row.tenant: np.zeros(int(numbers.max()) + 2, bool) for row in self.rows}
        for span in self.spans():
            if Phase(int(span["phase"])) not in WAITING:
                continue
            begin = int(span["start_iteration"])
            if begin < 0:  # seen by the first plan made after the arrival: under asynchronous scheduling one later
                begin = int(numbers[min(np.searchsorted(start, span["start_ns"]) + lag, len(numbers) - 1)])
            waits[self.rows[span["request"]].tenant][begin : span["end_iteration"] + 1] = True
        return waits


def tell(
    rows: list[Row], config: SchedulerConfig, rules: Rules | None = None, latency: Latency = FLAT, block_bytes: int = 4096
) -> Told:
    """Replay ``rows`` under ``rules`` (vLLM's without). Combinations that are refused are refused here too."""
    rules = Rules() if rules is None else rules
    check(config, rules)
    sink = MemorySink()
    executor = SimExecutor(latency, asynchronous=config.async_scheduling)
    replay = Replay(RowSource(rows), config, executor, sink, rules=rules, kv_block_bytes=block_bytes)
    return Told(rows, replay, sink, replay.run())
