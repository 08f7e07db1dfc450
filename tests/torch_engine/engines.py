"""A small model and whole replays through it, for the tests of the torch engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from replay_engine.config import SchedulerConfig
from replay_engine.fleet.pd_driver import PdReplay
from replay_engine.loop import Replay
from replay_engine.rules import Rules
from replay_engine.sinks import MemorySink
from replay_engine.torch_engine.engine import Engine, EngineOptions, Extent, build_engine
from replay_engine.torch_engine.engine_rows import EngineSink
from replay_engine.torch_engine.kv_connector import TorchConnector
from replay_engine.torch_engine.model import DecoderModel
from replay_engine.torch_engine.shapes import ModelShape
from replay_engine.torch_engine.weights import dummy_weights
from tests.engine.traffic import Row, RowSource
from tests.fleet.fleets import FleetSink

__all__ = [
    "BLOCK", "Pools", "Ran", "config_of", "engine_for", "extent_of", "replay_pools", "replay_rows", "small_model", "starting",
    "tokens_by_engine",
]  # fmt: skip

BLOCK = 8
VLLM = Rules()
SMALL = ModelShape(
    name="small", hidden=48, intermediate=64, layers=2, heads=4, kv_heads=2, head_dim=16, vocab=211, max_positions=1024,
    qk_norm=True, qkv_bias=True,
)  # fmt: skip


@cache
def small_model() -> DecoderModel:
    torch.set_num_threads(1)
    device = torch.device("cpu")
    return DecoderModel(SMALL, dummy_weights(SMALL, torch.float32, device, seed=3), SMALL.max_positions)


def config_of(**knobs: Any) -> SchedulerConfig:
    given = {"max_model_len": 256, "block_size": BLOCK, "max_num_batched_tokens": 64, "max_num_seqs": 8, "num_gpu_blocks": 64}
    return SchedulerConfig(**{**given, **knobs})


def extent_of(rows: list[Row]) -> Extent:
    return Extent(
        sequence=max(r.prompt + r.output for r in rows), output=max(r.output for r in rows), requests=len(rows)
    )


@dataclass
class Ran:
    """One replay: how it ended, the tokens by request, the tables."""

    state: str
    tokens: dict[int, list[int]]
    sink: MemorySink
    engine: Engine
    replay: Replay

    def table(self, name: str) -> npt.NDArray[np.void]:
        return self.sink.table(name)


def engine_for(rows: list[Row], config: SchedulerConfig, rules: Rules = VLLM, **options: Any) -> Engine:
    given = EngineOptions(keep_tokens=True, **options)
    return build_engine(small_model(), config, rules, extent_of(rows), given)


def replay_rows(rows: list[Row], config: SchedulerConfig, rules: Rules = VLLM, **options: Any) -> Ran:
    """``rows`` through the small model, sampled tokens kept; prefix blocks of the trace are as long as the engine's."""
    engine = engine_for(rows, config, rules, **options)
    return run_on(engine, rows, config, rules)


def run_on(engine: Engine, rows: list[Row], config: SchedulerConfig, rules: Rules = VLLM) -> Ran:
    sink = MemorySink()
    replay = Replay(
        RowSource(rows, block_tokens=BLOCK), config, engine.executor, EngineSink(sink, engine.executor.notes), rules=rules,
        pool=engine.pool,
    )  # fmt: skip
    state = replay.run()
    assert engine.executor.tokens is not None
    return Ran(state, engine.executor.tokens.by_request(), sink, engine, replay)


@dataclass
class Pools:
    """One replay through prefill and decode engines: how it ended, the tokens that clients got (of the engine where a request
    ended), the tables, the engines."""

    state: str
    tokens: dict[int, list[int]]
    handed: dict[int, list[int]]
    """What the prefill engines sampled."""
    sink: FleetSink
    engines: list[Engine]
    replay: PdReplay


def starting(engines: list[Engine]) -> Callable[[int, Any], Any]:
    """What a fleet asks for when an engine starts: its pool and where its rows go. One that starts again knows nothing."""
    started: set[int] = set()

    def own(number: int, sink: Any) -> Any:
        if number in started:
            engines[number].renew()
        started.add(number)
        return engines[number].pool, EngineSink(sink, engines[number].executor.notes)

    return own


def tokens_by_engine(engines: list[Engine]) -> list[dict[int, list[int]]]:
    """Each engine's sampled tokens, by request."""
    logs: list[dict[int, list[int]]] = []
    for engine in engines:
        assert engine.executor.tokens is not None
        logs.append(engine.executor.tokens.by_request())
    return logs


def replay_pools(
    rows: list[Row], configs: dict[str, SchedulerConfig], rules: Rules, faults: tuple[Any, ...] = (), **options: Any
) -> Pools:
    """``rows`` through ``rules.pd`` pools of the small model, which copy KV to each other."""
    pd = rules.pd
    each = [configs["prefill"]] * pd.prefill + [configs["decode"]] * pd.decode
    engines = [engine_for(rows, config, rules, **options) for config in each]
    sink = FleetSink()
    replay = PdReplay(
        RowSource(rows, block_tokens=BLOCK), configs, [engine.executor for engine in engines], sink, rules=rules,
        own=starting(engines), connector=TorchConnector(engines, pd.prefill), kv_block_bytes=engines[0].kv.block_bytes,
        faults=faults,
    )  # fmt: skip
    state = replay.run()
    logs = tokens_by_engine(engines)
    handed = {request: got for log in logs[: pd.prefill] for request, got in log.items()}
    ended = sink.table("outcomes")
    by = dict(zip(ended["request"].tolist(), ended["replica"].tolist(), strict=True))
    tokens = {i: logs[engine][i] for i, engine in by.items() if engine >= pd.prefill and i in logs[engine]}
    if pd.first_token_from == "prefill":
        tokens = {request: got[-1:] + tokens.get(request, []) for request, got in handed.items()}
    return Pools(state, tokens, handed, sink, engines, replay)
