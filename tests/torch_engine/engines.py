"""A small model and whole replays through it, for the tests of the torch engine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from replay_engine.config import SchedulerConfig
from replay_engine.loop import Replay
from replay_engine.rules import Rules
from replay_engine.sinks import MemorySink
from replay_engine.torch_engine.engine import Engine, EngineOptions, Extent, build_engine
from replay_engine.torch_engine.engine_rows import EngineSink
from replay_engine.torch_engine.model import DecoderModel
from replay_engine.torch_engine.shapes import ModelShape
from replay_engine.torch_engine.weights import dummy_weights
from tests.engine.traffic import Row, RowSource

__all__ = ["BLOCK", "Ran", "config_of", "engine_for", "extent_of", "small_model", "replay_rows"]

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
