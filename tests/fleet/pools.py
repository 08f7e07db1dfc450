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
from replay_engine.types import RequestSource
from tests.fleet.fleets import FleetSink

__all__ = ["BLOCK_BYTES", "Pools", "play"]

BLOCK_BYTES = 4096


class Pools:
    """One replay: the driver, a sink an engine, and how it ended."""

    def __init__(
        self, source: RequestSource, engines: dict[str, SchedulerConfig], rules: Rules, latency: Latency,
        kind: type[PdReplay] = PdReplay, **more: Any,
    ) -> None:  # fmt: skip
        self.sink = FleetSink()
        self.rules = rules
        configs = [engines["prefill"]] * rules.pd.prefill + [engines["decode"]] * rules.pd.decode
        executors = [SimExecutor(latency, asynchronous=config.async_scheduling) for config in configs]
        self.replay = kind(source, engines, executors, self.sink, rules=rules, kv_block_bytes=BLOCK_BYTES, **more)
        self.how = self.replay.run()

    def table(self, name: str) -> npt.NDArray[np.void]:
        return self.sink.table(name)

    @property
    def outcomes(self) -> npt.NDArray[np.void]:
        """In the order of the requests."""
        table = self.table("outcomes")
        return table[np.argsort(table["request"], kind="stable")]

    def spans(self, request: int) -> list[tuple[int, int, int, int]]:
        """``(start, end, phase, engine)`` of one request, in order of time."""
        table = self.sink.table("spans")
        own = table[table["request"] == request]
        return sorted((int(s["start_ns"]), int(s["end_ns"]), int(s["phase"]), int(s["replica"])) for s in own)


def play(
    source: RequestSource, engines: dict[str, SchedulerConfig], rules: Rules, latency: Latency, **more: Any
) -> Pools:  # fmt: skip
    return Pools(source, engines, rules, latency, **more)
