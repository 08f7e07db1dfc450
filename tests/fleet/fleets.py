"""Whole fleet replays in memory, and the replays of their parts."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from replay_engine.arrivals import NEVER, Calendar, Inbox
from replay_engine.config import SchedulerConfig
from replay_engine.fleet.driver import FleetReplay
from replay_engine.fleet.faults import Fault
from replay_engine.fleet.routers import make_router
from replay_engine.front_door import DoorFacts
from replay_engine.profile import Latency
from replay_engine.recorder import EventMode
from replay_engine.replica import Replica
from replay_engine.rules import Client, Rules
from replay_engine.simulator import SimExecutor
from replay_engine.tables import TABLES, with_replica
from replay_engine.types import Request, RequestSource
from tests.engine.test_front_door import NAMES
from tests.engine.test_sessions import Turn

__all__ = ["ROUTERS", "FleetSink", "Fleeted", "alone", "fleet", "turns"]

_VLLM = Rules()
ROUTERS = ("round_robin", "least_tokens", "power_of_two", "prefix_affinity", "weighted(3,1,2)")
turns = st.lists(
    st.builds(
        Turn, gap=st.sampled_from([0, 900, 40_000]), prompt=st.integers(1, 90), output=st.integers(1, 30),
        after=st.integers(0, 3), think=st.sampled_from([0, 500, 30_000]), cancel=st.sampled_from([-1, -1, -1, 9_000]),
    ),
    min_size=1, max_size=30,
)  # fmt: skip


class FleetSink:
    """Rows with their replica, in memory."""

    def __init__(self) -> None:
        self._chunks: dict[str, list[npt.NDArray[np.void]]] = {}

    def append(self, table: str, rows: npt.NDArray[np.void]) -> None:
        self._chunks.setdefault(table, []).append(rows.copy())

    def table(self, name: str, replica: int | None = None) -> npt.NDArray[np.void]:
        chunks = self._chunks.get(name)
        rows = np.concatenate(chunks) if chunks else np.empty(0, with_replica(TABLES[name]))
        return rows if replica is None else rows[rows["replica"] == replica]

    def bare(self, name: str, replica: int) -> bytes:
        """A replica's rows as it wrote them: all of their columns but the replica."""
        rows = self.table(name, replica)
        own = [column for column in rows.dtype.names or () if column != "replica"]
        plain = np.empty(len(rows), [(column, rows.dtype[column]) for column in own])
        for column in own:
            plain[column] = rows[column]
        return plain.tobytes()


@dataclass
class Fleeted:
    """One fleet replay: what ran, its rows, and how it ended."""

    run: FleetReplay
    sink: FleetSink
    how: str

    def by_request(self, table: str) -> dict[int, list[Any]]:
        """Rows of a table by request, in time order."""
        rows = self.sink.table(table)
        found: dict[int, list[Any]] = {}
        # a wait for the client's slot may have no length at all, and then starts with the span after it
        order = np.lexsort((rows["end_ns"], rows["start_ns"])) if table == "spans" else np.arange(len(rows))
        for row in rows[order]:
            found.setdefault(int(row["request"]), []).append(row)
        return found


def fleet(
    source: RequestSource, config: SchedulerConfig, latency: Latency, router: str, replicas: int, *, rules: Rules = _VLLM,
    faults: SequenceOf[Fault] = (), coast: bool = True, mode: EventMode = "full", seed: int = 7,
) -> Fleeted:  # fmt: skip
    """Replay ``source`` through ``replicas`` engines of one kind."""
    sink = FleetSink()
    executors = [SimExecutor(latency, asynchronous=config.async_scheduling) for _ in range(replicas)]
    run = FleetReplay(
        source, config, executors, make_router(router, replicas, seed=seed, blocks=config.usable_blocks), sink, faults=faults,
        rules=rules, mode=mode, coast=coast, facts=DoorFacts(latency=latency, ttft_slo_ns=20_000, tenants=NAMES),
        kv_block_bytes=4096,
    )  # fmt: skip
    return Fleeted(run, sink, run.run())


def alone(
    requests: SequenceOf[tuple[int, Request]], config: SchedulerConfig, latency: Latency, *, rules: Rules = _VLLM,
    coast: bool = True,
) -> FleetSink:  # fmt: skip
    """One engine that is sent all of ``requests`` beforehand, each with the moment at which it comes in."""
    sink = FleetSink()
    inbox, keys = Inbox(), Calendar(None, config.block_size, caching=config.enable_prefix_caching)
    engine = Replica(
        inbox, config, SimExecutor(latency, asynchronous=config.async_scheduling), sink, coast=coast,
        rules=replace(rules, client=Client()), facts=DoorFacts(latency=latency, ttft_slo_ns=20_000, tenants=NAMES),
        kv_block_bytes=4096,
    )  # fmt: skip
    for at, request in requests:
        engine.push(at, request, keys.keys(request))
    inbox.closed = True
    engine.advance(NEVER)
    engine.recorder.flush()
    return sink
