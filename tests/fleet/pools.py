"""Whole replays through prefill and decode pools, with the tables of every engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from replay_engine.config import SchedulerConfig
from replay_engine.fleet.pd_driver import PdReplay
from replay_engine.profile import Latency
from replay_engine.rules import Rules
from replay_engine.simulator import SimExecutor
from replay_engine.sinks import MemorySink
from replay_engine.types import RequestSource

__all__ = ["BLOCK_BYTES", "Pools", "play"]

BLOCK_BYTES = 4096


class Pools:
    """One replay: the driver, a sink an engine, and how it ended."""

    def __init__(
        self, source: RequestSource, engines: dict[str, SchedulerConfig], rules: Rules, latency: Latency,
        kind: type[PdReplay] = PdReplay, **more: Any,
    ) -> None:  # fmt: skip
        n = rules.pd.prefill + rules.pd.decode
        self.sinks = [MemorySink() for _ in range(n)]
        self.rules = rules

        def executor(config: SchedulerConfig) -> SimExecutor:
            return SimExecutor(latency, asynchronous=config.async_scheduling)

        self.replay = kind(source, engines, executor, self.sinks.__getitem__, rules=rules, kv_block_bytes=BLOCK_BYTES, **more)
        self.how = self.replay.run()

    def table(self, name: str) -> npt.NDArray[np.void]:
        return np.concatenate([sink.table(name) for sink in self.sinks])

    @property
    def outcomes(self) -> npt.NDArray[np.void]:
        """In the order of the requests."""
        table = self.table("outcomes")
        return table[np.argsort(table["request"], kind="stable")]

    def spans(self, request: int) -> list[tuple[int, int, int, int]]:
        """``(start, end, phase, engine)`` of one request, in order of time."""
        found = []
        for engine, sink in enumerate(self.sinks):
            table = sink.table("spans")
            own = table[table["request"] == request]
            found += [(int(s["start_ns"]), int(s["end_ns"]), int(s["phase"]), engine) for s in own]
        return sorted(found)


def play(
    source: RequestSource, engines: dict[str, SchedulerConfig], rules: Rules, latency: Latency, **more: Any
) -> Pools:  # fmt: skip
    return Pools(source, engines, rules, latency, **more)
