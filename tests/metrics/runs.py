"""Real runs of the engine in memory, and their tables in an in-memory database."""

from __future__ import annotations

import random
from collections.abc import Iterator

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replay_engine.config import SchedulerConfig
from replay_engine.loop import Replay
from replay_engine.profile import Latency
from replay_engine.simulator import SimExecutor
from replay_engine.sinks import MemorySink
from replay_engine.tables import ENUMS, NULLABLE, TABLES
from replay_engine.totals import RunTotals
from replay_engine.types import RequestBatch
from tracekit.store.schema import migrate

LATENCY = Latency(
    floor_ns=5_000_003, a_ns=1_000_000, b_ns=20_011, c_ns=0.9, d_ns=11_003, e_ns=40.7, h0_ns=1_000_000, h1_ns=999, h2_ns=77
)


class Requests:
    """Arrivals close together, so that they queue and fight for KV."""

    def __init__(self, n: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.total = n
        self._batch = RequestBatch(
            index=np.arange(n),
            arrival_ns=np.sort(rng.integers(0, n * 20_000_000, n)),
            prompt_tokens=rng.integers(1, 300, n),
            output_tokens=rng.integers(1, 60, n),
            priority=np.zeros(n, np.int64),
            max_tokens=np.full(n, -1),
        )

    def batches(self) -> Iterator[RequestBatch]:
        yield self._batch


def squeezed(seed: int) -> SchedulerConfig:
    """A pool in which a few requests fill everything: preemptions and refusals of every kind."""
    rng = random.Random(seed)
    return SchedulerConfig(
        max_num_batched_tokens=rng.choice([64, 128, 512]),
        max_num_seqs=rng.choice([4, 16]),
        max_model_len=400,
        num_gpu_blocks=rng.choice([28, 40, 80]),
        async_scheduling=rng.random() < 0.5,
        enable_prefix_caching=rng.random() < 0.5,
        scheduler_reserve_full_isl=rng.random() < 0.5,
    )


def replayed(
    seed: int, n: int = 60, stall_threshold_ns: int | None = 12_000_000
) -> tuple[MemorySink, RunTotals, SchedulerConfig]:
    config, sink = squeezed(seed), MemorySink()
    executor = SimExecutor(LATENCY, asynchronous=config.async_scheduling)
    replay = Replay(Requests(n, seed), config, executor, sink, stall_threshold_ns=stall_threshold_ns)
    assert replay.run() == "finished"
    return sink, replay.totals, config


def put(con: duckdb.DuckDBPyConnection, run: int, table: str, rows: npt.NDArray[np.void]) -> None:
    """Rows into a table as the store does it: names for codes, NULL for unknown."""
    columns: dict[str, pa.Array] = {"run": pa.array(np.full(len(rows), run)), "replica": pa.array(np.zeros(len(rows), np.int64))}
    for name in TABLES[table].names or ():
        values = np.ascontiguousarray(rows[name])
        hidden = np.isnan(values) if values.dtype.kind == "f" else values == -1
        mask = hidden if name in NULLABLE[table] or values.dtype.kind == "f" else None
        if (table, name) in ENUMS:
            columns[name] = pa.array([ENUMS[table, name][code] for code in values], pa.string())
        else:
            columns[name] = pa.array(values, mask=mask)
    frame = pa.table(columns)
    con.register("incoming", frame)
    con.execute(f"INSERT INTO {table} BY NAME SELECT * FROM incoming")
    con.unregister("incoming")


def database(tables: dict[str, npt.NDArray[np.void]] | None = None, run: int = 1) -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    migrate(con)
    for name, rows in (tables or {}).items():
        put(con, run, name, rows)
    return con
