"""Builds an engine: model and weights on a device, as much KV as fits or was asked for, everything compiled and captured.

``load_model`` first, because what fits beside the weights decides the policy's number of KV blocks; then ``build_engine``.
"""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from replay_engine.buckets import bucket_sizes
from replay_engine.config import ConfigError, SchedulerConfig, cdiv
from replay_engine.profile import HardwareFacts, Latency, ModelFacts, Profile
from replay_engine.rules import Rules
from replay_engine.torch_engine.batch import PersistentBatch, TableSizes
from replay_engine.torch_engine.engine_pool import EnginePool
from replay_engine.torch_engine.executor import TorchExecutor
from replay_engine.torch_engine.graphs import DecodeBuckets
from replay_engine.torch_engine.iteration import DeviceTables, IterationPass, Sampling
from replay_engine.torch_engine.kv_pool import HostPool, KvPool, block_bytes
from replay_engine.torch_engine.model import DecoderModel
from replay_engine.torch_engine.prompts import prompt_ids
from replay_engine.torch_engine.shapes import find_shape
from replay_engine.torch_engine.staging import Staging
from replay_engine.torch_engine.swapping import Swapper
from replay_engine.torch_engine.warmup import warm_up, watch_compilations
from replay_engine.torch_engine.weights import load_weights
from replay_engine.types import Request

__all__ = ["Engine", "EngineOptions", "Extent", "build_engine", "default_blocks", "engine_profile", "load_model"]

CPU_KV_BYTES = 1 << 30
"""KV memory on a CPU where the policy does not say: enough for small models, and no risk for the machine."""
RESERVE_BYTES = 1 << 30
"""Kept free on a GPU for graphs and libraries."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """``model``: a shipped name or a Hugging Face directory. ``device`` and ``dtype`` ``None``: CUDA and bfloat16 where there is
    a GPU, else CPU and float32. ``graphs``: decode in buckets (graphs on CUDA, padding elsewhere); ``None``: on CUDA only.
    ``poison`` ``None``: on a CPU only, it costs writes. ``memory_share``: of the device's memory for everything."""

    model: str = "tiny"
    device: str | None = None
    dtype: str | None = None
    seed: int = 0
    temperature: float = 0.0
    graphs: bool | None = None
    poison: bool | None = None
    keep_tokens: bool = False
    memory_share: float = 0.92


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """What the tables must hold: the longest sequence and the longest output, tokens, and how many requests come in all."""

    sequence: int
    output: int
    requests: int


@dataclass(slots=True, kw_only=True)
class Engine:
    """A built engine: the executor, and the pool its scheduler must use."""

    executor: TorchExecutor
    pool: EnginePool
    kv: KvPool
    run: IterationPass
    config: SchedulerConfig

    def renew(self) -> None:
        """As one that has just been started, with nothing in its cache. No iteration may be under way."""
        self.pool = EnginePool(self.config)
        self.executor.renew(self.pool)


def load_model(options: EngineOptions) -> DecoderModel:
    """The model on its device. ``ConfigError``: no such model, unsupported, or it does not fit."""
    shape = find_shape(options.model)
    name = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"device {name}: torch sees no CUDA device; expected cpu")
    device = torch.device(name)
    if device.type == "cuda":  # a stream of our own: graphs cannot be captured on the default one
        torch.cuda.set_stream(torch.cuda.Stream(device))
    kind = options.dtype or ("bfloat16" if device.type == "cuda" else "float32")
    if kind not in DTYPES:
        raise ConfigError(f"dtype {kind}: expected one of {', '.join(DTYPES)}")
    dtype = DTYPES[kind]
    needed = shape.parameters * dtype.itemsize
    free = free_bytes(device)
    if needed > free:
        raise ConfigError(
            f"model {shape.name}: {_gib(needed)} of weights in {kind} do not fit {_gib(free)} of free memory on {device};"
            " expected a smaller model"
        )
    weights = load_weights(options.model, shape, dtype, device, options.seed)
    return DecoderModel(shape, weights, shape.max_positions)


def free_bytes(device: torch.device) -> int:
    """Memory that can be had now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def fitting_blocks(model: DecoderModel, config: SchedulerConfig, share: float) -> int:
    """KV blocks (the null block included) that fit beside the weights and an iteration's activations."""
    size = block_bytes(model.shape, config.block_size, model.dtype)
    if model.device.type == "cuda":
        free, total = torch.cuda.mem_get_info(model.device)
        room = int(min(free, free - (1 - share) * total)) - RESERVE_BYTES
    else:
        room = int(free_bytes(model.device) * share)
    return max(0, (room - _activations(model, config)) // size)


def _activations(model: DecoderModel, config: SchedulerConfig) -> int:
    """Peak of one iteration: a layer's activations at the token budget, or all seats' logits and their copy in float32."""
    shape, size = model.shape, model.dtype.itemsize
    layer = config.token_budget * size * (4 * shape.hidden + shape.qkv_size + 3 * shape.intermediate)
    return max(layer, config.max_num_seqs * shape.vocab * (size + 8))


def default_blocks(model: DecoderModel, config: SchedulerConfig, share: float, engines: int = 1) -> int:
    """Blocks of each of ``engines`` on one device where the policy does not say: all that fit on a GPU, each with room for its
    graphs; a fixed amount of memory on a CPU."""
    size = block_bytes(model.shape, config.block_size, model.dtype)
    fit = fitting_blocks(model, config, share)
    if model.device.type == "cuda":
        return max(0, fit - (engines - 1) * RESERVE_BYTES // size) // engines
    return min(fit, CPU_KV_BYTES // size) // engines


def engine_profile(model: DecoderModel) -> Profile:
    """Model and hardware as they are, for reports and for the policy's defaults; no coefficients, durations are measured."""
    shape, device, size = model.shape, model.device, model.dtype.itemsize
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        name, memory = properties.name, properties.total_memory
    else:
        name, memory = f"{platform.machine()} CPU", os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    facts = ModelFacts(
        name=shape.name, dtype=str(model.dtype).removeprefix("torch."), parameters=shape.parameters,
        weight_bytes=model.weights.bytes, layers=shape.layers, kv_heads=shape.kv_heads, head_dim=shape.head_dim,
        kv_bytes_per_token=shape.kv_bytes_per_token(size), hidden_size=shape.hidden, intermediate_size=shape.intermediate,
        vocab_size=shape.vocab, max_model_len=shape.max_positions,
    )  # fmt: skip
    hardware = HardwareFacts(name=name, memory_bytes=memory, peak_flops=1.0, bandwidth_bytes_s=1.0)
    return Profile(name=f"{shape.name} on {name}", latency=Latency(), model=facts, hardware=hardware, synthetic=True)


def build_engine(
    model: DecoderModel, config: SchedulerConfig, rules: Rules, extent: Extent, options: EngineOptions
) -> Engine:
    """The executor for ``config``, warmed up: what has to be compiled or captured is. ``ConfigError`` says how many KV blocks
    fit where those asked for do not."""
    if rules.batching.kv_allocation == "contiguous":
        raise ConfigError("batching.kv_allocation = contiguous: the engine pages its KV; expected paged, or the simulator")
    if extent.sequence > model.shape.max_positions:
        raise ConfigError(
            f"max_model_len = {config.max_model_len}: {model.shape.name} has {model.shape.max_positions} positions and the"
            f" longest request needs {extent.sequence}; expected at most that"
        )
    kv = _allocate(model, config, options.memory_share)
    device = model.device
    seats = config.seat_limit
    rows = 1 + min(extent.requests, 2 * seats + 2)
    sizes = TableSizes(rows=rows, blocks=cdiv(extent.sequence, config.block_size), tokens=extent.output)
    decodes = min(seats, extent.requests)
    tables = DeviceTables(sizes, device)
    run = IterationPass(model, kv, tables, Sampling(temperature=options.temperature, seed=options.seed), decodes + 16)
    capacity = 4 * (config.token_budget + 16) + 8 * (rows + seats) + 2 * (sizes.blocks + 4096) + 4096
    staging = Staging(device, capacity, rows + 520)
    graphs = device.type == "cuda" if options.graphs is None else options.graphs
    buckets = DecodeBuckets(run, staging.packed, bucket_sizes(decodes), sizes.blocks) if graphs else None
    pool = EnginePool(config)
    swapper = Swapper(_host_pool(kv, rules.preemption.host_blocks)) if rules.preemption.mode == "swap" else None
    prompts = _Prompts(model.shape.vocab, options.seed)
    batch = PersistentBatch(sizes, config.block_size, prompts)
    poison = device.type == "cpu" if options.poison is None else options.poison
    executor = TorchExecutor(
        run, batch, pool, buckets, staging, swapper, asynchronous=config.async_scheduling, poison=poison,
        keep_tokens=options.keep_tokens,
    )  # fmt: skip
    prompts.executor = executor
    warm_up(run, buckets, config, extent)
    watch_compilations(executor)
    return Engine(executor=executor, pool=pool, kv=kv, run=run, config=config)


class _Prompts:
    """Prompt tokens when a request is first admitted; the time it takes is kept apart."""

    def __init__(self, vocab: int, seed: int) -> None:
        self._vocab, self._seed = vocab, seed
        self.executor: TorchExecutor | None = None

    def __call__(self, request: Request) -> npt.NDArray[np.int32]:
        began = time.perf_counter_ns()
        ids = prompt_ids(request, self._vocab, self._seed)
        if self.executor is not None:
            self.executor.prompt_ns += time.perf_counter_ns() - began
        return ids


def _allocate(model: DecoderModel, config: SchedulerConfig, share: float) -> KvPool:
    size = block_bytes(model.shape, config.block_size, model.dtype)
    fit = fitting_blocks(model, config, share)
    if config.num_gpu_blocks <= fit + RESERVE_BYTES // 2 // size:  # what fits is measured anew, and may be a little less by now
        try:
            return KvPool(model.shape, config.num_gpu_blocks, config.block_size, model.dtype, model.device)
        except (torch.OutOfMemoryError, RuntimeError):
            fit = min(fit, fitting_blocks(model, config, share))
    raise ConfigError(
        f"num_gpu_blocks = {config.num_gpu_blocks}: out of memory, {_gib(config.num_gpu_blocks * size)} of KV do not fit on"
        f" {model.device} beside {model.shape.name}; {fit} blocks of {config.block_size} tokens fit; expected at most that"
    )


def _host_pool(kv: KvPool, blocks: int) -> HostPool:
    try:
        return HostPool(kv, blocks)
    except (torch.OutOfMemoryError, RuntimeError):
        raise ConfigError(
            f"preemption.host_blocks = {blocks}: {_gib(blocks * kv.block_bytes)} of host memory cannot be had; expected fewer"
        ) from None


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
